"""Exercise 14.3: judged on a clock that jumps, with turns and waiting played by the test."""

from chapters.ch14_service import admission
from chapters.judge import exercise, expect, expect_close, expect_equal
from shared.serving.guard.deadline import Deadline
from tests.ch14_service.scenes import LATER, STUCK, now, run, survives


class Played(admission.Admission):
    """Turns and waiting are the test's: who is queued stays queued, and a waiter that waits gets "a place later"."""

    def __init__(self, max_running: int = 2, max_waiting: int = 4, max_waiting_per_key: int = 3) -> None:
        super().__init__(max_running, max_waiting, max_waiting_per_key, now)
        self.waited: list[tuple[admission.Waiter, Deadline]] = []

    def _grant(self) -> None:
        pass

    async def _wait(self, waiter, deadline):
        self.waited.append((waiter, deadline))
        return "a place later"


ROOM = "a place is free and nobody waits, or there is room to wait: the request isn't refused"


async def acquire(which: Played, key: str = "a", n: int = 1, deadline: Deadline = LATER, because=ROOM, **named):
    with survives(because):
        got = await which.acquire(key, deadline, n, **named)
    expect(got is not None, because="acquire returns the place: that of self._take, or what self._wait returned")
    return got


async def refused(which: Played, key: str, because: str, **named) -> admission.Busy:
    with survives("whoever may not wait is refused with Busy; nothing else", admission.Busy):
        try:
            await which.acquire(key, LATER, **named)
        except admission.Busy as error:
            return error
    expect(False, because=because)
    raise AssertionError


@exercise("14.3")
def test_a_free_place_is_given_at_once():
    async def scene():
        which = Played()
        place = await acquire(which)
        expect(not which.waited, because="two places are free and nobody waits: no waiting, the place at once")
        expect(isinstance(place, admission.Place), because="a place is what self._take(n) returns")
        expect_equal(which.num_running, 1, because="one place is taken, by self._take, once")
        await acquire(which, key="b")
        expect_equal(which.num_running, 2, because="the second of two places was free as well")
        expect_equal(which.num_waiting, 0, because="whoever has a place waits for none")

    run(scene, because=STUCK)


@exercise("14.3")
def test_else_it_waits():
    async def scene():
        which = Played()
        await acquire(which)
        await acquire(which)
        deadline = Deadline(7.0)
        got = await acquire(which, key="b", deadline=deadline)
        expect_equal(len(which.waited), 1, because="no place is free: it waits, once, by self._wait")
        waiter, until_when = which.waited[0]
        expect(
            until_when is deadline or until_when == deadline,
            because="the deadline is the request's own and goes on to self._wait as it is: a new one would begin anew",
        )
        expect_equal((waiter.key, waiter.n), ("b", 1), because="the waiter carries the request's key and its n")
        expect_equal(
            which.waiting_by_key,
            {"b": 1},
            because="who waits stands in its key's queue (self._enqueue), once, or nobody ever grants it anything",
        )
        expect_equal(got, "a place later", because="the place is what self._wait returns: return it")
        expect_equal(
            which.num_running,
            2,
            because="whoever grants a place counts it; counted here once more, places get fewer with each request",
        )

    run(scene, because=STUCK)


@exercise("14.3")
def test_n_places():
    async def scene():
        which = Played(max_running=4)
        place = await acquire(which, n=3)
        expect_equal(which.num_running, 3, because="three answers take three places")
        expect_equal(place.n, 3, because="the place knows how many it stands for, to give back as many")
        await acquire(which, n=2)
        expect_equal(
            (which.num_running, which.num_waiting),
            (3, 1),
            because="three of four are taken: two more don't fit, and wait",
        )
        expect_equal(which.waited[0][0].n, 2, because="whoever waits, waits for its two places")
        alone = Played(max_running=2)
        await acquire(alone, n=5)
        expect_equal(
            alone.num_running,
            5,
            because="five are more than there ever are; with nobody else it gets them (self._fits)",
        )

    run(scene, because=STUCK)


@exercise("14.3")
def test_nobody_is_overtaken():
    async def scene():
        which = Played(max_running=4)
        await acquire(which, n=3)
        await acquire(which, key="large", n=4)
        await acquire(which, key="small", n=1)
        expect_equal(
            (which.num_running, which.num_waiting),
            (3, 2),
            because="one place is free, but somebody waits for four already. If small ones slip past, the large one "
            "waits as long as small ones come",
        )

    run(scene, because=STUCK)


