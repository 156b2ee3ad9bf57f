"""Exercise 14.4: judged by who comes up, one free place after the other."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch14_service import admission
from chapters.judge import exercise, expect, expect_equal
from tests.ch14_service.scenes import STUCK, now, run, survives


def queued(max_running: int, *entries: tuple[str, int], running: int = 0) -> tuple[admission.Admission, list]:
    """So many run, and these wait, in order of arrival: (name, n); a name's first letter is its key."""
    which = admission.Admission(max_running, 1000, 1000, now)
    which.num_running = running
    waiters = []
    for name, n in entries:
        waiter = admission.Waiter(name[0], n)
        waiters.append((name, waiter))
        which._enqueue(waiter)
    return which, waiters


def grant(which: admission.Admission) -> None:
    with survives("places can be given out whoever waits, and nobody is granted twice"):
        which._grant()


def granted(waiters: list) -> set[str]:
    done = {name: waiter.granted for name, waiter in waiters if waiter.granted.done()}
    for name, future in done.items():
        expect(
            not future.cancelled() and future.exception() is None,
            because=f"{name}'s turn came, and `granted` says that it has no place: it gets set_result(None)",
        )
    return set(done)


def order(which: admission.Admission, waiters: list) -> list[str]:
    """Release a place at a time: who comes up, in order."""
    seen: list[str] = []
    for _ in range(len(waiters) + 2):
        grant(which)
        new = sorted(granted(waiters) - set(seen))
        seen += new
        which.num_running -= sum(waiter.n for name, waiter in waiters if name in new)
    return seen


@exercise("14.4")
def test_the_free_places_are_given_out():
    async def scene():
        which, waiters = queued(3, ("a1", 1), ("b1", 1), ("c1", 1), ("d1", 1), running=1)
        grant(which)
        expect(granted(waiters), because="two places are free and four wait, and nobody was granted anything")
        expect_equal(
            granted(waiters), {"a1", "b1"}, because="two places are free: the first two get them, both in one call"
        )
        expect_equal(which.num_running, 3, because="whoever is granted counts as running from then on, with its n")
        expect_equal(which.waiting_by_key, {"c": 1, "d": 1}, because="whoever is granted waits no more")
        grant(which)
        expect_equal(granted(waiters), {"a1", "b1"}, because="all three places are taken, so nobody else comes up")

    run(scene, because=STUCK)


@exercise("14.4")
def test_within_a_key_first_come_first_served():
    async def scene():
        which, waiters = queued(1, ("a1", 1), ("a2", 1), ("a3", 1))
        expect_equal(
            order(which, waiters),
            ["a1", "a2", "a3"],
            because="of one key the first that came is the first that is served: popleft",
        )

    run(scene, because=STUCK)


@exercise("14.4")
def test_nobody_overtakes_the_next():
    async def scene():
        which, waiters = queued(4, ("a1", 4), ("b1", 1), running=1)
        grant(which)
        expect_equal(
            granted(waiters),
            set(),
            because="a is next and needs four; three are free. Nobody overtakes it, not even one who would fit: small "
            "ones would keep it waiting for ever",
        )
        expect_equal(which.waiting_by_key, {"a": 1, "b": 1}, because="nothing was granted, so all still wait")
        expect_equal(next(iter(which.waiting_by_key)), "a", because="a is still the next: its turn isn't over")
        which.num_running = 0
        grant(which)
        expect_equal(which.num_running, 4, because="it took four places: its n counts, and not one")
        expect_equal(
            granted(waiters), {"a1"}, because="now all four are free, and a gets them; then none is left for b"
        )
        which, waiters = queued(2, ("a1", 5))
        grant(which)
        expect_equal(
            granted(waiters), {"a1"}, because="it needs more than there are, and nobody runs: self._fits(n) lets it in"
        )

    run(scene, because=STUCK)


@exercise("14.4")
def test_keys_take_turns():
    async def scene():
        greedy = [(f"a{k}", 1) for k in range(1, 6)]
        which, waiters = queued(1, *greedy, ("b1", 1))
        got = order(which, waiters)
        because = (
            "keys take turns: the first of a, then b's, then the rest of a. First come, first served lets a caller "
        )
        because += "with a thousand requests keep everybody else waiting for all of them"
        if got[:2] == ["a1", "a2"]:
            expect(False, because=because)
        expect_equal(got, ["a1", "b1", "a2", "a3", "a4", "a5"], because=because)
        which, waiters = queued(1, ("a1", 1), ("a2", 1), ("a3", 1), ("b1", 1), ("b2", 1), ("c1", 1))
        expect_equal(
            order(which, waiters),
            ["a1", "b1", "c1", "a2", "b2", "a3"],
            because="after its turn a key goes to the end: a, b, c, and again a, b; then a is alone",
        )

    run(scene, because=STUCK)


@exercise("14.4")
def test_the_turn_is_remembered():
    async def scene():
        which, waiters = queued(1, ("a1", 1), ("a2", 1), ("b1", 1), ("c1", 1))
        grant(which)
        which.num_running = 0
        late = admission.Waiter("d", 1)
        which._enqueue(late)
        grant(which)
        expect_equal(
            granted(waiters),
            {"a1", "b1"},
            because="a had its turn in the call before, so now it's b's: the order of the keys is kept between calls",
        )
        which.num_running = 0
        grant(which)
        which.num_running = 0
        grant(which)
        expect(
            granted(waiters) == {"a1", "b1", "c1", "a2"} and not late.granted.done(),
            because="then c, then a, which went to the end before d came, and then d",
        )

    run(scene, because=STUCK)


@exercise("14.4")
def test_a_key_without_anybody_is_forgotten():
    async def scene():
        which, waiters = queued(2, ("a1", 1), ("b1", 1))
        grant(which)
        expect_equal(
            which.waiting_by_key,
            {},
            because="nobody of a and b waits any more, and their keys are still there: with every caller that ever "
            "came the books get longer, and whoever comes next isn't served at once, for somebody seems to wait",
        )
        grant(which)
        expect_equal(which.num_running, 2, because="with nobody waiting nothing happens")

    run(scene, because=STUCK)


@exercise("14.4")
@settings(max_examples=40, deadline=None, derandomize=True, report_multiple_bugs=False)
@given(places=st.integers(1, 4), arrivals=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=10))
def test_like_a_table_of_turns(places, arrivals):
    """Against lists that are rewritten after every grant."""

    async def scene():
        entries = [(f"{key}{k:02d}", n) for k, (key, n) in enumerate(arrivals)]
        which, waiters = queued(places, *entries)
        keys = list(dict.fromkeys(name[0] for name, _ in entries))
        rows = {key: deque(entry for entry in entries if entry[0][0] == key) for key in keys}
        running: list[int] = []
        for _ in range(len(entries) + 1):
            want: set[str] = set()
            while keys and (not running or sum(running) + rows[keys[0]][0][1] <= places):
                key = keys.pop(0)
                name, n = rows[key].popleft()
                running.append(n)
                want.add(name)
                keys += [key] if rows[key] else []
            before = granted(waiters)
            grant(which)
            expect_equal(
                sorted(granted(waiters) - before),
                sorted(want),
                because=f"{places} places, arrivals {entries}, by key's first letter: after {sorted(before)} others "
                "come up",
            )
            if running:
                which.num_running -= running.pop(0)

    run(scene, because=STUCK)
