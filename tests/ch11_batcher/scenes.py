"""Scenes on a clock that jumps, and a batcher whose collector is the test."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from chapters.ch11_batcher import batcher
from chapters.judge import expect
from shared.inference.batch_queue import BatchPolicy
from shared.inference.sampling import SamplingParams
from shared.inference.virtual_time import Deadlock, Spinning, run_virtual

PARAMS = SamplingParams(max_tokens=4)
POLICY = BatchPolicy(max_batch_size=4, max_wait_s=1.0, max_waiting=8)


def run(scene: Callable[[], Coroutine[Any, Any, Any]], because: str) -> Any:
    """Play a scene on the virtual clock; one that can never end, or keeps the clock from moving, is rejected."""

    async def quiet() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # what a test leaves behind is its own affair
        return await scene()

    try:
        return run_virtual(quiet())
    except Deadlock:
        expect(False, because=because)
    except Spinning:
        expect(
            False,
            because="it asks again and again without sleeping, and nobody else gets a turn. For a collector: a batch "
            "that is due this very moment, due == now, is to be taken; otherwise clear the event before each wait",
        )


async def until(seconds: float) -> None:
    """Sleep until a time on the loop's clock."""
    await asyncio.sleep(max(0.0, seconds - asyncio.get_running_loop().time()))


def now() -> float:
    return asyncio.get_running_loop().time()


class Idle(batcher.Batcher):
    """A batcher whose collector does nothing: the test plays the collector, and looks at what callers leave behind."""

    async def _serve(self) -> None:
        await asyncio.Event().wait()


def idle(policy: BatchPolicy = POLICY) -> Idle:
    async def nothing(prompts, params):
        raise AssertionError("submit mustn't run batches: that is the collector's work")

    made = Idle(nothing, policy)
    made.start()
    return made
