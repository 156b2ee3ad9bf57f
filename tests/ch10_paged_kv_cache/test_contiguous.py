"""Exercises 10.1 and 10.2: judged by an array of places that anybody can read, and by memory that is really copied."""

import random
from collections.abc import Sequence
from numbers import Integral

from chapters.ch10_paged_kv_cache import contiguous
from chapters.judge import NO_RESULT, Rejected, crash_means, exercise, expect, expect_equal


def allocator(capacity: int, stretches: dict[str, tuple[int, int]]) -> contiguous.ContiguousAllocator:
    """One that holds these already. stretches: owner -> (start, size), in the order in which they were given out."""
    made = contiguous.ContiguousAllocator(capacity)
    for owner, (start, size) in stretches.items():
        made.starts[owner], made.sizes[owner] = start, size
    return made


HOLE = "is the hole itself as large as what was asked for, or are all holes together?"
PACKED = "each stretch begins where the one before it ends, so the position grows by every size, moved or not"


def places(made: contiguous.ContiguousAllocator, cause: str = HOLE) -> list[str]:
    """Who holds each place, "" for nobody. Rejects stretches that overlap or reach outside; cause: a likely one."""
    held = [""] * made.capacity
    for owner, start in made.starts.items():
        for place in range(start, start + made.sizes[owner]):
            expect(
                0 <= place < made.capacity,
                because=f"{owner!r} was given place {place} of {made.capacity}: outside; {cause}",
            )
            expect(
                held[place] == "",
                because=f"place {place} was given to {owner!r} and belongs to {held[place]!r} already: {cause}",
            )
            held[place] = owner
    return held


# 10.1 allocate


def allocate(made: contiguous.ContiguousAllocator, owner: str, size: int) -> int:
    got = made.allocate(owner, size)
    expect(got is not None, because=NO_RESULT + "; where no hole is large enough, NoHole is raised")
    expect(isinstance(got, Integral), because=f"the start is wanted, a place's number; yours is a {type(got).__name__}")
    return got


@exercise("10.1")
def test_an_empty_memory():
    made = allocator(10, {})
    expect_equal(allocate(made, "a", 4), 0, because="all places are free: the first stretch begins at place 0")
    expect_equal(
        (made.starts, made.sizes),
        ({"a": 0}, {"a": 4}),
        because="who holds what must be noted in self.starts and self.sizes, or the same places are given out again",
    )


@exercise("10.1")
def test_a_hole_between_two():
    made = allocator(7, {"a": (0, 1), "b": (6, 1)})  # a hole: 1 to 5
    try:
        allocate(made, "c", 2)
    except contiguous.NoHole as error:
        because = "places 1 to 5 are free, between 'a' and 'b': a hole isn't only what lies behind the last stretch"
        raise Rejected(str(error), because) from None


@exercise("10.1")
def test_a_hole_of_just_that_size():
    made = allocator(6, {"a": (0, 2), "b": (5, 1)})  # a hole: 2 to 4
    try:
        got = allocate(made, "c", 3)
    except contiguous.NoHole as error:
        raise Rejected(str(error), "a hole of three has room for three: compare with >=, not with >") from None
    expect_equal(got, 2, because="places 2 to 4 are free, three of them, and three were asked for")


@exercise("10.1")
def test_first_fit_and_neither_best_nor_last():
    stretches = {"a": (0, 1), "b": (5, 1), "c": (8, 1), "d": (15, 1)}  # holes: 1-4 (4), 6-7 (2), 9-14 (6)
    got = allocate(allocator(16, stretches), "e", 2)
    causes = {
        6: "place 6 is the hole that fits best; first fit takes the first one that is large enough, without comparing",
        9: "place 9 is the largest hole, or the last that fits; first fit stops at the first one that is large enough",
        3: "place 3 is the end of the right hole; begin at its beginning, so that what is left stays in one piece",
    }
    expect_equal(got, 1, because=causes.get(got, "the first hole with room for two begins at place 1"))


