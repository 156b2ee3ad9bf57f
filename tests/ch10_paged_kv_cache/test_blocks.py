"""Exercises 10.3 and 10.4: judged by books kept by hand, and by a model that only knows who holds what."""

import random
from collections import Counter

from chapters.ch10_paged_kv_cache import block_manager
from chapters.judge import NO_RESULT, Rejected, crash_means, exercise, expect, expect_equal
from tests.ch10_paged_kv_cache.books import free_list, manager

# 10.3 take


def take(made: block_manager.BlockManager, n: int) -> list[int]:
    with crash_means("taking blocks that are free must not fail; are they in the free list, and is their name known?"):
        try:
            got = made.take(n)
        except block_manager.OutOfBlocks as error:
            raise Rejected(
                f"OutOfBlocks: {error}",
                f"{n} blocks asked for and {len(free_list(made))} free: that is enough. A free block that has a name "
                "is free as well; its name goes when it is handed out",
            ) from error
    expect(got is not None, because=NO_RESULT)
    expect(isinstance(got, list), because=f"a list of blocks is wanted; yours is a {type(got).__name__}")
    expect(
        not any(isinstance(block, tuple) for block in got),
        because=f"block numbers are wanted; popitem gives a pair, and the block is its first part: {got}",
    )
    return got


@exercise("10.3")
def test_the_first_of_the_free_list():
    made = manager(6, free=[3, 0, 1])  # 2, 4, 5, then 3, 0, 1
    got = take(made, 4)
    expect(got != [3, 5, 4, 2], because="the right blocks, the wrong way round: the first one taken comes first")
    expect(
        got != [0, 1, 2, 3], because="the free list has an order of its own, 2, 4, 5, 3, …; yours is that of numbers"
    )
    expect_equal(
        got,
        [2, 4, 5, 3],
        because="blocks come from the front of the free list, for those at its end were used last and may be asked for "
        "again; popitem() without last=False takes the end",
    )


@exercise("10.3")
def test_a_block_is_handed_out_once():
    made = manager(4)
    first = take(made, 2)
    expect_equal(
        free_list(made),
        [2, 3],
        because="what was taken isn't free any more: it must leave the free list, or two get it",
    )
    expect(not set(first) & set(take(made, 2)), because="a block was handed out twice")


@exercise("10.3")
def test_each_has_one_holder():
    made = manager(4)
    take(made, 3)
    expect_equal(
        made.ref_counts,
        [1, 1, 1, 0],
        because="each block that is taken has one holder; with 0 it looks free to everybody who asks",
    )


@exercise("10.3")
def test_the_last_block_can_be_taken():
    made = manager(3)
    expect_equal(take(made, 3), [0, 1, 2], because="three blocks are free and three were asked for: not too many")
    expect_equal(take(made, 0), [], because="no blocks asked for: an empty list, also when none is free")


@exercise("10.3")
def test_too_few_are_free():
    because = "three blocks asked for, two free: raise OutOfBlocks"
    made = manager(4, tables=[[0, 1]])
    with crash_means(because + " before the first one is taken"):
        try:
            got = made.take(3)
        except block_manager.OutOfBlocks:
            got = None
    expect(got is None, because=f"{because}; you gave {got}")
    expect_equal(
        (made.ref_counts, free_list(made)),
        ([1, 1, 0, 0], [2, 3]),
        because="OutOfBlocks means that nothing was taken: count before you take the first, or blocks are lost",
    )


@exercise("10.3")
def test_a_name_goes_when_the_block_is_handed_out():
    made = manager(4, named={0: b"zero", 1: b"one", 3: b"three"})
    expect(
        2 not in take(made, 2),
        because="block 2 has no name, and was taken before blocks 0 and 1, which have. The free list is in order "
        "already (release sees to that): take from its front, whatever lies there",
    )
    expect(
        b"zero" not in made._cached and b"one" not in made._cached,
        because="the index still leads to a block that was handed out: somebody finds the name and reads what another "
        "request has written there",
    )
    expect_equal(
        made._names, [None, None, None, b"three"], because="the block's own name must go, too; others keep theirs"
    )
    expect_equal(
        made._cached, {b"three": 3}, because="blocks that stay free keep their names: they are the prefix cache"
    )


# 10.4 release


def release(made: block_manager.BlockManager, table: list[int]) -> None:
    with crash_means("releasing blocks that are held must not fail"):
        made.release(table)


