"""What the allocator checks before it looks for a hole; the rest is judged with chapter 10's exercises."""

import pytest

from shared.inference.contiguous import ContiguousAllocator


def test_holes_and_fragmentation():
    allocator = ContiguousAllocator(10)
    assert allocator.holes() == [(0, 10)]
    assert allocator.fragmentation == 0
    for owner, size in (("a", 2), ("b", 3), ("c", 5)):
        allocator.allocate(owner, size)
    assert allocator.holes() == []
    assert allocator.fragmentation == 0
    allocator.free("a")
    assert (allocator.holes(), allocator.num_free, allocator.fragmentation) == ([(0, 2)], 2, 0)
    allocator.allocate("d", 1)
    allocator.free("b")
    assert (allocator.holes(), allocator.fragmentation) == ([(1, 4)], 0)
    allocator.allocate("e", 1)
    allocator.free("d")
    assert allocator.holes() == [(0, 1), (2, 3)]
    assert allocator.fragmentation == pytest.approx(1 / 4)


def test_what_is_refused():
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        ContiguousAllocator(0)
    allocator = ContiguousAllocator(4)
    allocator.allocate("a", 1)
    with pytest.raises(ValueError, match="2 places for 'a', who holds 1 already"):
        allocator.allocate("a", 2)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"{size} places for 'b': at least 1"):
            allocator.allocate("b", size)
    with pytest.raises(KeyError, match="'nobody' has no places"):
        allocator.free("nobody")
