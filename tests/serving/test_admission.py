"""Who is let in, and who is told to come later and when: the token bucket and admission, on a clock that jumps."""

import asyncio
import random

import pytest

from shared.inference.virtual_time import run_virtual
from shared.serving.guard.admission import Admission, Busy, Place
from shared.serving.guard.deadline import Deadline, DeadlinePassed
from shared.serving.guard.token_bucket import TokenBucket
from tests.serving.simulated import now


def test_what_was_not_used_goes_back():
    bucket = TokenBucket(1.0, 10.0, 0.0)
    assert bucket.take(8, 0.0) == 0.0
    bucket.give_back(5)
    assert bucket.remaining(0.0) == 7.0
    bucket.give_back(100)
    assert bucket.remaining(0.0) == 10.0  # never above the burst


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (1, float("inf"))])
def test_a_bucket_needs_a_rate_and_a_burst(rate, burst):
    with pytest.raises(ValueError, match="rate and burst"):
        TokenBucket(rate, burst, 0.0)


@pytest.mark.parametrize("n", [-1, float("nan")])
def test_tokens_are_never_minted(n):
    bucket = TokenBucket(1.0, 10.0, 0.0)
    for call in (lambda: bucket.take(n, 0.0), lambda: bucket.give_back(n)):
        with pytest.raises(ValueError, match="number of tokens"):
            call()
    assert bucket.remaining(0.0) == 10.0


def test_a_place_is_released_once():
    async def scene():
        admission = Admission(2, 0, 0, now)
        first, second = await admission.acquire("a", Deadline(9.0)), await admission.acquire("a", Deadline(9.0))
        first.release()
        first.release()
        assert admission.num_running == 1
        second.release()
        assert admission.num_running == 0

    run_virtual(scene())


def test_retry_after_follows_how_long_places_are_held():
    async def scene():
        admission = Admission(1, 9, 9, now)
        for _ in range(60):
            place = await admission.acquire("a", Deadline(10_000.0))
            await asyncio.sleep(10.0)
            place.release()
        held = await admission.acquire("a", Deadline(10_000.0))
        tasks = [asyncio.create_task(admission.acquire("a", Deadline(10_000.0))) for _ in range(3)]
        await asyncio.sleep(0)
        assert admission.retry_after() == pytest.approx(4 * 10.0, rel=0.02)  # the one that runs, and three
        held.release()
        for task in tasks:
            task.cancel()

    run_virtual(scene())


def test_retry_after_counts_places_and_not_what_was_never_held():
    """Three who wait for all eight places take four rounds; and whoever hangs up as it's granted held nothing."""

    async def scene():
        admission = Admission(8, 9, 9, now, held_s=10.0)
        held = await admission.acquire("a", Deadline(100.0), 8)
        tasks = [asyncio.create_task(admission.acquire("a", Deadline(100.0), 8)) for _ in range(3)]
        await asyncio.sleep(20.0)
        assert admission.retry_after() == 40.0
        held.release()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert (admission.num_running, admission.num_waiting) == (0, 0)
        assert admission.expected_s() == pytest.approx(20.0)

    run_virtual(scene())


@pytest.mark.parametrize("n", [0, -3, 1.5])
def test_a_request_takes_a_place_at_least(n):
    async def scene():
        admission = Admission(2, 0, 0, now)
        with pytest.raises(ValueError, match="n must be"):
            await admission.acquire("a", Deadline(9.0), n)
        assert admission.num_running == 0

    run_virtual(scene())


@pytest.mark.parametrize("bounds", [(0, 1, 1), (1, -1, 1), (1, 1, -1), (1.5, 1, 1), (float("nan"), 1, 1)])
def test_an_admission_needs_whole_bounds(bounds):
    with pytest.raises(ValueError, match="max_running must be a whole number"):
        Admission(*bounds, now)


def test_the_longest_queue_gives_way_when_the_queue_is_full():
    """Nobody is ever kept out by those who have two more waiting, and nobody is pushed out for one who has as many."""

    async def scene():
        admission = Admission(1, 6, 6, now)
        held = await admission.acquire("a", Deadline(100.0))
        tasks = [asyncio.create_task(admission.acquire("greedy", Deadline(100.0))) for _ in range(6)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(admission.acquire("modest", Deadline(100.0))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert admission.waiting_by_key == {"greedy": 3, "modest": 3}
        with pytest.raises(Busy, match="6 requests wait"):
            await admission.acquire("modest", Deadline(100.0))
        await asyncio.sleep(1.0)
        refused = [task for task in tasks if task.done()]
        assert refused == tasks[3:6]  # those of the greedy key that came last
        assert all(isinstance(task.exception(), Busy) for task in refused)
        held.release()
        order = []
        while waiting := [task for task in tasks if task not in refused and task not in order]:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (done,) = [task for task in waiting if task.done()]
            order.append(done)
            done.result().release()
        assert [tasks.index(task) for task in order] == [0, 6, 1, 7, 2, 8]
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    run_virtual(scene())


def test_pushed_out_and_cancelled_at_once_gives_nothing_back():
    async def scene():
        admission = Admission(1, 2, 2, now)
        held = await admission.acquire("a", Deadline(100.0))
        greedy = [asyncio.create_task(admission.acquire("greedy", Deadline(100.0))) for _ in range(2)]
        await asyncio.sleep(0)
        modest = asyncio.create_task(admission.acquire("modest", Deadline(100.0)))
        greedy[1].cancel()
        await asyncio.sleep(1.0)
        assert admission.num_running == 1
        held.release()
        (await greedy[0]).release()
        (await modest).release()
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    run_virtual(scene())


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_of_callers(seed):
    """Whoever comes, leaves or is refused: never too many run, keys take turns, and in the end nobody is left over."""
    rng = random.Random(seed)

    async def scene():
        admission = Admission(rng.randint(1, 4), rng.randint(0, 6), rng.randint(0, 4), now)
        most, ends = 0, []

        async def call(key: str):
            nonlocal most
            await asyncio.sleep(rng.randint(0, 20))
            n = rng.randint(1, 2)
            try:
                place = await admission.acquire(key, Deadline(now() + rng.randint(0, 9)), n)
            except (Busy, DeadlinePassed) as error:
                return ends.append(type(error).__name__)
            assert isinstance(place, Place)
            most = max(most, admission.num_running)
            try:
                await asyncio.sleep(rng.randint(0, 5))
            finally:
                place.release()
            return ends.append("served")

        tasks = [asyncio.create_task(call(rng.choice("abc"))) for _ in range(40)]
        for task in rng.sample(tasks, 8):
            asyncio.get_running_loop().call_later(rng.randint(0, 24), task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= max(admission.max_running, 2)
        assert (admission.num_running, admission.num_waiting, admission.waiting_by_key) == (0, 0, {})
        assert "served" in ends
        assert all(task.cancelled() or task.exception() is None for task in tasks)

    run_virtual(scene())
