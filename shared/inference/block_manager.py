"""Which sequence holds which blocks of the KV pool: reference counts, the prefix cache, and what is evicted when.

A block has room for `block_size` tokens' keys and values, of every layer. This module deals in block numbers only; the
numbers in the blocks are the pool's (`paged_kv_cache`). After Kwon et al. 2023, section 4.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b


class OutOfBlocks(RuntimeError):
    """Fewer blocks are free than were asked for; nothing was taken."""


def block_name(before: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full block: 16 bytes that stand for its tokens and, through `before`, for all the tokens before it.

    before: the name of the block before this one, or for the first block the manager's `root`. The same tokens after
    another beginning have other keys and values, so they must get another name; and the same name in every process.

    >>> first = block_name(b"root", [5, 6])
    >>> len(first), first == block_name(b"root", [5, 6]), first == block_name(b"root", [6, 5])
    (16, True, False)
    >>> block_name(first, [5, 6]) == first  # the same tokens, after another beginning
    False
    """
    # exercise 10.5: hash the name before and the ids together; array("q", ids).tobytes() makes bytes of ids
    return blake2b(before + array("q", token_ids).tobytes(), digest_size=16).digest()
    # end


class BlockManager:
    """Hands out the blocks 0 to num_blocks - 1, and takes them back.

    version: names the model and whatever else decides what is in a block; blocks of one version are never found under
    another. A block that nobody holds keeps its name, and what is in it, until it is handed out again. The free list is
    kept in that order, by `release`: those without a name first, then the least recently used.
    """

    def __init__(self, num_blocks: int, block_size: int, version: str = "", prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks and block_size must be at least 1, not {num_blocks} and {block_size}")
        self.num_blocks, self.block_size, self.prefix_caching = num_blocks, block_size, prefix_caching
        self.ref_counts = [0] * num_blocks
        self.hit_tokens = self.asked_tokens = 0
        self._free = OrderedDict.fromkeys(range(num_blocks))  # an ordered set: the first is handed out next
        self._names: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}  # name -> block
        self.set_version(version)

    def set_version(self, version: str) -> None:
        """Names begin anew: what was computed by another version of the model is not found any more.

        Raises RuntimeError while somebody holds blocks: a sequence that goes on would mix both versions in one block.
        """
        if held := self.num_blocks - self.num_free:
            raise RuntimeError(f"{held} blocks are held; end or preempt who holds them, then change the version")
        self.root = blake2b(version.encode(), digest_size=16).digest()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds. Some of them the prefix cache still finds (`num_free_cached`)."""
        return len(self._free)

    @property
    def num_free_cached(self) -> int:
        """How many of the free blocks the prefix cache can find."""
        return sum(self.ref_counts[block] == 0 for block in self._cached.values())

    def as_bytes(self) -> bytes:
        """One byte for each block: how many hold it (254 and more as 254), 255 if it's free and can be found, 0 if it's
        free and can't."""
        held, names = self.ref_counts, self._names
        return bytes(min(n, 254) if n else 0 if name is None else 255 for n, name in zip(held, names, strict=True))

    @property
    def hit_rate(self) -> float:
        """The share of the tokens asked for that were found in the prefix cache, 0 to 1."""
        return self.hit_tokens / max(self.asked_tokens, 1)

    def blocks_for(self, n_tokens: int) -> int:
        """How many blocks n tokens take."""
        return -(-n_tokens // self.block_size)

    def names_of(self, blocks: Sequence[int]) -> list[bytes]:
        """The names of full blocks, as `match` found them. Raises ValueError for one that has none."""
        names = [self._names[block] for block in blocks]
        if None in names:
            raise ValueError(f"block {blocks[names.index(None)]} has no name: it isn't full, or was handed out again")
        return [name for name in names if name is not None]

    def take(self, n: int) -> list[int]:
        """n free blocks, the first of the free list, each with one holder now. Raises OutOfBlocks, and takes none then.

        A block that is handed out loses its name: what is in it will be overwritten. Raises ValueError for n below 0.

        >>> manager = BlockManager(num_blocks=4, block_size=16)
        >>> manager.take(3), manager.ref_counts, manager.num_free
        ([0, 1, 2], [1, 1, 1, 0], 1)
        """
        if n < 0:
            raise ValueError(f"{n} blocks asked for")
        # exercise 10.3: too few? Else pop n blocks from the front of self._free, forget their names, and count a holder
        if n > len(self._free):
            raise OutOfBlocks(f"{n} blocks asked for, {len(self._free)} of {self.num_blocks} are free")
        taken = []
        for _ in range(n):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self.ref_counts[block] = 1
            taken.append(block)
        return taken
        # end

    def release(self, table: list[int]) -> None:
        """The holder of this table is done with it: one holder less for each block; the table is empty afterwards.

        Blocks that nobody holds any more are free. A named one goes to the end of the free list, one without a name to
        its front, for it's of no use to anyone. The last block is freed first, so that beginnings are kept longest.
        Raises ValueError for a block that nobody holds; those behind it in the table are released then.

        >>> manager = BlockManager(num_blocks=3, block_size=16)
        >>> table = manager.take(2)
        >>> other = manager.share(table[:1])
        >>> manager.release(table)
        >>> table, manager.ref_counts, manager.num_free  # block 0 has another holder
        ([], [1, 0, 0], 2)
        >>> manager.take(2)  # block 1 has no name, so it's handed out before block 2
        [1, 2]
        """
        if strange := [block for block in table if not 0 <= block < self.num_blocks]:
            raise ValueError(f"block {strange[0]} is released, and there are 0 to {self.num_blocks - 1}")
        # exercise 10.4: from the last block to the first: one holder less, and into the free list when none is left
        while table:
            block = table.pop()
            if self.ref_counts[block] < 1:
                raise ValueError(f"block {block} is released, and nobody holds it: was it released before?")
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self._free[block] = None
                if self._names[block] is None:
                    self._free.move_to_end(block, last=False)
        # end

    def match(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks that hold the longest known beginning of these tokens. Nothing is taken yet.

        At least one token is left to compute, even if all are known: nobody kept the last one's logits.

        >>> manager = BlockManager(num_blocks=4, block_size=2)
        >>> manager.publish(manager.take(2), [5, 6, 7, 8], [], n_computed=4)
        >>> manager.match([5, 6, 7, 8, 9]), manager.match([5, 6, 7, 8]), manager.match([7, 8, 9])
        ([0, 1], [0], [])
        """
        # exercise 10.6: block by block, as long as a token is left after it: its name, and the block that has it
        blocks: list[int] = []
        name = self.root
        for start in range(0, len(token_ids) - self.block_size, self.block_size):
            name = block_name(name, token_ids[start : start + self.block_size])
            if name not in self._cached:
                break
            blocks.append(self._cached[name])
        return blocks
        # end

    def share(self, blocks: Sequence[int], asked_tokens: int = 0) -> list[int]:
        """One more holder for each of these blocks; free ones leave the free list, name and content and all.

        asked_tokens: for blocks that `match` found, how many tokens it was asked for, so that hits are counted.
        Returns a new list, the beginning of a table.
        """
        for block in blocks:
            if self.ref_counts[block] == 0:
                del self._free[block]
            self.ref_counts[block] += 1
        if asked_tokens:
            self.asked_tokens += asked_tokens
            self.hit_tokens += len(blocks) * self.block_size
        return list(blocks)

    def publish(self, table: Sequence[int], token_ids: Sequence[int], names: list[bytes], n_computed: int) -> None:
        """Name the blocks that are full by now, so that `match` finds them.

        table, token_ids: a sequence's; n_computed: its first n_computed tokens are in the pool, and only blocks full of
        such tokens get a name. names: the names of the table's first blocks so far; grows with it.
        A name that another block has stays with that one, and so does a block's name.
        Raises ValueError when fewer tokens or blocks are given than are said to be computed.

        >>> manager, names = BlockManager(num_blocks=4, block_size=2), []
        >>> manager.publish(manager.take(2), [5, 6, 7], names, n_computed=3)
        >>> len(names), manager.match([5, 6, 7])  # one block is full
        (1, [0])
        """
        room = min(len(token_ids), len(table) * self.block_size)
        if n_computed > room:
            raise ValueError(
                f"{n_computed} tokens computed, of {len(token_ids)} that have room in {len(table)} blocks of "
                f"{self.block_size}"
            )
        # exercise 10.7: while the next block is full: its name goes into names, and into the index unless it's there
        while self.prefix_caching and (len(names) + 1) * self.block_size <= n_computed:
            start = len(names) * self.block_size
            block = table[len(names)]
            name = block_name(names[-1] if names else self.root, token_ids[start : start + self.block_size])
            names.append(name)
            if name not in self._cached and self._names[block] is None:
                self._cached[name], self._names[block] = block, name
        # end

    def writable(self, table: list[int], index: int) -> tuple[int, int] | None:
        """Copy on write: after this, nobody else holds table[index].

        Returns None if that was so before, else (source, target): a new block stands in the table, and the caller has
        to copy the content. The source keeps its other holders. Raises OutOfBlocks, and ValueError for a block that
        nobody holds; nothing is changed then.

        >>> manager = BlockManager(num_blocks=3, block_size=16)
        >>> table = manager.take(1)
        >>> other = manager.share(table)
        >>> manager.writable(table, 0), table, other
        ((0, 1), [1], [0])
        >>> manager.writable(other, 0)  # None: nobody else holds block 0 any more
        """
        if self.ref_counts[table[index]] < 1:
            raise ValueError(f"block {table[index]} is to be written, and nobody holds it")
        # exercise 10.8: one holder: nothing to do. Else a free block takes its place in this table
        source = table[index]
        if self.ref_counts[source] == 1:
            return None
        [target] = self.take(1)
        self.ref_counts[source] -= 1
        table[index] = target
        return source, target
        # end

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Hold the books against the tables of all who hold blocks. Raises AssertionError, and says what is off."""
        holders = Counter(block for table in tables for block in table)
        for block, count in enumerate(self.ref_counts):
            assert count == holders[block], f"block {block}: {count} holders counted, {holders[block]} tables name it"
            assert (block in self._free) == (count == 0), f"block {block}: {count} holders, free: {block in self._free}"
            name = self._names[block]
            assert name is None or self._cached.get(name) == block, f"block {block} isn't found by its name"
        for name, block in self._cached.items():
            assert self._names[block] == name, f"a name leads to block {block}, which has another or none"

    def _forget(self, block: int) -> None:
        """The block loses its name, if it has one, and isn't found any more."""
        name = self._names[block]
        if name is not None:
            del self._cached[name]
            self._names[block] = None
