"""Exercise 10.8: judged by books kept by hand of who holds a block after it was to be written."""

from chapters.ch10_paged_kv_cache import block_manager
from chapters.judge import crash_means, exercise, expect, expect_equal
from tests.ch10_paged_kv_cache.books import free_list, manager


def writable(made: block_manager.BlockManager, table: list[int], index: int) -> tuple[int, int] | None:
    with crash_means("making a block writable must not fail while blocks are free"):
        return made.writable(table, index)


@exercise("10.8")
def test_ones_own_block():
    table = [2, 0]
    made = manager(4, tables=[table])
    got = writable(made, table, 1)
    expect(
        got is None,
        because=f"nobody else holds block 0, so it can be written as it is: None, and nothing to copy; you gave {got}",
    )
    expect_equal((table, made.ref_counts), ([2, 0], [1, 0, 1, 0]), because="nothing changes for a block of one's own")


@exercise("10.8")
def test_ones_own_block_wants_no_other():
    because = "one's own block needs no copy, so none has to be free: look at the count before you take"
    made, table = manager(2, tables=[[1, 0]]), [1, 0]
    with crash_means(because):
        expect(made.writable(table, 0) is None, because=because)
    names = {block: bytes([block]) for block in (0, 2, 3)}
    made, table = manager(4, tables=[[1, 0]], named=names), [1, 0]
    got = writable(made, table, 1)
    expect(got is None, because="a block with a name may be one's own, too: who else holds it is what counts")
    expect_equal(
        (made._cached, free_list(made)),
        ({name: block for block, name in names.items()}, [2, 3]),
        because="nothing had to be copied, and yet a free block was taken (and given back), or a name is gone",
    )


@exercise("10.8")
def test_a_shared_block_is_copied():
    table, other = [2, 0], [2, 0]
    made = manager(4, tables=[table, other])
    got = writable(made, table, 1)
    expect(
        got is not None,
        because="two tables hold block 0: writing into it would change the other's past. Return (source, target)",
    )
    expect(
        isinstance(got, tuple | list) and len(got) == 2,
        because=f"a pair is wanted: where to copy from, and where to; yours is {got!r}",
    )
    expect(tuple(got) != (1, 0), because="source is the block that was shared, target the new one: yours are swapped")
    expect_equal(tuple(got), (0, 1), because="from the shared block 0 to the first free block, which is 1")


@exercise("10.8")
def test_the_new_block_stands_in_the_table():
    table, other = [2, 0], [2, 0]
    writable(manager(4, tables=[table, other]), table, 1)
    expect_equal(
        table,
        [2, 1],
        because="the new block takes the old one's place in this table, or the old one is written after all",
    )
    expect_equal(other, [2, 0], because="the other table keeps the block that it had")


@exercise("10.8")
def test_the_counts_after_a_copy():
    table, others = [2, 0], [[2, 0], [0]]
    made = manager(4, tables=[table, *others])
    writable(made, table, 1)
    expect(
        made.ref_counts[0] != 3,
        because="this table holds the source no more, so it has one holder less; otherwise it is never freed: a leak",
    )
    expect_equal(
        made.ref_counts,
        [2, 1, 2, 0],
        because="of block 0's three holders two are left, and the new block has one",
    )
    expect(0 not in free_list(made), because="the source is free although others hold it")
    expect(1 not in free_list(made), because="the new block is still in the free list, and would be handed out again")


@exercise("10.8")
def test_the_copy_has_no_name():
    table = [0]
    made = manager(3, tables=[table, [0]], named={0: b"zero", 1: b"one"})
    writable(made, table, 0)
    expect_equal(
        made._cached,
        {b"zero": 0},
        because="the source keeps its name, for its content stays; the new block has none, for it will be written; and "
        "the name that it had before is gone. self.take does that",
    )


@exercise("10.8")
def test_no_block_for_the_copy():
    table = [0, 1]
    made = manager(2, tables=[table, [0]])
    because = "no block is free for the copy: OutOfBlocks, so that the scheduler can make room and ask again"
    with crash_means(because):
        try:
            got = made.writable(table, 0)
        except block_manager.OutOfBlocks:
            got = "OutOfBlocks"
    expect(got == "OutOfBlocks", because=because)
    expect_equal(
        (made.ref_counts, table),
        ([2, 1], [0, 1]),
        because="when no block is free nothing may have changed: take the new block first, then change the books",
    )
