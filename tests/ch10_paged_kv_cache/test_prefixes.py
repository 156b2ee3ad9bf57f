"""Exercises 10.5, 10.6 and 10.7: judged by properties a name must have, and by names of our own making."""

import importlib.util
import random
from collections.abc import Sequence

import pytest

from chapters.ch10_paged_kv_cache import block_manager
from chapters.judge import NO_RESULT, Rejected, crash_means, exercise, expect, expect_equal
from tests.ch10_paged_kv_cache.books import chain, free_list, manager, name_of, our_names

BEGIN = bytes(range(16))

# 10.5 block_name


def name(before: bytes, token_ids: Sequence[int]) -> bytes:
    given = list(token_ids)
    with crash_means("a name must be possible for any ids: 49,151 needs more than a byte or two with a sign"):
        got = block_manager.block_name(before, given)
    expect(given == list(token_ids), because="the ids were changed, and they belong to the request: only read them")
    expect(got is not None, because=NO_RESULT)
    expect(isinstance(got, bytes), because=f"a name is bytes; yours is of type {type(got).__name__}")
    return got


@pytest.fixture
def no_builtin_hash(monkeypatch):
    def refuse(value: object) -> int:
        raise Rejected(
            "hash() was called",
            "the built-in hash() is made for dictionaries: it differs from process to process for bytes and strings, "
            "and an answer from the wrong block is what two equal hashes cost. Take hashlib",
        )

    monkeypatch.setattr(block_manager, "hash", refuse, raising=False)


@exercise("10.5")
@pytest.mark.usefixtures("no_builtin_hash")
def test_the_same_is_called_the_same():
    expect_equal(
        name(BEGIN, [5, 6, 7, 8]),
        name(BEGIN, [5, 6, 7, 8]),
        because="the same tokens after the same beginning: one name",
    )
    spec = block_manager.__spec__
    again = importlib.util.module_from_spec(spec)  # as another process would load it
    spec.loader.exec_module(again)
    expect_equal(
        again.block_name(BEGIN, [5, 6, 7, 8]),
        name(BEGIN, [5, 6, 7, 8]),
        because="loaded anew, the module gives another name: nothing that differs from process to process may be in it",
    )


@exercise("10.5")
def test_other_tokens_another_name():
    expect(name(BEGIN, [5, 6, 7, 8]) != name(BEGIN, [5, 6, 7, 9]), because="other tokens must have another name")
    expect(
        name(BEGIN, [5, 6, 7, 8]) != name(BEGIN, [8, 7, 6, 5]),
        because="the order of the tokens counts: a sum, a set or sorted ids don't know it",
    )
    expect(
        name(BEGIN, [1, 23, 4]) != name(BEGIN, [12, 3, 4]),
        because="[1, 23] and [12, 3] are the same text when ids are written one behind the other: 123. Give each id "
        "as many bytes as every other",
    )


@exercise("10.5")
def test_large_ids():
    expect(
        name(BEGIN, [44]) != name(BEGIN, [300]) and name(BEGIN, [0]) != name(BEGIN, [65536]),
        because="ids reach beyond 255 and, in some vocabularies, beyond 65,535: with one or two bytes each, different "
        "ids become equal",
    )
    name(BEGIN, [49_151, 151_642])


@exercise("10.5")
def test_every_token_counts():
    tokens = list(range(100, 116))
    for place in range(16):
        other = [*tokens[:place], 7, *tokens[place + 1 :]]
        expect(
            name(BEGIN, tokens) != name(BEGIN, other),
            because=f"two blocks of sixteen tokens that differ at place {place} have the same name: all must be hashed",
        )


@exercise("10.5")
def test_the_beginning_is_in_the_name():
    expect(
        name(BEGIN, [5, 6]) != name(bytes(16), [5, 6]),
        because="after another beginning the same tokens have other keys and values (attention has mixed what came "
        "before into them), so they need another name: hash `before` as well",
    )


