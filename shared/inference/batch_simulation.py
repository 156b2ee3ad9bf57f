"""A batcher's latency and throughput without running it: events on an invented clock, times measured on the model.

The decisions are those of BatchQueue, the same code that the real batcher asks. Only the waiting is left out, so that
an hour of traffic takes a few seconds.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.inference.batch_queue import BatchPolicy, BatchQueue
from shared.inference.outputs import QueueFull
from shared.inference.sampling import SamplingParams
from shared.inference.static_batch import run_batch
from shared.measure.progress import progress_bar
from shared.measure.summary import percentile
from shared.measure.trace import Trace
from shared.model.transformer import Transformer


@dataclass(eq=False)
class Job:
    """One simulated request: what it asks for, when it came, and what became of it, in seconds."""

    prompt_tokens: int
    new_tokens: int
    arrived: float
    started: float = 0.0
    ended: float = 0.0
    batch: int = 0  # how many were in its batch; 0: it was refused

    @property
    def length(self) -> int:
        """Tokens of prompt and answer together, for the buckets."""
        return self.prompt_tokens + self.new_tokens

    @property
    def latency(self) -> float:
        """Seconds from its arrival to the end of its batch: nobody in a batch is answered before that."""
        return self.ended - self.arrived


def simulate(trace: Trace, policy: BatchPolicy, service_s: Callable[[Sequence[Job]], float]) -> list[Job]:
    """Serve a trace with one model that runs a batch at a time; the jobs, in the trace's order.

    service_s: how many seconds a batch takes. Two kinds of events: a request arrives, or a batch is due and the model
    is free. Whichever is next happens, the clock jumps there, and what happens may move the other one. Raises
    ValueError when service_s gives no number of seconds.
    """
    jobs = [Job(len(r.prompt_ids), r.max_new_tokens, r.at) for r in trace]
    arriving = sorted(jobs, key=lambda job: job.arrived)
    queue: BatchQueue[Job] = BatchQueue(policy)
    free_at, done = 0.0, 0
    while done < len(arriving) or len(queue):
        due = queue.due_at()
        start = max(due, free_at) if due is not None else None
        if done < len(arriving) and (start is None or arriving[done].arrived <= start):
            with contextlib.suppress(QueueFull):
                queue.add(arriving[done])
            done += 1
            continue
        assert start is not None
        # A batch can fill up, or the window shrink, by an arrival: it doesn't start before the request that made it due
        start = max(start, arriving[done - 1].arrived)
        batch = queue.take()
        seconds = service_s(batch)
        if not 0 <= seconds < math.inf:
            raise ValueError(f"service_s gives {seconds!r} for a batch of {len(batch)}; it must be seconds, from 0 on")
        free_at = start + seconds
        for job in batch:
            job.started, job.ended, job.batch = start, free_at, len(batch)
        queue.finished(free_at - start)
    return jobs


def outcome(jobs: Sequence[Job]) -> dict[str, float]:
    """What a run achieved. Seconds, requests a second; busy: the share of the time in which the model computed.

    The time runs from the first arrival to the last answer. Raises ValueError when nobody was served, or in no
    time at all.
    """
    served = [job for job in jobs if job.batch]
    if not served:
        raise ValueError("nobody was served; there is nothing to sum up")
    wall = max(job.ended for job in served) - min(job.arrived for job in jobs)
    if not wall > 0:
        raise ValueError("all were served in no time; there are no rates to sum up")
    latencies = [job.latency for job in served]
    return {
        "served": len(served),
        "refused": len(jobs) - len(served),
        "rate": len(served) / wall,
        "p50_s": percentile(latencies, 50),
        "p99_s": percentile(latencies, 99),
        "waited_s": statistics.fmean(job.started - job.arrived for job in served),
        "batch": len(served) / len({job.started for job in served}),
        "busy": sum({job.started: job.ended - job.started for job in served}.values()) / wall,
    }


@dataclass(frozen=True)
class ServiceTimes:
    """How long static batches of one model take, from a few that were measured: straight lines lie between.

    prefill_s[n][l]: reading batch_sizes[n] prompts of lengths[l] tokens, up to their first new token.
    step_s[n]: each further token of batch_sizes[n] rows. Both axes rise, and have two values at least, or ValueError.
    """

    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    prefill_s: tuple[tuple[float, ...], ...]
    step_s: tuple[float, ...]

    def __post_init__(self) -> None:
        check_axes(self.batch_sizes, self.lengths)

    def __call__(self, jobs: Sequence[Job]) -> float:
        """A batch's seconds: all rows are as long as the longest prompt, and stay until the longest answer is done."""
        return self.seconds(len(jobs), max(j.prompt_tokens for j in jobs), max(j.new_tokens for j in jobs))

    def seconds(self, batch: int, prompt_tokens: int, new_tokens: int) -> float:
        """How long `batch` rows take: the prefill, and a step for each new token but the first, which comes with it."""
        prefill = [_line(self.lengths, row, prompt_tokens) for row in self.prefill_s]  # one for each batch size
        step = _line(self.batch_sizes, self.step_s, batch)
        return max(0.0, _line(self.batch_sizes, prefill, batch)) + (new_tokens - 1) * max(0.0, step)

    def faster(self, times: float) -> "ServiceTimes":
        """The same model on a machine that is so many times as fast."""
        if not 0 < times < math.inf:
            raise ValueError(f"times must be a number above 0, not {times!r}")
        prefill = tuple(tuple(s / times for s in row) for row in self.prefill_s)
        return ServiceTimes(self.batch_sizes, self.lengths, prefill, tuple(s / times for s in self.step_s))