@exercise("10.4")
def test_the_last_holder_frees():
    made = manager(4, tables=[[2, 0]])
    release(made, [2, 0])
    expect_equal(made.ref_counts, [0, 0, 0, 0], because="one holder less for each block of the table")
    expect_equal(
        sorted(free_list(made)),
        [0, 1, 2, 3],
        because="a block that nobody holds must be in the free list again, or it is lost for ever: a leak",
    )


@exercise("10.4")
def test_another_holder_keeps_it():
    made = manager(4, tables=[[1, 2], [1, 3]])
    release(made, [1, 2])
    expect_equal(
        made.ref_counts, [0, 1, 0, 1], because="one holder less, not none: block 1 is in another table as well"
    )
    expect(
        1 not in free_list(made),
        because="block 1 is free although another sequence holds it: it would be handed out and overwritten",
    )


@exercise("10.4")
def test_the_table_is_empty_afterwards():
    table = [1, 2]
    made = manager(4, tables=[table])
    release(made, table)
    expect_equal(
        table,
        [],
        because="the table must be empty afterwards: whoever still has it would go on reading blocks of others, or "
        "release them again",
    )


@exercise("10.4")
def test_names_outlive_their_holder():
    made = manager(3, tables=[[0, 1]], named={0: b"zero", 1: b"one"})
    release(made, [0, 1])
    expect_equal(
        (made._cached, made._names),
        ({b"zero": 0, b"one": 1}, [b"zero", b"one", None]),
        because="a free block keeps its name until it is handed out again; that is what the prefix cache is made of",
    )


@exercise("10.4")
def test_beginnings_are_kept_longest():
    names = {block: bytes([block]) for block in (4, 1, 3)}
    made = manager(5, tables=[[4, 1, 3]], named=names)
    release(made, [4, 1, 3])
    expect(
        free_list(made) != [0, 2, 4, 1, 3],
        because="the first block of the table would be handed out before the last. Without its beginning the rest of a "
        "prompt is never found, so free the last block first",
    )
    expect(
        free_list(made)[:2] == [0, 2],
        because="a block with a name goes to the end of the free list: what was used last is handed out last (least "
        f"recently used first); yours is {free_list(made)}",
    )
    expect_equal(free_list(made), [0, 2, 3, 1, 4], because="named blocks go to the end of the list, the last one first")


@exercise("10.4")
def test_what_has_no_name_goes_first():
    made = manager(6, tables=[[4, 5, 3]], named={4: b"four", 0: b"zero", 1: b"one", 2: b"two"})
    release(made, [4, 5, 3])
    expect_equal(
        free_list(made),
        [5, 3, 0, 1, 2, 4],
        because="blocks 5 and 3 have no name, so nobody will ever find them: to the front of the list, before blocks "
        "that may be asked for again",
    )


@exercise("10.4")
def test_released_twice():
    made = manager(3, tables=[[1]])
    because = "block 0 has no holder: raise ValueError; a silent second release would put it into two hands later"
    with crash_means(because):
        try:
            made.release([0])
        except ValueError:
            expect_equal(
                (made.ref_counts, free_list(made)),
                ([0, 1, 0], [0, 2]),
                because="the error was raised, and the books have changed all the same: look at the count before you "
                "subtract",
            )
            return
    raise Rejected(f"nothing was raised; holders {made.ref_counts}, free {free_list(made)}", because)


@exercise("10.4")
def test_against_a_model_of_who_holds_what():
    rng = random.Random(0)
    for _ in range(60):
        made, tables = block_manager.BlockManager(8, 4), []
        for _ in range(25):
            kind = rng.choice(["take", "share", "release"])
            if kind == "take":
                n = rng.randint(0, 3)
                if n <= made.num_free:
                    tables.append(take(made, n))
            elif kind == "share" and tables:
                tables.append(made.share(rng.choice(tables)[:2]))
            elif tables:
                release(made, tables.pop(rng.randrange(len(tables))))
            holders = Counter(block for table in tables for block in table)
            expect_equal(
                made.ref_counts,
                [holders[block] for block in range(8)],
                because=f"the tables are {tables}: the counts must say how many of them hold each block",
            )
            expect_equal(
                sorted(free_list(made)),
                [block for block in range(8) if not holders[block]],
                because=f"the tables are {tables}: all other blocks are free, and no block that is in one of them",
            )
