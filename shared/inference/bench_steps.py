"""What one step of the engine costs: with more running, with many waiting or finished, in memory, and for a prefix."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from shared.inference.llm_engine import LLMEngine
from shared.inference.peers.rates import random_request
from shared.inference.sampling import SamplingParams
from shared.measure.memory import MB
from shared.measure.progress import progress_bar
from shared.model.transformer import Transformer

PROMPT, STEPS = 16, 15  # tokens of a prompt; steps timed, of which the median counts
RUNNING = (1, 8, 16, 32)
QUEUED = 10_000
SHARED, OWN = 400, 16  # tokens of a system prompt, and of what follows it


class Stopwatch:
    """Seconds spent in methods of objects, added up by the methods' names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, owner: Any, *names: str) -> Iterator[None]:
        """Time these methods of `owner` while the block lasts."""
        for name in names:
            setattr(owner, name, self._timed(name, getattr(owner, name)))
        try:
            yield
        finally:
            for name in names:
                delattr(owner, name)  # the class's own shows again

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

        return timed


class Decoding:
    """An engine in which `running` requests generate, for as long as they are asked to."""

    def __init__(self, model: Transformer, running: int, max_waiting: int = 1) -> None:
        self.rng, self.vocab_size = random.Random(running), model.config.vocab_size
        self.engine = LLMEngine(model, max_num_seqs=running, max_waiting=max_waiting, max_num_batched_tokens=256)
        self.number = 0
        for _ in range(running):
            self.add(PROMPT, 200)
        for _ in range(1 + running * PROMPT // 256 + 2):  # the prompts, and two steps more
            self.engine.step()

    def add(self, n_prompt: int, n_output: int) -> str:
        """Queue a request of random ids that nobody has seen before. Returns its id, to abort it by."""
        request = random_request(self.rng, n_prompt, n_output, self.vocab_size)
        self.number += 1
        params = SamplingParams(max_tokens=n_output, ignore_eos=True)
        self.engine.add_request(str(self.number), request.prompt_ids, params)
        return str(self.number)

    def costs(self) -> tuple[float, float]:
        """The median of some steps' seconds, and of what the scheduler had of them."""
        whole, scheduler = [], []
        for _ in range(STEPS):
            watch = Stopwatch()
            with watch.on(self.engine, "step"), watch.on(self.engine.scheduler, "schedule", "update"):
                self.engine.step()
            whole.append(watch.seconds["step"])
            scheduler.append(watch.seconds["schedule"] + watch.seconds["update"])
        return median(whole), median(scheduler)


@contextmanager
def silent() -> Iterator[None]:
    """Keep off the terminal what a library of C++ writes to stderr: torch's profiler announces itself there."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def allocations(model: Transformer, running: int = 32) -> dict[str, int]:
    """What a decode step asks torch's allocator for, with so many requests running: the most bytes at once, and how
    often more than 1 MB. Memory of numpy's and Python's own isn't seen."""
    decoding = Decoding(model, running)
    with silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        decoding.engine.step()
    events = profiler.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]  # what is given back counts below zero
    return {
        "largest_allocation_bytes": max(sizes, default=0),
        "allocations_over_1mb": sum(size > MB for size in sizes),
    }


def queue_cost(model: Transformer, queued: int = QUEUED, running: int = 8) -> dict[str, float]:
    """A decode step's time, and the scheduler's part of it, with nobody waiting, with `queued` waiting, and after those
    have gone; and the ratios of the steps' times."""
    decoding = Decoding(model, running, max_waiting=queued)
    alone, alone_scheduler = decoding.costs()
    ids = [decoding.add(PROMPT, PROMPT) for _ in range(queued)]
    waiting, waiting_scheduler = decoding.costs()
    for request_id in ids:
        decoding.engine.abort(request_id)
    gone, gone_scheduler = decoding.costs()
    return {
        "step_ms": 1000 * alone,
        "step_ms_10000_waiting": 1000 * waiting,
        "waiting_10000_ratio": waiting / alone,
        "finished_10000_ratio": gone / alone,
        "scheduler_ms": 1000 * alone_scheduler,
        "scheduler_ms_10000_waiting": 1000 * waiting_scheduler,
        "scheduler_ms_10000_finished": 1000 * gone_scheduler,
    }


def shared_prompt(model: Transformer, repeats: int = 2) -> dict[str, float]:
    """Time to first token of a prompt that begins with 400 tokens, when they are new and when they were seen before."""
    engine, rng = LLMEngine(model), random.Random(1)
    first: list[float] = []
    second: list[float] = []
    for _ in range(repeats + 1):
        system = random_request(rng, SHARED, 1, model.config.vocab_size).prompt_ids
        for times in (first, second):
            own = random_request(rng, OWN, 1, model.config.vocab_size).prompt_ids
            start = time.perf_counter()
            engine.add_request("0", system + own, SamplingParams(max_tokens=1, ignore_eos=True))
            while engine.has_unfinished:
                engine.step()
            times.append(time.perf_counter() - start)
    new, seen = min(first[1:]), min(second[1:])  # the first of each is a warm-up
    return {"shared400_first_ttft_s": new, "shared400_second_ttft_s": seen, "shared400_ttft_ratio": new / seen}


@torch.inference_mode()
def bench_steps(model: Transformer, progress: bool = True) -> dict[str, Any]:
    """The keys of allocations, queue_cost and shared_prompt, and step_ms_by_running: how many are running -> ms."""
    with progress_bar("steps", len(RUNNING) + 3, progress) as step:
        found: dict[str, Any] = dict(allocations(model))
        step()
        by_running = {}
        for running in RUNNING:
            by_running[str(running)] = 1000 * Decoding(model, running).costs()[0]
            step()
        found |= {"step_ms_by_running": by_running} | queue_cost(model)
        step()
        found |= shared_prompt(model)
        step()
    return found