def measure_service_times(
    model: Transformer,
    batch_sizes: Sequence[int] = (1, 2, 4, 8),
    lengths: Sequence[int] = (16, 64),
    steps: int = 4,
    repeats: int = 3,
    progress: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> ServiceTimes:
    """Run static batches of random prompts and time them; the best of some repeats: others only ever add time.

    steps: tokens after the first. Raises ValueError for axes that ServiceTimes can't use, before anything is measured.
    """
    check_axes(batch_sizes, lengths)
    for name, value in (("steps", steps), ("repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value!r}")
    params = SamplingParams(max_tokens=steps + 1, ignore_eos=True)
    prefill: list[list[float]] = []
    step: list[float] = []
    with progress_bar("static batches", len(batch_sizes) * len(lengths) * repeats, progress) as advance:
        for n in batch_sizes:
            reading: list[list[float]] = [[] for _ in lengths]
            stepping = []
            for _ in range(repeats):
                for k, length in enumerate(lengths):
                    times = [clock()]
                    for _token in run_batch(model, [prompt(length, row, model) for row in range(n)], params):
                        times.append(clock())
                    reading[k].append(times[n] - times[0])
                    stepping.append((times[-1] - times[n]) / steps)
                    advance()
            prefill.append([min(times) for times in reading])
            step.append(min(stepping))
    return ServiceTimes(tuple(batch_sizes), tuple(lengths), tuple(map(tuple, prefill)), tuple(step))


def check_axes(batch_sizes: Sequence[int], lengths: Sequence[int]) -> None:
    """Raise ValueError unless both have two values at least, and rise."""
    for name, values in (("batch_sizes", batch_sizes), ("lengths", lengths)):
        if len(values) < 2 or list(values) != sorted(set(values)) or values[0] < 1:
            raise ValueError(f"{name} must be two numbers at least, from 1 on, each above the last; not {values!r}")


def prompt(length: int, seed: int, model: Transformer) -> list[int]:
    """Some ids, the same for the same arguments; which ones they are costs no time."""
    return [(seed * 7919 + k * 104729) % model.config.vocab_size for k in range(length)]


def _line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """The height at x of the straight lines through the points, which go on beyond the last ones."""
    k = next((k for k in range(1, len(xs) - 1) if x <= xs[k]), len(xs) - 1)
    share = (x - xs[k - 1]) / (xs[k] - xs[k - 1])
    return ys[k - 1] + share * (ys[k] - ys[k - 1])