@exercise("14.3")
def test_the_queue_has_a_bound():
    async def scene():
        which = Played(max_waiting=4, max_waiting_per_key=3)
        await acquire(which, n=2)
        for k in range(4):
            may = f"{k} of 4 wait, so one more may: max_waiting is how many may wait"
            await acquire(which, key=f"key {k}", because=may)
        which._held_s = 8.0
        error = await refused(
            which, "the fifth", "four of four wait already, and one more was let in to wait: a queue without a bound "
            "grows until the last in it has given up before its turn, and is computed for nobody"
        )  # fmt: skip
        expect_close(
            error.retry_after_s,
            which.retry_after(),
            because="Busy says after how long to come back: self.retry_after(), from how long places are held",
        )
        expect_equal(which.num_waiting, 4, because="whoever is refused leaves nothing in the queue")

    run(scene, because=STUCK)


@exercise("14.3")
def test_each_key_has_a_bound():
    async def scene():
        which = Played(max_waiting=100, max_waiting_per_key=3)
        await acquire(which, n=2)
        for k in range(3):
            await acquire(which, key="greedy", because=f"{k} of this key's 3 wait, so one more may")
        which._held_s = 8.0
        error = await refused(
            which, "greedy", "three of this key wait, which is all it may have waiting: without a bound for each key, "
            "one caller fills the whole queue, and all others are refused"
        )  # fmt: skip
        expect_close(
            error.retry_after_s,
            which.retry_after(),
            because="this Busy, too, says after how long to come back: self.retry_after()",
        )
        own = "the bound is each key's own: others have nothing to do with the greedy one's queue"
        await acquire(which, key="modest", because=own)
        expect_equal(
            which.waiting_by_key,
            {"greedy": 3, "modest": 1},
            because="the queue has room for a hundred, so nobody had to leave it for the newcomer: push out only when "
            "it's full",
        )

    run(scene, because=STUCK)


@exercise("14.3")
def test_the_bounds_are_in_requests():
    async def scene():
        which = Played(max_waiting=3, max_waiting_per_key=3)
        await acquire(which, n=2)
        counted = "requests of n=2 wait, and three may: the bounds are in requests, and not in places"
        for k in range(3):
            await acquire(which, key="a", n=2, because=f"{k} {counted}")

    run(scene, because=STUCK)


@exercise("14.3")
def test_a_key_may_have_a_bound_of_its_own():
    async def scene():
        which = Played(max_waiting=100, max_waiting_per_key=1)
        await acquire(which, n=2)
        for _ in range(2):
            own = "this key may have two waiting: max_waiting, when given, counts instead"
            await acquire(which, key="a", max_waiting=2, because=own)
        await refused(which, "a", "two of this key wait, and that is its own bound", max_waiting=2)
        await refused(
            which, "b", "this key's own bound is 0: none of it may wait. 0 is a number, and not a missing one: ask "
            "whether it `is None`", max_waiting=0
        )  # fmt: skip

    run(scene, because=STUCK)


@exercise("14.3")
def test_a_full_queue_has_room_for_a_modest_key():
    async def scene():
        which = Played(max_waiting=4, max_waiting_per_key=4)
        await acquire(which, n=2)
        for _ in range(4):
            await acquire(which, key="greedy")
        greedy = [waiter for waiter, _ in which.waited]
        gives_way = "four of one key fill the queue. Somebody of another key comes, and the longest gives way"
        await acquire(which, key="modest", because=gives_way)
        expect_equal(
            which.waiting_by_key,
            {"greedy": 3, "modest": 1},
            because="the queue is full of one key, whose last waiter gives way (self._push_out): the modest one waits",
        )
        expect(
            isinstance(greedy[-1].granted.exception(), admission.Busy) and not greedy[0].granted.done(),
            because="whoever came last of the greedy key is refused, and the others still wait",
        )

    run(scene, because=STUCK)


@exercise("14.3")
def test_nobody_is_pushed_out_for_nothing():
    async def scene():
        which = Played(max_waiting=4, max_waiting_per_key=4)
        await acquire(which, n=2)
        for _ in range(4):
            await acquire(which, key="greedy")
        await refused(which, "none", "a key that may have none waiting", max_waiting=0)
        expect_equal(
            which.num_waiting,
            4,
            because="the newcomer's key may have none waiting, so it's refused, and somebody else had to "
            "leave the queue for nothing: its own bound comes first",
        )

    run(scene, because=STUCK)


@exercise("14.3")
def test_a_free_place_needs_no_queue():
    async def scene():
        which = Played(max_waiting=0, max_waiting_per_key=0)
        free = "a place is free, and whoever gets it needn't wait: bounds on waiting don't matter"
        await acquire(which, because=free)
        await refused(which, "a", "no place is free, and nobody may wait: Busy", n=2)

    run(scene, because=STUCK)
