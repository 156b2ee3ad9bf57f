"""Exercise 10.9: judged by slots counted by hand, and by a memory that is written token by token."""

import random
from numbers import Integral

from chapters.ch10_paged_kv_cache import paged_kv_cache
from chapters.judge import NO_RESULT, Rejected, exercise, expect, expect_equal


def slots(block_table: list[int], start: int, n: int, block_size: int) -> list[int]:
    given = list(block_table)
    try:
        got = paged_kv_cache.slot_mapping(given, start, n, block_size)
    except IndexError as error:
        raise Rejected(
            f"IndexError: {error}",
            "the table was asked for a block that it doesn't have: token p is in the table's entry number "
            "p // block_size, and tokens end at start + n - 1",
        ) from error
    expect(got is not None, because=NO_RESULT)
    got = got.tolist() if hasattr(got, "tolist") else got
    expect(isinstance(got, list | tuple), because=f"a list of numbers is wanted; yours is a {type(got).__name__}")
    expect_equal(given, block_table, because="the table was changed, and it belongs to the sequence: only read it")
    for slot in got:
        expect(
            isinstance(slot, Integral),
            because=f"a slot is one whole number, block * block_size + offset; yours is {slot!r}",
        )
    return list(got)


@exercise("10.9")
def test_one_block():
    expect_equal(
        slots([3], start=0, n=4, block_size=4),
        [12, 13, 14, 15],
        because="block 3 of four tokens each begins at slot 3 * 4; its tokens follow one another",
    )


@exercise("10.9")
def test_one_slot_for_each_token():
    for start, n in ((0, 1), (1, 3), (2, 5)):
        got = slots([0, 1, 2, 3], start, n, block_size=2)
        expect(
            len(got) == n,
            because=f"{n} tokens from {start} on want {n} slots; yours are {len(got)}. n is how many, not where to end",
        )


@exercise("10.9")
def test_blocks_lie_anywhere():
    got = slots([7, 2, 5], start=0, n=6, block_size=2)
    expect(
        got != [14, 15, 6, 7, 14, 15],
        because="token 2 is the first of block 2, so its offset is 2 % 2 = 0: the position, modulo block_size",
    )
    expect_equal(
        got,
        [14, 15, 4, 5, 10, 11],
        because="the second pair is in block 2, the third in block 5, as the table says; tokens don't follow one "
        "another from the first block on",
    )


@exercise("10.9")
def test_from_the_middle():
    expect_equal(
        slots([7, 2, 5], start=3, n=4, block_size=4),
        [31, 8, 9, 10],
        because="token 3 is the last of the table's first block, and token 4 the first of its second: positions are "
        "counted from the sequence's beginning, not from `start`",
    )


@exercise("10.9")
def test_a_single_token():
    for position, want in ((0, 40), (7, 47), (8, 144), (11, 147), (15, 151)):
        expect_equal(
            slots([5, 18], position, 1, block_size=8),
            [want],
            because=f"decoding writes one token: position {position} is number {position % 8} of block "
            f"{[5, 18][position // 8]}",
        )


@exercise("10.9")
def test_a_block_of_one_token():
    expect_equal(
        slots([4, 1, 9], start=1, n=2, block_size=1),
        [1, 9],
        because="with blocks of one token the slots are the table's blocks",
    )


@exercise("10.9")
def test_every_token_finds_its_own():
    rng = random.Random(0)
    for _ in range(40):
        size = rng.choice([1, 2, 3, 8, 16])
        table = rng.sample(range(40), 6)
        memory: dict[int, int] = {}
        position = 0
        while position < 5 * size:
            n = rng.randint(1, 5 * size - position)
            for offset, slot in enumerate(slots(table, position, n, size)):
                expect(slot not in memory, because=f"slot {slot} was written twice: two tokens share a place")
                memory[slot] = position + offset
            position += n
        for index, block in enumerate(table[:5]):
            found = [memory.get(block * size + offset) for offset in range(size)]
            expect_equal(
                found,
                list(range(index * size, (index + 1) * size)),
                because=f"block {block}, number {index} of the table, must hold tokens {index * size} and on, in order",
            )
