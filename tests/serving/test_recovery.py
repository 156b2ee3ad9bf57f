"""An engine process dies, or hangs, or talks nonsense: its callers see a pause and nothing else."""

import asyncio
import errno
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from shared.inference.outputs import EngineStopped, GenerationError, joined
from shared.inference.sampling import SamplingParams
from shared.observability.trace import RequestTrace
from shared.serving.engines.engine import EngineFailed
from shared.serving.engines.engine_child import Patience
from shared.serving.engines.process_engine import ProcessEngine
from shared.serving.engines.supervision import RestartPolicy
from shared.serving.guard.deadline import Deadline, DeadlinePassed
from tests.inference.scripted import ByteTokenizer
from tests.serving import fake_engine
from tests.serving.fake_engine import DIES, DIES_LATER, FAILS, GARBAGE, SLEEPS, answer

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


def test_killed_again_and_again_under_many_streams():
    """Ten kills, each as soon as the new engine has said something; every stream gets all of its text, once."""

    async def test(engine):
        await engine.start()
        traces = [RequestTrace(str(i), "/") for i in range(12)]
        tasks = [
            asyncio.create_task(text_of(engine.generate([5] * (i + 1), SamplingParams(max_tokens=150, seed=i), str(i),
                                                        trace=traces[i])))
            for i in range(12)
        ]  # fmt: skip
        for _ in range(10):
            before = sum(trace.output_tokens for trace in traces)
            while sum(trace.output_tokens for trace in traces) == before:
                await asyncio.sleep(0.001)
            os.kill(engine.pid, signal.SIGKILL)
            while engine.state == "ready":
                await asyncio.sleep(0.001)
        got = await asyncio.gather(*tasks)
        assert got == [answer(i, i + 1, 150) for i in range(12)]
        assert all(trace.resumed >= 1 and trace.output_tokens == 150 for trace in traces)

    events = with_engine(test)
    assert kinds(events) == ["engine_ready", *["engine_died", "engine_restarted"] * 10]
    assert "SIGKILL" in events[1][1]


def test_several_answers_stop_texts_and_logprobs_go_on():
    """The engine dies twice where a stop text has begun: "c" is held back, and "j" comes from the next engine. At the
    first death one of the three answers has ended already, at the second two."""
    assert [answer(k, 3, 9) for k in range(3)] == ["vcjqxelsz", "ahovcjqxe", "fmtahovcj"]

    async def test(engine):
        await engine.start()
        params = SamplingParams(max_tokens=40, n=3, logprobs=1, stop=("cj",))
        outputs, pieces, deaths = engine.generate([5, 5, 5], params, "a"), {0: [], 1: [], 2: []}, []
        async for output in outputs:
            pieces[output.index].append(output)
            if (output.index, len(pieces[output.index])) in ((1, 5), (2, 8)):
                deaths.append(output.index)
                os.kill(engine.pid, signal.SIGSTOP)  # it may have sent more, but not much
                os.kill(engine.pid, signal.SIGKILL)
        whole = [joined(pieces[k]) for k in range(3)]
        assert [answer.text for answer in whole] == ["v", "ahov", "fmtahov"]
        assert [answer.finish_reason for answer in whole] == ["stop"] * 3
        assert ["".join(map(chr, answer.token_ids)) for answer in whole] == ["vcj", "ahovcj", "fmtahovcj"]
        assert [[entry.token_id for entry in answer.logprobs] for answer in whole] == [a.token_ids for a in whole]
        assert whole[0].logprobs[0].top == [(118, -0.5), (98, -1.5)]
        assert deaths == [1, 2]

    assert kinds(with_engine(test)).count("engine_died") == 2


def test_a_stopped_process_is_replaced():
    async def test(engine):
        await engine.start()
        outputs = engine.generate([5], LONG, "a")
        text = (await anext(outputs)).text
        pid = engine.pid
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        text += await text_of(outputs)
        assert 0.4 < time.monotonic() - began < 5
        assert text == answer(0, 1, 60)
        assert not alive(pid)

    events = with_engine(test)
    assert kinds(events) == ["engine_ready", "engine_hung", "engine_restarted"]
    assert "no sign of life for 0.4 s" in events[1][1]


def test_what_kills_engines_is_failed_alone():
    """It is given four engines. The others pause, and go on."""

    async def test(engine):
        await engine.start()
        ended = []
        others = [asyncio.create_task(text_of(engine.generate([5, i], LONG, f"o{i}"))) for i in range(3)]
        with pytest.raises(GenerationError, match="4 engine processes in a row have ended on it"):
            await text_of(engine.generate([DIES], LONG, "bad", on_end=lambda: ended.append("bad")))
        assert await asyncio.gather(*others) == [answer(0, 2, 60)] * 3
        assert ended == ["bad"]
        assert engine.state == "ready"

    events = with_engine(test)
    assert kinds(events).count("engine_died") == 4
    assert kinds(events).count("request_failed") == 1