@exercise("10.1")
def test_small_holes_are_passed_over():
    made = allocator(12, {"a": (1, 2), "b": (5, 2)})  # holes: 0 (1), 3-4 (2), 7-11 (5)
    try:
        got = allocate(made, "c", 4)
    except contiguous.NoHole as error:
        raise Rejected(str(error), "the first hole is too small, and a later one isn't: go on to the next") from None
    expect_equal(made.sizes.get("c"), 4, because="self.sizes says how many places 'c' has, not where they end")
    places(made)
    expect_equal(got, 7, because="the holes at 0 and 3 are too small for four; the one at 7 has five places")


def refusal(made: contiguous.ContiguousAllocator, size: int, because: str) -> contiguous.NoHole:
    with crash_means(because):
        try:
            got = made.allocate("new", size)
        except contiguous.NoHole as error:
            return error
    places(made)
    raise Rejected(f"got {got}", because)


@exercise("10.1")
def test_no_hole_is_large_enough():
    made = allocator(10, {"a": (2, 2), "b": (6, 2)})  # holes: 0-1, 4-5, 8-9
    because = "six places are free, but no three of them lie together: raise NoHole(size, largest hole, all holes)"
    error = refusal(made, 3, because)
    expect_equal(
        (made.starts, made.sizes),
        ({"a": 2, "b": 6}, {"a": 2, "b": 2}),
        because="when nothing fits, nothing may be noted: first look, then write",
    )
    expect_equal(
        (error.size, error.largest, error.free),
        (3, 2, 6),
        because="NoHole is told what was asked for, the largest hole, and what all holes hold together",
    )


@exercise("10.1")
def test_a_full_memory():
    because = "a full memory has no holes at all: raise NoHole all the same, and the largest hole is 0"
    error = refusal(allocator(3, {"a": (0, 3)}), 1, because)
    expect_equal((error.largest, error.free), (0, 0), because=because)


@exercise("10.1")
def test_against_an_array_of_places():
    rng = random.Random(0)
    for _ in range(30):
        made, owners = allocator(24, {}), []
        for number in range(40):
            if owners and rng.random() < 0.45:
                made.free(owners.pop(rng.randrange(len(owners))))
                continue
            size, held = rng.randint(1, 7), places(made)
            fits = [s for s in range(24 - size + 1) if not any(held[s : s + size])]
            try:
                got = made.allocate(str(number), size)
            except contiguous.NoHole:
                got = None
            want = min(fits, default=None)
            expect(got == want, because=f"{size} places, and {held} are held: first fit is {want}, you say {got}")
            if got is not None:
                owners.append(str(number))


# 10.2 compact


def compact(made: contiguous.ContiguousAllocator) -> list[contiguous.Move]:
    got = made.compact()
    expect(got is not None, because=NO_RESULT + "; nothing to copy is an empty list")
    expect(
        isinstance(got, Sequence) and all(isinstance(move, contiguous.Move) for move in got),
        because="a list of Move(source, target, size) is wanted",
    )
    return list(got)


def copied(memory: list[str], moves: list[contiguous.Move]) -> list[str]:
    """The memory after these copies, one after the other, each as memmove does it."""
    for move in moves:
        memory[move.target : move.target + move.size] = memory[move.source : move.source + move.size]
    return memory


@exercise("10.2")
def test_one_hole_in_the_middle():
    made = allocator(10, {"a": (0, 2), "c": (5, 1)})
    moves = compact(made)
    expect(
        contiguous.Move(5, 0, 1) not in moves,
        because="'c' would lie on 'a', which stays: the position grows by the size of every stretch, moved or not",
    )
    expect(
        contiguous.Move(2, 2, 1) not in moves,
        because="source is where 'c' lay before, 5: self.starts was changed before the Move was made",
    )
    expect(
        not any(move.size == 0 or move.source == move.target for move in moves),
        because="'a' is in its place already: copying it onto itself costs as much as any copy, and does nothing",
    )
    expect(
        moves != [contiguous.Move(2, 5, 1)],
        because="source is where it lies now, target where it goes: the two are swapped",
    )
    expect_equal(moves, [contiguous.Move(5, 2, 1)], because="'c' moves from place 5 to place 2, just behind 'a'")


