"""Exercise 14.5, who waits and how long: judged on a clock that jumps."""

from chapters.ch14_service import admission
from chapters.judge import exercise, expect, expect_close, expect_equal
from shared.serving.guard.deadline import Deadline, DeadlinePassed
from tests.ch14_service.scenes import STUCK, now, run, survives, until
from tests.ch14_service.waiters import Plain, outcome, taken, waits


@exercise("14.5")
def test_it_waits_until_it_is_granted():
    async def scene():
        which = Plain()
        first = taken(which)
        _, task = waits(which, "a")
        await until(3.0)
        if task.done():
            with survives("nothing had happened by then: no place was free, no deadline had passed, nobody hung up"):
                task.result()
        expect(not task.done(), because="the only place is taken until 3 s: it waits")
        first.release()
        got = await outcome(task)
        expect(isinstance(got, admission.Place), because=f"granted, it returns a Place, and this was {got!r}")
        expect_close(now(), 3.0, because="it goes on at the moment its place is granted", rtol=0, atol=0.01)
        expect_equal(which.num_running, 1, because="whoever grants counts the places; here nothing more is counted")
        expect_equal(got.n, 1, because="the place stands for the waiter's n")
        expect_close(got.since, 3.0, because="the place is held since now", rtol=0, atol=0.01)
        got.release()
        expect_equal(which.num_running, 0, because="released, it's free")

    run(scene, because=STUCK)


@exercise("14.5")
def test_what_is_left_of_the_deadline():
    async def scene():
        which = Plain()
        taken(which)
        await until(7.0)  # something else has taken 7 s of the 10 already
        _, task = waits(which, "a", deadline=Deadline(10.0))
        got = await outcome(task)
        expect(
            isinstance(got, DeadlinePassed),
            because=f"the deadline passed while it waited: DeadlinePassed, and this was {got!r}",
        )
        expect_close(
            now(),
            10.0,
            because="the deadline is a point in time, 10 s, and 7 of them were gone: three are left. If each wait "
            "takes the whole, three waits take three times as long",
            rtol=0,
            atol=0.01,
        )

    run(scene, because="with the deadline passed it waits on: give asyncio.wait what is left as its timeout")


@exercise("14.5")
def test_a_deadline_that_has_passed():
    async def scene():
        which = Plain()
        taken(which)
        await until(20.0)
        _, task = waits(which, "a", deadline=Deadline(10.0))
        got = await outcome(task)
        expect(isinstance(got, DeadlinePassed), because="the deadline passed long ago: DeadlinePassed, at once")
        expect_close(now(), 20.0, because="nothing is left of the deadline, so it doesn't wait", rtol=0, atol=0.01)

    run(scene, because=STUCK)


@exercise("14.5")
def test_whoever_is_too_late_waits_no_more():
    async def scene():
        which = Plain()
        first = taken(which)
        _, late = waits(which, "a", deadline=Deadline(2.0))
        _, patient = waits(which, "b")
        await outcome(late)
        expect_equal(which.given_back, [], because="it had no place, so it has none to give back")
        expect_equal(
            which.waiting_by_key,
            {"b": 1},
            because="its deadline has passed, and it still stands in the queue: it takes somebody's room there, and a "
            "place, once its turn comes, for nobody. self._forget(waiter)",
        )
        first.release()
        expect(isinstance(await outcome(patient), admission.Place), because="the one behind it gets the place")

    run(scene, because=STUCK)


@exercise("14.5")
def test_whoever_is_behind_it_may_fit():
    async def scene():
        which = Plain(max_running=4)
        taken(which)
        waits(which, "a", n=4, deadline=Deadline(2.0))
        _, behind = waits(which, "a", n=1)
        await until(3.0)
        expect(
            behind.done(),
            because="the first of the queue needed four places and gave up; whoever stands behind it needs one, three "
            "are free, and nobody looked. self._forget(waiter) does",
        )
        expect(isinstance(await outcome(behind), admission.Place), because="granted, it returns a Place")

    run(scene, because=STUCK)