@exercise("10.5")
def test_a_chain_knows_the_order_of_its_blocks():
    a, b = [1, 2], [3, 4]
    expect(
        name(name(BEGIN, a), b) != name(name(BEGIN, b), a),
        because="block a and then b, or b and then a: the two ends have the same name. XOR and plus forget the order; "
        "hash the two together",
    )
    expect(
        name(name(BEGIN, a), a) != BEGIN,
        because="the same block twice leads back to the name before: XOR undoes itself",
    )


@exercise("10.5")
def test_sixteen_bytes():
    expect_equal(
        len(name(BEGIN, [5, 6])),
        16,
        because="16 bytes: with four of them, two of some 80,000 blocks share a name, and one request reads another's "
        "text; with as many as the tokens have, names grow along the chain",
    )
    expect_equal(len(name(name(BEGIN, [1] * 50), [2] * 50)), 16, because="a name doesn't grow along the chain")


@exercise("10.5")
def test_no_two_of_many():
    rng = random.Random(0)
    seen: dict[bytes, tuple[bytes, tuple[int, ...]]] = {}
    names = [BEGIN]
    for _ in range(2000):
        key = (rng.choice(names), tuple(rng.choice([0, 1, 2, 255, 256, 300]) for _ in range(3)))
        got = name(*key)
        expect(seen.setdefault(got, key) == key, because=f"{key} and {seen[got]} have the same name")
        names.append(got)
    columns = list(zip(*seen, strict=True))  # each of the bytes, over all names
    varied = {column for column in columns if len(set(column)) > 200}
    expect(
        len(varied) == 16,
        because=f"of a name's 16 bytes only {len(varied)} say something of their own: others repeat them, or take few "
        "values. A short hash (crc32, Python's hash) that is made longer stays short; take 16 bytes of a long one",
    )


# 10.6 match

SYSTEM = list(range(100, 112))  # three blocks of four


def match(made: block_manager.BlockManager, token_ids: Sequence[int]) -> list[int]:
    given = list(token_ids)
    with (
        our_names() as asked,
        crash_means("a prompt that isn't known is no error: what is known of it is found, perhaps nothing"),
    ):
        got = made.match(given)
    expect(got is not None, because=NO_RESULT)
    expect(isinstance(got, list), because=f"a list of blocks is wanted; yours is a {type(got).__name__}")
    expect(given == list(token_ids), because="the prompt was changed, and it belongs to the request: only read it")
    if len(asked) > 1 and len(given) > 8 and asked[0][1] == given[:4]:
        before, tokens = asked[1]
        causes = {
            "the second name was made of token 1 and on: go on by block_size, not by one": tokens == given[1:5],
            "the second name was made of all tokens so far: a block's own are enough, `before` stands for the rest": (
                tokens == given[:8]
            ),
            "the second block's name must be made of the first one's: keep it, and give it to block_name": (
                before != name_of(*asked[0])
            ),
        }
        for cause, seen in causes.items():
            expect(not seen, because=cause)
    return got


def knowing(*prompts: Sequence[int]) -> block_manager.BlockManager:
    """A manager that knows these prompts' full blocks: blocks 7, 6, 5, … in the order of the prompts."""
    made = manager(8)
    block = 7
    for prompt in prompts:
        for each in chain(made.root, prompt, 4):
            if each not in made._cached:
                made._cached[each], made._names[block] = block, each
                block -= 1
    return made


@exercise("10.6")
def test_nothing_is_known():
    expect_equal(match(manager(4), SYSTEM), [], because="nothing was published, so nothing is found: an empty list")


@exercise("10.6")
def test_the_beginning_is_found():
    made = knowing(SYSTEM)
    got = match(made, [*SYSTEM, 1, 2, 3])
    expect(
        got != [7, 6],
        because="two blocks were found, and the third is known as well: fifteen tokens are three blocks and a rest",
    )
    expect(
        got != [],
        because="nothing was found. Names begin at self.root; and a block that nobody holds may be found, too: free "
        "blocks that have a name are the cache",
    )
    expect_equal(
        got,
        [7, 6, 5],
        because="all three blocks of the beginning are known; block numbers are wanted, in the order of the tokens",
    )