def test_an_engine_that_dies_and_makes_progress_is_not_given_up():
    """Every fifth token ends the process; the answer takes 12 of them, and more than the policy allows in a row."""

    async def test(engine):
        await engine.start()
        params = SamplingParams(max_tokens=59)
        assert await text_of(engine.generate([DIES_LATER], params, "a")) == answer(0, 1, 59)

    assert kinds(with_engine(test)).count("engine_died") == 11


def test_a_step_that_never_ends_counts_as_hung():
    async def test(engine):
        await engine.start()
        with pytest.raises(GenerationError, match="4 engine processes"):
            await text_of(engine.generate([SLEEPS], LONG, "a"))
        assert await text_of(engine.generate([5], LONG, "b")) == answer(0, 1, 60)

    events = with_engine(test)
    assert kinds(events).count("engine_hung") == 4
    assert "longer than 0.3 s" in events[1][1]


def test_nonsense_from_the_engine():
    async def test(engine):
        await engine.start()
        other = asyncio.create_task(text_of(engine.generate([5], LONG, "b")))
        with pytest.raises(GenerationError):
            await text_of(engine.generate([GARBAGE], LONG, "a"))
        assert await other == answer(0, 1, 60)

    events = with_engine(test)
    assert "no frame" in events[1][1]


def test_an_engine_that_speaks_another_version(monkeypatch):
    """As when the program's files are changed under a running server: nobody waits for ever."""

    async def test(engine):
        await engine.start()
        outputs = engine.generate([5], LONG, "a")
        await anext(outputs)
        monkeypatch.setattr("shared.serving.engines.process_engine.StepStats", lambda at: None)
        with pytest.raises(GenerationError, match="4 engine processes"):
            await text_of(outputs)

    events = with_engine(test)
    assert "files were changed while the server runs" in events[1][1]


def test_whoever_is_told_of_steps_may_fail(caplog):
    async def test(engine):
        await engine.start()
        engine.on_step = lambda stats: {}["a bug"]
        assert await text_of(engine.generate([5], LONG, "a")) == answer(0, 1, 60)

    assert kinds(with_engine(test)) == ["engine_ready"]
    assert "a step could not be told on" in caplog.text


def test_a_request_that_is_refused():
    async def test(engine):
        await engine.start()
        with pytest.raises(GenerationError, match="doesn't like this one"):
            await text_of(engine.generate([FAILS], LONG, "a"))
        assert await text_of(engine.generate([5], LONG, "a")) == answer(0, 1, 60)

    assert kinds(with_engine(test)) == ["engine_ready", "request_failed"]


def test_it_is_given_up_when_it_can_only_die(tmp_path):
    plan = tmp_path / "plan"

    async def test(engine):
        await engine.start()
        plan.write_text("fail exit fail fail fail")
        outputs = engine.generate([5], LONG, "a")
        await anext(outputs)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(GenerationError, match="^the engine has failed$"):
            await text_of(outputs)
        assert engine.state == "failed"
        assert re.search(r"5 times in a row.*disk is full", engine.error)
        with pytest.raises(EngineFailed, match="disk is full"):
            engine.generate([5], LONG, "b")
        with pytest.raises(EngineFailed, match="disk is full"):
            await engine.until_ready(Deadline.after(5, time.monotonic()))
        while engine.state == "failed":  # whoever asks meanwhile isn't kept waiting
            await asyncio.sleep(0.01)
        assert (engine.state, engine.error) == ("ready", "")
        assert await text_of(engine.generate([5], LONG, "c")) == answer(0, 1, 60)

    plan.write_text("")
    events = with_engine(test, plan, retry_s=0.3)
    assert kinds(events) == ["engine_ready", *["engine_died"] * 5, "engine_failed", "engine_died", "engine_restarted"]
    assert "tried again every 0.3 s" in events[6][1]


@pytest.mark.parametrize(
    ("plan", "message", "setting"),
    [
        ("fail", "the disk is full", False),
        ("setting", "--device none", True),
        ("exit", "ended with status 7", False),
        ("silent", "no sign of life", False),
    ],
)
def test_what_cannot_be_loaded_at_first_is_not_tried_again(tmp_path, plan, message, setting):
    async def test(engine):
        with pytest.raises(EngineFailed, match=message) as failed:
            await engine.start()
        assert failed.value.setting == setting
        assert engine.state == "failed"

    (tmp_path / "plan").write_text(plan)
    patience = Patience(ping_s=0.05, hung_after_s=0.2, loading_s=0.5)
    assert kinds(with_engine(test, tmp_path / "plan", patience=patience)) == ["engine_failed"]


