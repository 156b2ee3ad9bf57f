"""Exercise 10.7: judged by which blocks get which names of our own making."""

import random

from chapters.ch10_paged_kv_cache import block_manager
from chapters.judge import crash_means, exercise, expect, expect_equal
from tests.ch10_paged_kv_cache.books import chain, free_list, manager, name_of, our_names


def publish(
    made: block_manager.BlockManager, table: list[int], token_ids: list[int], names: list[bytes], n_computed: int
) -> None:
    before = list(table), list(token_ids), list(made.ref_counts), free_list(made)
    with our_names(), crash_means("publishing must not fail: the table and the tokens reach to n_computed"):
        got = made.publish(table, token_ids, names, n_computed)
    expect(got is None, because="publish returns nothing; it changes `names` and the index")
    now = list(table), list(token_ids), list(made.ref_counts), free_list(made)
    for what, then, after in zip(("table", "tokens", "holders", "free list"), before, now, strict=True):
        expect(
            then == after,
            because=f"the {what} changed, from {then} to {after}: publish gives names, and nobody holds another block "
            "than before. (A known block in the table instead of one's own would want another holder, and one less)",
        )


@exercise("10.7")
def test_full_blocks_get_their_names():
    made, names = manager(5, tables=[[3, 1, 4]]), []
    publish(made, [3, 1, 4], list(range(10)), names, 10)
    want = chain(made.root, list(range(10)), 4)
    expect(
        names or made._cached or any(made._names),
        because="ten tokens fill two blocks of four, and nothing was named: are names and the index written?",
    )
    expect(
        names,
        because="the blocks got names, and `names` is as empty as before: it must grow in place (append), for "
        "`names = names + [name]` makes another list, which the caller never sees",
    )
    expect(
        made._cached, because="names has grown, and the index (self._cached) knows none of them: nobody will find them"
    )
    expect(
        len(names) < 3,
        because=f"ten tokens fill two blocks of four, and {len(names)} names were made. The third block isn't full: "
        "whoever found it would take four tokens where there are two",
    )
    expect(len(names) == 2, because="a prompt may fill several blocks in one step: a `while`, not an `if`")
    expect(
        names[1] != chain(made.root, list(range(4, 10)), 4)[0],
        because="the second block's name must hold the first one's: names[-1] goes into block_name, not the root again",
    )
    expect(
        names[1] != chain(made.root, [0, 1, 2, 3] * 2, 4)[1],
        because="the second block holds tokens 4 to 7; its name was made of the first four again",
    )
    expect_equal(
        names, want, because="each name is made of the one before (the root at first) and the block's own tokens"
    )
    expect_equal(
        made._cached,
        {want[0]: 3, want[1]: 1},
        because="the index leads from the name to the block of the table, not to its place in the table",
    )
    expect_equal(
        [made._names[block] for block in (3, 1, 4)],
        [*want, None],
        because="the block must know its name as well (self._names), so that it can be forgotten",
    )


@exercise("10.7")
def test_only_what_is_computed():
    made, names = manager(5, tables=[[3, 1]]), []
    publish(made, [3, 1], list(range(8)), names, 6)
    expect(
        len(names) == 1,
        because="eight tokens are known and six of them computed: the second block isn't full of keys and values yet, "
        "and whoever found it would read numbers that nobody has written. Count n_computed, not the tokens",
    )


@exercise("10.7")
def test_just_full():
    made, names = manager(5, tables=[[3]]), []
    publish(made, [3], list(range(4)), names, 3)
    expect_equal(names, [], because="three of four tokens: not full")
    publish(made, [3], list(range(4)), names, 4)
    expect_equal(len(names), 1, because="the fourth token fills the block, and now it has a name: compare with <=")


@exercise("10.7")
def test_it_goes_on_where_it_stopped():
    made, names, tokens = manager(6, tables=[[3, 1, 4]]), [], list(range(12))
    for n_computed in (3, 4, 5, 11, 12):
        publish(made, [3, 1, 4], tokens, names, n_computed)
    expect(
        names[2:3] != [name_of(names[0], tokens[8:12])],
        because="the third block's name was made of the first one's: the name before is names[-1], not names[0]",
    )
    expect_equal(
        names,
        chain(made.root, tokens, 4),
        because="names grows by the blocks that became full since last time: begin at len(names), not at 0 again",
    )


@exercise("10.7")
def test_two_with_the_same_text():
    made = manager(6, tables=[[0], [1]])
    first, second = [], []
    publish(made, [0], [1, 2, 3, 4], first, 4)
    publish(made, [1], [1, 2, 3, 4], second, 4)
    expect_equal(second, first, because="the same text: names must grow even if the index knows the name already")
    expect_equal(
        made._cached,
        {first[0]: 0},
        because="two computed the same text at the same time. The name stays with the first block: moved to the "
        "second, the first one would carry a name that leads elsewhere",
    )
    expect_equal(made._names[1], None, because="the second block has no name: the index doesn't lead to it")


@exercise("10.7")
def test_a_shared_beginning_and_then_something_new():
    made = manager(6, tables=[[0, 1], [2, 3]])
    first, second, other = [], [], [1, 2, 3, 4, 9, 9, 9, 9]
    publish(made, [0, 1], [1, 2, 3, 4, 5, 6, 7, 8], first, 8)
    publish(made, [2, 3], other, second, 8)
    expect_equal(
        second,
        chain(made.root, other, 4),
        because="the first of two full blocks has a known name, the second a new one: both go into names, so go on "
        "after a known one",
    )
    expect_equal(made._cached.get(second[1]), 3, because="the second block's text is new: it must be found by its name")


@exercise("10.7")
def test_a_block_keeps_its_name():
    made = manager(4, tables=[[2]], named={2: b"its name"})
    publish(made, [2], [1, 2, 3, 4], [], 4)
    expect_equal(
        made._cached,
        {b"its name": 2},
        because="this block has a name; it must not get a second one: a block remembers one name, and when it is "
        "handed out only that one is forgotten. The other would lead to a stranger's text",
    )


@exercise("10.7")
def test_without_prefix_caching():
    made, names = manager(4, tables=[[2]], prefix_caching=False), []
    publish(made, [2], [1, 2, 3, 4], names, 4)
    expect_equal(
        (made._cached, names), ({}, []), because="prefix_caching=False: nothing is named, and nothing is ever found"
    )


@exercise("10.7")
def test_what_is_published_is_found():
    rng = random.Random(0)
    for _ in range(50):
        made = manager(8, tables=[list(range(8))])
        tokens, names, done = [rng.randint(0, 3) for _ in range(30)], [], 0
        while done < 30:
            done = min(30, done + rng.randint(1, 9))
            publish(made, list(range(8)), tokens, names, done)
            want = chain(made.root, tokens[:done], 4)
            expect_equal(names, want, because=f"{done} tokens are computed: {len(want)} blocks are full")
            found = [made._cached.get(each) for each in want]
            expect_equal(found, list(range(len(want))), because="each full block must be found by its name")
