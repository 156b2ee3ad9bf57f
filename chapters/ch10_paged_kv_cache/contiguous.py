# Yours to finish. Generated from shared/inference/contiguous.py (version 1b2ee45a420f).
"""Memory given out in one piece per request, the way caches were kept before paging: it frays into holes."""

from chapters import Todo
from dataclasses import dataclass


class NoHole(RuntimeError):
    """No hole is large enough; nothing was given out. `free` says what all holes hold together."""

    def __init__(self, size: int, largest: int, free: int) -> None:
        super().__init__(f"{size} in one piece asked for; the largest hole has {largest}, all holes together {free}")
        self.size, self.largest, self.free = size, largest, free


@dataclass(frozen=True)
class Move:
    """Copy `size` places from `source` on to `target` on. The two may overlap; target lies before source."""

    source: int
    target: int
    size: int


class ContiguousAllocator:
    """Gives out stretches of the places 0 to capacity - 1. A place is whatever the caller keeps there: a token, say."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self.starts: dict[str, int] = {}  # who -> the first of its places
        self.sizes: dict[str, int] = {}

    @property
    def num_free(self) -> int:
        """Places in all holes together. That many can be free and a smaller request find no room."""
        return self.capacity - sum(self.sizes.values())

    def in_order(self) -> list[str]:
        """All owners, by where their stretches lie."""
        return sorted(self.starts, key=lambda owner: self.starts[owner])

    def holes(self) -> list[tuple[int, int]]:
        """(start, size) of each stretch that belongs to nobody, in order.

        >>> allocator = ContiguousAllocator(10)
        >>> for owner, size in (("a", 2), ("b", 3), ("c", 1)):
        ...     start = allocator.allocate(owner, size)
        >>> allocator.free("b")
        >>> allocator.holes()
        [(2, 3), (6, 4)]
        """
        found, position = [], 0
        for owner in self.in_order():
            if self.starts[owner] > position:
                found.append((position, self.starts[owner] - position))
            position = self.starts[owner] + self.sizes[owner]
        return [*found, (position, self.capacity - position)] if position < self.capacity else found

    @property
    def fragmentation(self) -> float:
        """The share of the free places that lie outside the largest hole: 0 when there is one hole, or none."""
        return 1 - max((size for _, size in self.holes()), default=0) / self.num_free if self.num_free else 0.0

    def allocate(self, owner: str, size: int) -> int:
        """First fit: the beginning of the first hole that is large enough. Returns the start. Raises NoHole.

        size: at least 1. Raises ValueError for another, and for an owner who has a stretch already.
        """
        if size < 1:
            raise ValueError(f"{size} places for {owner!r}: at least 1 must be asked for")
        if owner in self.starts:
            raise ValueError(f"{size} places for {owner!r}, who holds {self.sizes[owner]} already: free those first")
        # exercise 10.1: note start and size for the first hole that is large enough, or raise NoHole
        #   NoHole(size, largest, free) wants to know the largest hole, and what all of them hold together
        raise Todo("10.1")
        # end

    def free(self, owner: str) -> None:
        """Give a stretch back. Raises KeyError for an owner who has none."""
        if owner not in self.starts:
            raise KeyError(f"{owner!r} has no places to give back")
        del self.starts[owner], self.sizes[owner]

    def compact(self) -> list[Move]:
        """Push all stretches together at the front, in their order, so that one hole is left, at the end.

        Returns what has to be copied, in the order in which it must be: no copy overwrites what is still to be copied.
        A stretch that stays where it is isn't copied.

        >>> allocator = ContiguousAllocator(10)
        >>> for owner, size in (("a", 2), ("b", 3), ("c", 1)):
        ...     start = allocator.allocate(owner, size)
        >>> allocator.free("b")
        >>> allocator.compact()
        [Move(source=5, target=2, size=1)]
        """
        # exercise 10.2: from the first stretch to the last: where does it go, and does it have to move?
        raise Todo("10.2")
        # end
