"""What the engine's tests share: an engine that is started and stopped, and waits that have an end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

from shared.inference.engine import AsyncLLMEngine, RequestOutput
from shared.inference.sampling import SamplingParams
from tests.inference.scripted import ByteTokenizer

LONG = SamplingParams(max_tokens=100)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), timeout=30))


@asynccontextmanager
async def started(model, **settings):
    engine = AsyncLLMEngine(model, ByteTokenizer(), **settings)
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def collect(outputs) -> RequestOutput:
    """All outputs as one; also checks that only the last has a finish_reason."""
    text, ids, reason = "", [], None
    async for output in outputs:
        assert reason is None, "an output after the last one"
        text, ids, reason = text + output.text, ids + output.token_ids, output.finish_reason
    return RequestOutput(text, ids, reason)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)
