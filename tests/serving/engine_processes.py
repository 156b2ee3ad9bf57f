"""A ProcessEngine whose processes are fake ones, and what is left of a process that a test has ended."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from shared.inference.outputs import joined
from shared.inference.sampling import SamplingParams
from shared.serving.engines.engine_child import Patience
from shared.serving.engines.process_engine import ProcessEngine
from shared.serving.engines.supervision import RestartPolicy
from tests.inference.scripted import ByteTokenizer
from tests.serving import fake_engine

LONG = SamplingParams(max_tokens=60)
QUICK = Patience(ping_s=0.05, hung_after_s=0.4, loading_s=5.0, step_s=0.3)


def with_engine(test: Callable[[ProcessEngine], Awaitable[None]], plan: Path | None = None, **settings) -> list:
    """Run a test with an engine whose processes are fake ones. Returns the events it told, as (kind, text)."""
    events = []

    async def run() -> None:
        command = (*fake_engine.COMMAND, *(["--plan", str(plan)] if plan else []))
        quick = {"policy": lambda: RestartPolicy(0.01, 0.05, max_exits=5), "patience": QUICK}
        engine = ProcessEngine(Path("."), None, "v1", ByteTokenizer(), command=command, **(quick | settings))
        engine.on_event = lambda kind, text: events.append((kind, text))
        before = open_files()
        try:
            async with asyncio.timeout(20):
                await test(engine)
        finally:
            pid = engine.pid
            await engine.stop()
            assert pid is None or not alive(pid)
            assert open_files() <= before

    asyncio.run(run())
    return events


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def open_files() -> int:
    """0 where the system doesn't say."""
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0


def kinds(events: list) -> list[str]:
    return [kind for kind, _ in events]


async def text_of(outputs) -> str:
    return "".join([output.text async for output in outputs])


async def by_index(outputs) -> dict:
    pieces = {}
    async for output in outputs:
        pieces.setdefault(output.index, []).append(output)
    return {index: joined(outputs) for index, outputs in pieces.items()}