@exercise("10.6")
def test_one_token_is_left_to_compute():
    made = knowing(SYSTEM)
    got = match(made, SYSTEM)
    expect(
        got != [7, 6, 5],
        because="the whole prompt is known, to its last token; but then nothing would be computed, and there are no "
        "logits to choose the next token from. At least one token must be left",
    )
    expect_equal(
        got, [7, 6], because="of twelve tokens the last one is left, and with it its block; the other two count"
    )


@exercise("10.6")
def test_one_token_more_than_full_blocks():
    made = knowing(SYSTEM)
    expect_equal(
        match(made, [*SYSTEM, 9]),
        [7, 6, 5],
        because="thirteen tokens: three full blocks, and one token is left to compute. All three may be used",
    )
    expect_equal(match(made, SYSTEM[:5]), [7], because="five tokens: one full block, and one is left")
    expect_equal(match(made, SYSTEM[:4]), [], because="four tokens: one full block, but then nothing would be left")
    expect_equal(match(made, SYSTEM[:2]), [], because="half a block has no name")


@exercise("10.6")
def test_block_0_is_a_block():
    made = manager(4)
    for block, each in enumerate(chain(made.root, SYSTEM, 4)):
        made._cached[each], made._names[block] = block, each
    expect_equal(
        match(made, [*SYSTEM, 1]),
        [0, 1, 2],
        because="the beginning is in blocks 0, 1 and 2. Block 0 is known as well: `if not block` takes it for nothing; "
        "compare with None, or ask `name in self._cached`",
    )


@exercise("10.6")
def test_it_ends_at_the_first_unknown_block():
    made = knowing(SYSTEM)
    second = chain(made.root, SYSTEM, 4)[1]
    del made._cached[second]
    got = match(made, [*SYSTEM, 1])
    expect(
        got != [7, 5],
        because="the second block was evicted, and yet the third was taken: tokens 4 to 7 would be missing in the "
        "middle. A beginning ends at the first block that isn't known",
    )
    expect_equal(got, [7], because="only the first block is known without a gap")


@exercise("10.6")
def test_another_beginning_is_another_text():
    made = knowing(SYSTEM)
    other = [0, 0, 0, 0, *SYSTEM[4:], 1]
    expect_equal(
        match(made, other),
        [],
        because="the second and third block have the same tokens, but another beginning: block_name takes the name "
        "of the block before",
    )


@exercise("10.6")
def test_another_version_is_another_model():
    made = manager(4)
    for block, each in enumerate(chain(b"", SYSTEM, 4)):  # names that begin from nothing
        made._cached[each], made._names[block] = block, each
    expect_equal(
        match(made, [*SYSTEM, 1]),
        [],
        because="names begin at self.root, which stands for the model's version; from b'' on, one model would find "
        "what another has computed",
    )


@exercise("10.6")
def test_nothing_is_taken():
    made = knowing(SYSTEM)
    before = (list(made.ref_counts), list(made._free), dict(made._cached))
    match(made, [*SYSTEM, 1])
    expect_equal(
        (made.asked_tokens, made.hit_tokens),
        (0, 0),
        because="match counted what it found, and `share` counts it as well: a request that waits would count twice",
    )
    expect_equal(
        (list(made.ref_counts), list(made._free), dict(made._cached)),
        before,
        because="match only looks; the scheduler may decide that there is no room yet, and ask again in the next step. "
        "`share` takes",
    )


@exercise("10.6")
def test_against_a_search_by_hand():
    rng = random.Random(0)
    halves = [[1, 2, 3, 4], [5, 6, 7, 8]]
    for _ in range(100):
        known = [sum(rng.choices(halves, k=rng.randint(1, 3)), []) for _ in range(2)]
        made = knowing(*known)
        prompt = sum(rng.choices(halves, k=rng.randint(0, 3)), []) + [9] * rng.randint(0, 5)
        longest = 0
        for text in known:
            same = 0
            while same < min(len(text), len(prompt)) and text[same] == prompt[same]:
                same += 1
            longest = max(longest, same // 4)
        longest = max(0, min(longest, (len(prompt) - 1) // 4))
        expect_equal(
            len(match(made, prompt)), longest, because=f"{known} are known, {prompt} is asked for: {longest} blocks fit"
        )


# 10.7 publish


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
