"""Exercise 11.10: judged by signs made by hand, and by the four wrong batchers, each run on a clock that jumps."""

from chapters.ch11_batcher import queue_diagnosis
from chapters.ch11_batcher.queue_diagnosis import BatchSeen, Signs
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from shared.inference.batch_queue import BatchPolicy
from shared.inference.virtual_time import run_virtual

POLICY = BatchPolicy(max_batch_size=4, max_wait_s=1.0, max_waiting=8)


def signs(**changes) -> Signs:
    """A healthy run: three batches of one model that takes 3 s each, one of them full, and two that were overdue."""
    usual = {
        "handed": [(k, [k]) for k in range(9)],
        "batches": [
            BatchSeen([10.0, 10.5], 11.0, free_since=0.0),
            BatchSeen([11.5, 12.0, 12.5, 13.0], 14.0, free_since=14.0),
            BatchSeen([15.0, 16.5, 17.0], 17.0, free_since=17.0),
        ],
        "most_waiting": 8,
    }
    return Signs(POLICY, **(usual | changes))


def diagnosis(seen: Signs) -> str:
    got = queue_diagnosis.diagnose(seen)
    expect(got is not None, because=NO_RESULT)
    return got


@exercise("11.10")
def test_healthy():
    got = diagnosis(signs())
    expect(
        got != queue_diagnosis.RESTARTS,
        because="nothing is wrong here: the second and third batches began late because the model was busy until then, "
        "free_since",
    )
    expect(
        got != queue_diagnosis.UNBOUNDED,
        because="8 may wait, and 8 did: the bound was kept",
    )
    expect_equal(got, "healthy", because="each got the right answer, in time, and no more waited than may")
    late = [BatchSeen([10.0], 11.0005, free_since=0.0)]
    expect_equal(
        diagnosis(signs(batches=late)),
        "healthy",
        because="half a millisecond late: no alarm rings to the instant, SLACK_S is allowed",
    )
    expect_equal(diagnosis(Signs(POLICY)), "healthy", because="nobody came, and nothing went wrong")


@exercise("11.10")
def test_shared():
    for handed in ([(0, [0, 1]), (1, [])], [(0, [0]), (1, [])], [(0, [0]), (1, [1, 0])]):
        expect_equal(
            diagnosis(signs(handed=handed)),
            queue_diagnosis.SHARED,
            because=f"callers and what they were handed: {handed}. No answer at all, or several, is the sign of a "
            "flush that is shared, with one's own answer among them or not",
        )
    expect_equal(
        diagnosis(signs(handed=[(0, [1]), (1, [0]), (2, [])])),
        queue_diagnosis.SHARED,
        because="one caller has nothing, and two have each other's: SHARED is asked first, of all callers",
    )


@exercise("11.10")
def test_swapped():
    expect_equal(
        diagnosis(signs(handed=[(0, [0]), (1, [2]), (2, [1])])),
        queue_diagnosis.SWAPPED,
        because="each has one answer, and two have each other's: the first caller's own doesn't prove anything",
    )


@exercise("11.10")
def test_restarts():
    dripping = BatchSeen([10.0, 10.8, 11.6], 12.6, free_since=0.0)
    for place, batches in (("last", [*signs().batches, dripping]), ("first", [dripping, *signs().batches])):
        expect_equal(
            diagnosis(signs(batches=batches)),
            queue_diagnosis.RESTARTS,
            because=f"the {place} batch's first request came at 10, the model was free, and it began at 12.6, a window "
            "after its LAST arrival. The window is counted from arrivals[0], and one such batch is enough",
        )
    expect_equal(
        diagnosis(signs(batches=[BatchSeen([10.0], 11.01, free_since=0.0)])),
        queue_diagnosis.RESTARTS,
        because="ten milliseconds late, with SLACK_S of one: that is no alarm's lateness",
    )
    busy = BatchSeen([10.0, 10.8, 11.6], 12.6, free_since=11.8)
    expect_equal(
        diagnosis(signs(batches=[busy])),
        queue_diagnosis.RESTARTS,
        because="the model was busy until 11.8, and the batch, overdue since 11, began at 12.6: that isn't explained "
        "by "
        "the model",
    )
    full = BatchSeen([10.0, 10.8, 11.6, 12.4], 12.4, free_since=0.0)
    expect_equal(
        diagnosis(signs(batches=[full])),
        "healthy",
        because="a full batch is left out of this question: the table says so",
    )


