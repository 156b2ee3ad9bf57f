"""The block manager under storms of requests, against contents that say which text each place was computed from."""

import random
from array import array
from dataclasses import dataclass, field
from hashlib import blake2b

import pytest

from shared.inference.block_manager import BlockManager, OutOfBlocks, block_name

Text = tuple[str, tuple[int, ...]]  # the model's version, and all tokens up to a place: what its keys depend on


@dataclass(eq=False)
class Request:
    tokens: list[int]
    version: str
    table: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    done: int = 0  # how many of its tokens are in the pool


class Storm:
    """Requests that come, share, grow, fork and go; `pool` holds for each place the text that it was computed from."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice([1, 2, 4])
        n_blocks = self.random.randint(3, 14)
        self.blocks = BlockManager(n_blocks, self.size, "v0", prefix_caching=self.random.random() < 0.85)
        self.pool: list[list[Text | None]] = [[None] * self.size for _ in range(n_blocks)]
        self.version = "v0"
        self.running: list[Request] = []
        self.seen = {"hits": 0, "copies": 0, "full": 0}

    def prompt(self) -> list[int]:
        """Of a two-block alphabet, so that the same block comes after other beginnings; often of a block's length."""
        halves = [[0] * self.size, [1] * self.size]
        text = sum((self.random.choice(halves) for _ in range(self.random.randint(0, 3))), [])
        return text + [self.random.randint(0, 1) for _ in range(self.random.choice([0, 0, 1, self.size]))] or [0]

    def admit(self) -> None:
        tokens = self.prompt()
        found = self.blocks.match(tokens)
        assert len(found) * self.size < len(tokens), "nothing is left to compute"
        for index, block in enumerate(found):
            for offset in range(self.size):
                want = (self.version, tuple(tokens[: index * self.size + offset + 1]))
                assert self.pool[block][offset] == want, "found a block that was computed from another text"
        need = self.blocks.blocks_for(len(tokens)) - len(found)
        if need + sum(self.blocks.ref_counts[block] == 0 for block in found) > self.blocks.num_free:
            self.seen["full"] += 1
            return
        self.seen["hits"] += len(found)
        table = self.blocks.share(found, asked_tokens=len(tokens)) + self.blocks.take(need)
        sequence = Request(tokens, self.version, table, self.blocks.names_of(found), len(found) * self.size)
        self.running.append(sequence)
        self.compute(sequence)

    def compute(self, sequence: Request) -> None:
        """Whatever is missing is written, and the blocks that are full then get their names."""
        written = sequence.done
        while written < len(sequence.tokens):
            if written % self.size == 0 or written == sequence.done:
                copy = self.blocks.writable(sequence.table, written // self.size)
                if copy is not None:
                    self.pool[copy[1]] = list(self.pool[copy[0]])
                    self.seen["copies"] += 1
            block = sequence.table[written // self.size]
            assert self.blocks.ref_counts[block] == 1, "written although others hold it"
            self.pool[block][written % self.size] = (sequence.version, tuple(sequence.tokens[: written + 1]))
            written += 1
        sequence.done = written
        self.blocks.publish(sequence.table, sequence.tokens, sequence.names, written)

    def grow(self) -> None:
        sequence = self.random.choice(self.running)
        first = sequence.done // self.size
        table = sequence.table
        shared = first < len(table) and self.blocks.ref_counts[table[first]] > 1
        n = self.random.randint(1, 3)
        more = max(self.blocks.blocks_for(sequence.done + n) - len(table), 0)
        if shared + more > self.blocks.num_free:
            with pytest.raises(OutOfBlocks):
                self.blocks.take(self.blocks.num_free + 1)
            self.finish(sequence)
            return
        sequence.tokens = sequence.tokens + [self.random.randint(0, 1) for _ in range(n)]
        table += self.blocks.take(more)
        self.compute(sequence)

    def fork(self) -> None:
        parent = self.random.choice(self.running)
        child = Request(list(parent.tokens), parent.version, names=list(parent.names), done=parent.done)
        child.table = self.blocks.share(parent.table)
        self.running.append(child)

    def finish(self, sequence: Request) -> None:
        self.running.remove(sequence)
        self.blocks.release(sequence.table)
        assert sequence.table == []

    def step(self) -> None:
        kind = self.random.choice(["admit", "admit", "grow", "grow", "fork", "fork", "finish", "version"])
        if kind == "admit" or not self.running:
            self.admit()
        elif kind == "grow":
            self.grow()
        elif kind == "fork":
            self.fork()
        elif kind == "finish":
            self.finish(self.random.choice(self.running))
        elif self.random.random() < 0.1:
            while self.running:
                self.finish(self.running[0])
            self.version = f"v{self.random.randint(0, 2)}"
            self.blocks.set_version(self.version)
        self.check()

    def check(self) -> None:
        self.blocks.check([sequence.table for sequence in self.running])
        for sequence in self.running:
            for place in range(sequence.done):
                want = (sequence.version, tuple(sequence.tokens[: place + 1]))
                assert self.pool[sequence.table[place // self.size]][place % self.size] == want, "overwritten"


def test_storms():
    seen = {"hits": 0, "copies": 0, "full": 0}
    for seed in range(300):
        storm = Storm(seed)
        for _ in range(60):
            storm.step()
        while storm.running:
            storm.finish(storm.running[0])
            storm.check()
        assert storm.blocks.num_free == storm.blocks.num_blocks, f"storm {seed}: blocks were lost"
        assert storm.blocks.hit_tokens <= storm.blocks.asked_tokens
        seen = {what: seen[what] + storm.seen[what] for what in seen}
    assert min(seen.values()) > 200, f"the storms must exercise what they are for: {seen}"


def used() -> tuple[BlockManager, list[int]]:
    blocks = BlockManager(6, 2, "v1")
    table, names = blocks.take(3), []
    blocks.publish(table, [1, 2, 3, 4, 5], names, 5)
    return blocks, table


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b.ref_counts.__setitem__(0, 2),
        lambda b: b.ref_counts.__setitem__(4, 1),
        lambda b: b._free.pop(5),
        lambda b: b._free.__setitem__(1, None),
        lambda b: b._names.__setitem__(0, None),
        lambda b: b._names.__setitem__(0, b"another"),
        lambda b: b._cached.pop(b._names[1]),
        lambda b: b._cached.__setitem__(b"stray", 5),
    ],
)
def test_check_finds_what_is_off(damage):
    blocks, table = used()
    blocks.check([table])
    damage(blocks)
    with pytest.raises(AssertionError):
        blocks.check([table])


def test_check_counts_every_table():
    blocks, table = used()
    other = blocks.share(table[:1])
    blocks.check([table, other])
    with pytest.raises(AssertionError, match="2 holders counted"):
        blocks.check([table])


def test_names_are_those_of_the_formula():
    ids = array("q", [5, 6, 49_151])
    assert block_name(b"x" * 16, list(ids)) == blake2b(b"x" * 16 + ids.tobytes(), digest_size=16).digest()


def test_names_of_what_match_found():
    blocks, table = used()
    found = blocks.match([1, 2, 3, 4, 5])
    assert found == table[:2]
    names = blocks.names_of(found)
    assert len(names) == 2
    assert names[0] == block_name(blocks.root, [1, 2])
    with pytest.raises(ValueError, match=f"block {table[2]} has no name"):
        blocks.names_of(table)


def test_a_new_version_finds_nothing_of_the_old_one():
    blocks, table = used()
    with pytest.raises(RuntimeError, match="3 blocks are held"):  # half of a block would be the old one's
        blocks.set_version("v2")
    blocks.release(table)
    assert len(blocks.match([1, 2, 3, 4, 5])) == 2
    blocks.set_version("v2")
    assert blocks.match([1, 2, 3, 4, 5]) == []
    blocks.set_version("v1")  # rolled back: what is still there is right again
    assert len(blocks.match([1, 2, 3, 4, 5])) == 2
    assert BlockManager(1, 1, "a").root != BlockManager(1, 1, "b").root


def test_hits_are_counted():
    blocks, table = used()
    assert blocks.hit_rate == 0
    prompt = [1, 2, 3, 4, 9, 9]
    shared = blocks.share(blocks.match(prompt), asked_tokens=len(prompt))
    assert (blocks.hit_tokens, blocks.asked_tokens) == (4, 6)
    assert blocks.hit_rate == pytest.approx(4 / 6)
    blocks.share(shared)  # a fork isn't a question
    assert blocks.asked_tokens == 6
    with pytest.raises(AssertionError):
        blocks.check([table])


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0), (-1, 4)])
def test_sizes_are_checked(num_blocks, block_size):
    with pytest.raises(ValueError, match="at least 1"):
        BlockManager(num_blocks, block_size)


@pytest.mark.parametrize(("tokens", "want"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for(tokens, want):
    assert BlockManager(9, 4).blocks_for(tokens) == want


def test_what_makes_no_sense_is_refused_and_changes_nothing():
    blocks, table = used()
    for call, words in (
        (lambda: blocks.take(-1), "-1 blocks asked for"),
        (lambda: blocks.release([*table, -4]), "block -4 is released, and there are 0 to 5"),
        (lambda: blocks.release([*table, 6]), "block 6 is released"),
        (lambda: blocks.writable([4], 0), "block 4 is to be written, and nobody holds it"),
        (lambda: blocks.publish(table, [1, 2, 3], [], 4), "4 tokens computed, of 3"),
        (
            lambda: blocks.publish(table[:1], [1, 2, 3], [], 3),
            "3 tokens computed, of 3 that have room in 1 blocks of 2",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
        blocks.check([table])
        assert blocks.num_free == 3
