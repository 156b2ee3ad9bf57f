"""What the engine's tests share: an engine that is started and stopped, and waits that have an end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

from shared.inference.async_engine import AsyncLLMEngine
from shared.inference.outputs import RequestOutput
from shared.inference.sampling import SamplingParams
from tests.inference.scripted import ByteTokenizer

LONG = SamplingParams(max_tokens=100)


class PlainTokenizer(ByteTokenizer):
    """No token is special, so that a random model's answers all have their full length."""

    eos_ids, special_tokens = frozenset(), {}


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), timeout=30))


def scripted_engine(model, max_waiting: int = 16, tokenizer=None, **settings) -> AsyncLLMEngine:
    """An engine for a scripted or a tiny model, with a pool that is large enough for all its places."""
    settings = {"num_blocks": 200, "attention": "gather", "prefix_caching": False} | settings
    return AsyncLLMEngine(model, tokenizer or ByteTokenizer(), max_waiting, **settings)


@asynccontextmanager
async def started(model, **settings):
    """Afterwards nothing may be left behind: no request, no block that isn't free."""
    engine = scripted_engine(model, **settings)
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
    nothing_left(engine)


def nothing_left(engine: AsyncLLMEngine) -> None:
    blocks = engine.engine.blocks
    blocks.check([])
    assert blocks.num_free == blocks.num_blocks
    assert not engine._requests
    assert not engine.engine.has_unfinished


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
