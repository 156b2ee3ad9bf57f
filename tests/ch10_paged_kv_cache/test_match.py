"""Exercise 10.6: judged by names of our own making, and by a search by hand."""

import random
from collections.abc import Sequence

from chapters.ch10_paged_kv_cache import block_manager
from chapters.judge import NO_RESULT, crash_means, exercise, expect, expect_equal
from tests.ch10_paged_kv_cache.books import chain, manager, name_of, our_names

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