def test_files_that_have_changed_are_not_taken_for_the_same(tmp_path):
    """A stream would go on in the middle with another model's words."""
    (tmp_path / "config.json").write_text("{}")

    async def test(engine):
        engine.path = tmp_path
        await engine.start()
        outputs = engine.generate([5], LONG, "a")
        await anext(outputs)
        (tmp_path / "config.json").write_text('{"another": 1}')
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(GenerationError, match="^the engine has failed$"):  # the path is not for callers
            await text_of(outputs)
        assert f"files in {tmp_path} have changed since they were loaded (config.json)" in engine.error
        (tmp_path / "config.json").write_text("{}")
        while engine.state == "failed":
            await asyncio.sleep(0.01)
        assert await text_of(engine.generate([5], LONG, "b")) == answer(0, 1, 60)

    with_engine(test, retry_s=0.05)


@pytest.mark.parametrize("how", ["touched", "away for a while", "no more files"])
def test_files_that_have_not_changed_are_not_taken_for_others(tmp_path, monkeypatch, how):
    """The stream goes on."""
    folder, config = tmp_path / "model", tmp_path / "model" / "config.json"
    folder.mkdir()
    config.write_text("{}")

    async def test(engine):
        engine.path = folder
        await engine.start()
        outputs = engine.generate([5], LONG, "a")
        text = (await anext(outputs)).text
        if how == "touched":
            os.utime(config, (1, 1))
        elif how == "away for a while":
            folder.rename(tmp_path / "other")
        else:
            full = Mock(side_effect=[OSError(errno.EMFILE, "Too many open files")] * 2 + [None] * 9)
            monkeypatch.setattr(engine._files, "check", full)
        os.kill(engine.pid, signal.SIGKILL)
        await asyncio.sleep(0.1)
        if how == "away for a while":
            (tmp_path / "other").rename(folder)
        assert text + await text_of(outputs) == answer(0, 1, 60)

    policy = lambda: RestartPolicy(0.05, 0.05, max_exits=20)  # noqa: E731
    assert kinds(with_engine(test, policy=policy)) == ["engine_ready", "engine_died", "engine_restarted"]


def test_one_that_is_stopped_while_it_loads_again_is_replaced_soon(tmp_path):
    """The first one may take two minutes, on a cold disk; it took a moment, and so must the others."""
    assert Patience(hung_after_s=10, loading_s=120).after(0, 2.0).loading_s == 120
    assert [Patience(hung_after_s=10, loading_s=40).after(n, 2.0).loading_s for n in (1, 2, 3)] == [16, 32, 40]
    plan = tmp_path / "plan"

    async def test(engine):
        await engine.start()
        plan.write_text("silent")
        outputs = engine.generate([5], LONG, "a")
        text = (await anext(outputs)).text
        os.kill(engine.pid, signal.SIGKILL)
        began = time.monotonic()
        assert text + await text_of(outputs) == answer(0, 1, 60)
        assert time.monotonic() - began < 5

    patience = Patience(ping_s=0.05, hung_after_s=0.2, loading_s=60)
    events = with_engine(test, plan, patience=patience)
    assert kinds(events) == ["engine_ready", "engine_died", "engine_hung", "engine_restarted"]


def test_while_it_is_away_new_requests_wait(tmp_path):
    plan = tmp_path / "plan"

    async def test(engine):
        await engine.start()
        plan.write_text("silent")
        os.kill(engine.pid, signal.SIGKILL)
        while engine.state == "ready":
            await asyncio.sleep(0.001)
        with pytest.raises(DeadlinePassed):
            await engine.until_ready(Deadline.after(0.1, time.monotonic()))
        assert await engine.block_map() == b""
        engine.abort("nobody")
        waiting = [engine.generate([5], LONG, name) for name in "abc"]
        engine.abort("b")
        await waiting[2].aclose()
        assert (await by_index(waiting[1]))[0].finish_reason == "abort"
        assert await text_of(waiting[0]) == answer(0, 1, 60)
        await engine.until_ready(Deadline.after(0.1, time.monotonic()))

    with_engine(test, plan, patience=Patience(ping_s=0.05, hung_after_s=0.4, loading_s=0.8))


def test_aborting_is_at_once_even_while_it_hangs():
    async def test(engine):
        await engine.start()
        ended = []
        outputs = engine.generate([5], LONG, "a", on_end=lambda: ended.append("a"))
        await anext(outputs)
        os.kill(engine.pid, signal.SIGSTOP)
        engine.abort("a")
        assert ended == ["a"]
        async with asyncio.timeout(0.2):
            assert [output.finish_reason async for output in outputs][-1] == "abort"
        os.kill(engine.pid, signal.SIGCONT)
        assert await text_of(engine.generate([5], LONG, "a")) == answer(0, 1, 60)

    with_engine(test)


def test_stopping_ends_everything():
    async def test(engine):
        await engine.start()
        outputs = engine.generate([5], LONG, "a")
        await anext(outputs)
        os.kill(engine.pid, signal.SIGSTOP)  # it can't be asked to end
        await engine.stop()
        with pytest.raises(EngineStopped):
            await text_of(outputs)
        with pytest.raises(EngineStopped):
            engine.generate([5], LONG, "b")

    with_engine(test)