@exercise("11.10")
def test_unbounded():
    expect_equal(diagnosis(signs(most_waiting=9)), queue_diagnosis.UNBOUNDED, because="9 waited at a time, and 8 may")


@exercise("11.10")
def test_another_policy():
    pair = BatchSeen([10.0, 12.0], 15.0, free_since=0.0)
    for size, window, most, want in (
        (3, 5.0, 3, "healthy"),
        (3, 4.0, 3, queue_diagnosis.RESTARTS),
        (2, 4.0, 3, "healthy"),
        (3, 5.0, 2, queue_diagnosis.UNBOUNDED),
    ):
        policy = BatchPolicy(max_batch_size=size, max_wait_s=window, max_waiting=most)
        expect_equal(
            diagnosis(Signs(policy, [(0, [0])], [pair], most_waiting=3)),
            want,
            because=f"two came at 10 and 12, their batch began at 15, and 3 waited; the policy is {policy}. Its "
            "numbers are in signs.policy",
        )


@exercise("11.10")
def test_the_order():
    every = {"batches": [BatchSeen([10.0], 19.0, 0.0)], "most_waiting": 99}
    expect_equal(
        diagnosis(signs(handed=[(0, [1]), (1, [0])], **every)),
        queue_diagnosis.SWAPPED,
        because="several signs at once: the table is read from the top",
    )
    expect_equal(
        diagnosis(signs(**every)),
        queue_diagnosis.RESTARTS,
        because="several signs at once: the table is read from the top",
    )


@exercise("11.10")
def test_the_wrong_batchers():
    dripping = [(0.8 * k, 5 - k) for k in range(3)]
    burst = [(0.001 * k, (7 * k) % 5 + 1) for k in range(20)]
    scenes = {
        queue_diagnosis.SHARED: (queue_diagnosis.SharedFlush, dripping),
        queue_diagnosis.SWAPPED: (queue_diagnosis.SortedBatch, dripping),
        queue_diagnosis.RESTARTS: (queue_diagnosis.RestartingWindow, dripping),
        queue_diagnosis.UNBOUNDED: (queue_diagnosis.OneAtATime, burst),
    }
    for fault, (wrong, arrivals) in scenes.items():

        async def watch(wrong=wrong, arrivals=arrivals) -> Signs:
            return await queue_diagnosis.observe(wrong, arrivals, POLICY, batch_s=0.2)

        expect_equal(
            diagnosis(run_virtual(watch())),
            fault,
            because=f"the signs that {wrong.__name__} leaves behind, as its code says",
        )


@exercise("11.10")
def test_the_books_own_batcher():
    from shared.inference.batcher import Batcher
    from shared.inference.sampling import SamplingParams

    class Own:
        def __init__(self, model, policy):
            async def run(prompts, params):
                return [[number] for number in await model.run([prompt[0] for prompt in prompts])]

            self.batcher = Batcher(run, policy)
            self.batcher.start()

        async def submit(self, caller, length):
            return await self.batcher.submit([caller], SamplingParams(max_tokens=length))

    async def watch(arrivals) -> Signs:
        return await queue_diagnosis.observe(Own, arrivals, POLICY, batch_s=0.2)

    for arrivals in ([(0.8 * k, 9 - k) for k in range(9)], [(0.001 * k, 3) for k in range(40)]):
        expect_equal(diagnosis(run_virtual(watch(arrivals))), "healthy", because="the finished batcher has no fault")
