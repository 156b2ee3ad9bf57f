"""An engine that dies and can't be loaded again as it was: when it is tried anew, given up, or refused."""

import asyncio
import errno
import os
import re
import signal
import time
from unittest.mock import Mock

import pytest

from shared.inference.outputs import GenerationError
from shared.serving.engines.engine import EngineFailed
from shared.serving.engines.engine_child import Patience
from shared.serving.engines.supervision import RestartPolicy
from shared.serving.guard.deadline import Deadline, DeadlinePassed
from tests.serving.engine_processes import LONG, by_index, kinds, text_of, with_engine
from tests.serving.fake_engine import answer


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