@exercise("10.2")
def test_the_starts_are_noted():
    made = allocator(10, {"a": (0, 2), "c": (5, 1)})
    compact(made)
    expect_equal(made.starts, {"a": 0, "c": 2}, because="self.starts must say where the stretches lie after the copies")
    expect_equal(made.sizes, {"a": 2, "c": 1}, because="sizes don't change")


@exercise("10.2")
def test_one_hole_is_left():
    made = allocator(20, {"a": (3, 4), "b": (8, 2), "c": (15, 5)})
    compact(made)
    held = places(made, PACKED)
    expect(
        all(held[:11]) and not any(held[11:]),
        because=f"one hole is left, at the end, as large as all holes together; places now: {held}",
    )


@exercise("10.2")
def test_the_order_is_that_of_the_places():
    made = allocator(12, {"late": (8, 3), "early": (1, 2)})  # given out in the other order
    moves = compact(made)
    expect_equal(
        made.starts,
        {"late": 2, "early": 0},
        because="stretches keep the order in which they lie, not that in which they were given out: self.in_order()",
    )
    expect_equal(
        moves,
        [contiguous.Move(1, 0, 2), contiguous.Move(8, 2, 3)],
        because="the one that lies first is copied first",
    )


@exercise("10.2")
def test_no_copy_overwrites_what_is_still_needed():
    made = allocator(12, {"a": (2, 4), "b": (6, 3), "c": (10, 2)})
    memory = ["", "", "a0", "a1", "a2", "a3", "b0", "b1", "b2", "", "c0", "c1"]
    after = copied(memory, compact(made))
    expect_equal(
        after[:9],
        ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "c0", "c1"],
        because="copied in the order of your list, one stretch overwrote another that was still to be copied: begin "
        "with the first, for it moves into a hole",
    )


@exercise("10.2")
def test_what_is_packed_already_costs_nothing():
    made = allocator(9, {"a": (0, 2), "b": (2, 3), "c": (5, 4)})
    expect_equal(compact(made), [], because="nothing has to move: no copies")
    expect_equal(compact(allocator(9, {})), [], because="an empty memory needs no copies")


@exercise("10.2")
def test_the_cost_is_what_lies_behind_the_first_hole():
    made = allocator(30, {"a": (0, 10), "b": (11, 5), "c": (20, 4), "d": (26, 4)})
    moves = compact(made)
    expect_equal(
        sum(move.size for move in moves),
        13,
        because="everything behind the first hole is copied, once: 5 + 4 + 4; what lies before it stays",
    )


@exercise("10.2")
def test_random_memories_keep_their_contents():
    rng = random.Random(1)
    for _ in range(50):
        stretches, memory, position = {}, [], 0
        for number in range(rng.randint(0, 6)):
            gap, size = rng.choice([0, 0, 1, 3]), rng.randint(1, 4)
            memory += ["."] * gap + [f"{number}:{i}" for i in range(size)]
            stretches[str(number)] = (position + gap, size)
            position += gap + size
        names = list(stretches)
        rng.shuffle(names)
        made = allocator(position + 3, {name: stretches[name] for name in names})
        after = copied(memory + ["."] * 3, compact(made))
        places(made, PACKED)
        for name, (_, size) in stretches.items():
            start = made.starts[name]
            expect_equal(
                after[start : start + size],
                [f"{name}:{i}" for i in range(size)],
                because="after the copies each owner must find its own contents where self.starts says",
            )
        expect(len(made.holes()) == 1, because="one hole is left, at the end")
