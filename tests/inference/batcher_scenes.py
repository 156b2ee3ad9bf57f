"""A scripted model behind a Batcher, on a clock that jumps: what came of each caller, and when."""

import asyncio

from shared.inference.batch_queue import BatchPolicy
from shared.inference.batcher import Batcher, DeadlineExceeded
from shared.inference.outputs import EngineStopped, GenerationError, QueueFull
from shared.inference.sampling import SamplingParams
from shared.inference.virtual_time import run_virtual

PARAMS = SamplingParams(max_tokens=4)
POLICY = BatchPolicy(max_batch_size=4, max_wait_s=1.0, max_waiting=6)


class Model:
    """Answers each prompt with itself, reversed, after `seconds`; remembers its batches."""

    def __init__(self, seconds=2.0):
        self.seconds, self.batches = seconds, []

    async def __call__(self, prompts, params):
        self.batches.append([prompt[0] for prompt in prompts])
        await asyncio.sleep(self.seconds)
        if any(prompt == [13] for prompt in prompts):
            raise MemoryError("no room")
        return [prompt[::-1] for prompt in prompts]


def now():
    return round(asyncio.get_running_loop().time(), 3)


async def ask(batcher, k, at=0.0, **how):
    """(what came of it, when)."""
    await asyncio.sleep(at)
    try:
        return await batcher.submit([k, 0], PARAMS, **how), now()
    except (QueueFull, DeadlineExceeded, EngineStopped, GenerationError) as error:
        return type(error), now()


def play(arrivals, policy=POLICY, model=None, **how):
    """What came of callers 0, 1, 2, …, and when; and the batches."""
    model = model or Model()

    async def scene():
        async with Batcher(model, policy) as batcher:
            return await asyncio.gather(*(ask(batcher, k, at, **how) for k, at in enumerate(arrivals)))

    return run_virtual(scene()), model.batches
