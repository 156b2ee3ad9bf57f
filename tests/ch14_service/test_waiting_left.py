"""Exercise 14.5, who leaves: judged on a clock that jumps, by what is left behind."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch14_service import admission
from chapters.judge import exercise, expect, expect_equal
from shared.serving.guard.deadline import Deadline
from tests.ch14_service.scenes import STUCK, run, until
from tests.ch14_service.waiters import Plain, outcome, push_out, taken, waits


@exercise("14.5")
def test_whoever_is_pushed_out():
    async def scene():
        which = Plain()
        taken(which)
        waiter, task = waits(which, "a")
        await until(1.0)
        push_out(which, waiter)
        got = await outcome(task)
        expect(
            isinstance(got, admission.Busy),
            because=f"the queue was full, and it was pushed out: granted is done, but with Busy, and this was {got!r}. "
            "self._place(waiter) raises what it was refused with",
        )
        expect_equal(
            (which.num_running, which.num_waiting, which.given_back),
            (1, 0, []),
            because="whoever was pushed out had no place, and waits no more: nothing is to be given back",
        )

    run(scene, because=STUCK)


@exercise("14.5")
def test_pushed_out_and_hung_up_at_once():
    async def scene():
        which = Plain()
        taken(which)
        waiter, task = waits(which, "a")
        await until(1.0)
        push_out(which, waiter)
        task.cancel()
        await outcome(task)
        expect_equal(
            which.given_back,
            [],
            because="pushed out and cancelled in the same moment, it gave back a place that it never had, and soon "
            "more run than may. self._pass_on(waiter) looks whether there is one",
        )
        expect_equal((which.num_running, which.num_waiting), (1, 0), because="the one that runs still runs")

    run(scene, because=STUCK)


@exercise("14.5")
def test_a_caller_who_leaves():
    async def scene():
        which = Plain()
        first = taken(which)
        _, gone = waits(which, "a")
        _, patient = waits(which, "b")
        await until(1.0)
        gone.cancel()
        got = await outcome(gone)
        expect_equal(
            got, "cancelled", because="the caller hung up, and its task was cancelled: that must go on up, as it is"
        )
        expect_equal(
            which.waiting_by_key,
            {"b": 1},
            because="the caller hung up and its request still waits. CancelledError is a "
            "BaseException, and no Exception",
        )
        expect_equal((which.num_running, which.given_back), (1, []), because="it had no place to give back")
        first.release()
        expect(isinstance(await outcome(patient), admission.Place), because="the one behind it gets the place")

    run(scene, because=STUCK)


@exercise("14.5")
def test_who_leaves_as_the_place_is_granted():
    """Granted and cancelled in the same turn of the loop: the task never gets to see its place."""

    async def scene():
        which = Plain()
        first = taken(which)
        _, gone = waits(which, "a", n=1)
        _, patient = waits(which, "b")
        await until(1.0)
        first.release()
        gone.cancel()
        expect_equal(
            await outcome(gone),
            "cancelled",
            because="its caller hung up, so it ends so, though its place was granted in the same moment "
            "(asyncio.wait_for, in Python 3.11, swallows that; asyncio.wait does not)",
        )
        await until(2.0)
        expect(
            patient.done(),
            because="the place was granted, and in the same moment its caller hung up: nobody has it, and it counts as "
            "taken for ever. Whoever leaves looks whether it was granted, and gives it on (self._pass_on)",
        )
        expect_equal(which.num_running, 1, because="only the patient one has a place now")
        expect_equal(
            which.given_back, [1, 1], because="the first's place and the one that was never used came back, once"
        )

    run(scene, because=STUCK)


@exercise("14.5")
def test_n_places_go_back():
    async def scene():
        which = Plain(max_running=4)
        first = taken(which, 4)
        _, gone = waits(which, "a", n=3)
        await until(1.0)
        first.release()
        gone.cancel()
        await outcome(gone)
        expect_equal(which.num_running, 0, because="three places were granted to it, so three go back")
        expect_equal(which.num_waiting, 0, because="nobody waits any more")

    run(scene, because=STUCK)


@exercise("14.5")
def test_granted_at_once():
    async def scene():
        which = Plain()
        waiter, task = waits(which, "a", n=1, deadline=Deadline(0.0))
        which._grant()
        got = await outcome(task)
        held = 1 if isinstance(got, admission.Place) else 0
        expect_equal(
            which.num_running,
            held,
            because="granted in the moment in which the deadline passed: it may take the place or leave it, but what "
            "it leaves has to go back",
        )
        expect_equal(which.num_waiting, 0, because="either way it doesn't wait any more")

    run(scene, because=STUCK)


@exercise("14.5")
@settings(max_examples=40, deadline=None, derandomize=True, report_multiple_bugs=False)
@given(
    places=st.integers(1, 3),
    callers=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 2), st.integers(1, 9), st.integers(0, 4), st.booleans()), max_size=8
    ),
)
def test_the_storm(places, callers):
    """Callers come, are served for a while, run out of time, hang up; in the end every place is free again."""

    async def scene():
        which = Plain(places)

        async def call(at: int, n: int, patience: int, work: int, hangs_up: bool) -> None:
            await until(at)
            waiter, task = waits(which, f"key {n}", n, Deadline(at + patience))
            which._grant()
            if hangs_up:
                await until(at + patience // 2)
                task.cancel()
            got = await outcome(task)
            if isinstance(got, admission.Place):
                expect(
                    which.num_running >= n, because="a place is held that isn't counted: places were given back twice"
                )
                await asyncio.sleep(work)
                got.release()

        await asyncio.gather(*[call(*caller) for caller in callers])
        expect_equal(
            (which.num_running, which.num_waiting),
            (0, 0),
            because=f"{places} places, callers (arrival, n, patience, work, hangs up) {callers}: all are gone, and "
            "some place still counts as taken, or somebody as waiting",
        )

    run(scene, because=STUCK)
