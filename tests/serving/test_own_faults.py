"""A part of the reader's ends the engine process: the log and the caller are told whose fault it is, and soon."""

import asyncio
import logging
import sys

import pytest

from shared.inference.outputs import GenerationError
from shared.inference.sampling import SamplingParams
from shared.serving.engines.engine import EngineFailed
from shared.serving.engines.load_engine import EngineOptions
from shared.serving.engines.open_requests import OpenRequests
from shared.serving.engines.process_engine import ProcessEngine
from shared.serving.engines.supervision import RestartPolicy
from tests.inference.scripted import ByteTokenizer
from tests.serving.engine_processes import kinds, text_of

PARAMS = SamplingParams(max_tokens=9)
OPTIONS = EngineOptions(device="cpu", threads=1, attention="gather", max_num_seqs=4, kv_memory=1)
# An engine process that has a function of a reader's in the place of {place}, and its fault in line 242.
BROKEN = """
import shared
file = shared.ROOT / "chapters/ch12_engine/scheduler.py"
names = {{}}
exec(compile("\\n" * 240 + "def broken(*args, **more):\\n    raise {error}", str(file), "exec"), names)
shared.RUNNING[str(file)] = file
import {module}
{module}.{place} = names["broken"]
from shared.serving.engines.engine_process import main
main()
"""
OWN = (
    "your part chapters/ch12_engine/scheduler.py:242 raised KeyError: 'my bug'; mend it, or go back to the reference: "
    "python -m chapters use --reference 12"
)


def broken(folder, place: str, error: str) -> tuple[ProcessEngine, list]:
    module, _, name = place.partition(":")
    code = BROKEN.format(module=module, place=name, error=error)
    policy = lambda: RestartPolicy(0.01, 0.05, max_exits=8)  # noqa: E731
    engine, events = ProcessEngine(folder, OPTIONS, command=[sys.executable, "-c", code], policy=policy), []
    engine.on_event = lambda kind, text: events.append((kind, text))
    return engine, events


def test_a_step_that_fails_in_a_readers_part(folder, caplog):
    """The second time the caller is told, too: it is the same fault, and nothing else was there."""
    engine, events = broken(folder, "shared.inference.scheduler:Scheduler.update", "KeyError('my bug')")

    async def test():
        await engine.start()
        with pytest.raises(GenerationError) as failed:
            await text_of(engine.generate([1, 2, 3], PARAMS, "a"))
        assert str(failed.value) == OWN
        await engine.stop()

    asyncio.run(test())
    assert kinds(events)[:5] == ["engine_ready", "engine_died", "engine_restarted", "request_failed", "engine_died"]
    assert events[1][1] == f"the engine process has ended: {OWN}; open requests: 1"
    assert events[3][1] == f"a: {OWN}"
    record = next(record for record in caplog.records if record.levelno == logging.CRITICAL)
    assert record.getMessage() == "the engine process has failed"
    first, *_, last = record.exc_text.splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "KeyError: 'my bug'")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("KeyError('my bug')", OWN),
        ("ValueError('no weights')", "no weights (said by your part chapters/ch12_engine/scheduler.py:242)"),
    ],
)
def test_a_load_that_fails_in_a_readers_part(folder, error, message):
    """What may be right to refuse the files is told as it is, and who says so."""
    engine, _ = broken(folder, "shared.serving.engines.load_engine:load_model", error)

    async def test():
        with pytest.raises(EngineFailed) as failed:
            await engine.start()
        assert str(failed.value) == message
        await engine.stop()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("whys", "others", "fails"),
    [
        ([OWN, OWN], 0, True),
        ([OWN, "your part x.py:3 raised ValueError"], 0, False),  # mended meanwhile, and another is left
        (["it was ended by SIGKILL"] * 2, 0, False),  # from outside, and no fault of this one
        ([OWN, OWN], 1, False),  # nobody knows which of the two it was
    ],
)
def test_who_fails_after_two_deaths(whys, others, fails):
    async def test():
        failed = []
        requests = OpenRequests(ByteTokenizer(), lambda *frame: None, lambda name, why: failed.append((name, why)))
        requests.on_ready()
        kept = [requests.take_in(name, [1], PARAMS, 0, None, None) for name in "ab"[: others + 1]]
        for why in whys:
            assert not failed
            requests.on_death(why)
            requests.on_ready()
        assert failed == ([("a", OWN)] if fails else [])
        assert len(requests) == len(kept) - fails

    asyncio.run(test())
