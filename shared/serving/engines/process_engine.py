"""An Engine in a process of its own, which is replaced when it dies or hangs, so that no caller notices.

Text is made here, in the API process: an engine process deals in token ids alone. So what is known here of each open
request, its prompt and its tokens so far, is all that a new engine process needs to go on.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shared import in_words
from shared.data.fallback_tokenizer import load_tokenizer
from shared.inference.answer_text import EngineTokenizer
from shared.inference.outputs import EngineStopped, GenerationError, RequestOutput
from shared.inference.sampling import SamplingParams
from shared.inference.step_meter import RequestNotes
from shared.observability.trace import RequestTrace, StepStats
from shared.serving.concurrency import in_thread
from shared.serving.engines.block_maps import BlockMaps
from shared.serving.engines.engine import (
    EngineFailed,
    EngineLimits,
    EngineState,
    OnEnd,
    OnEvent,
    OnStep,
    check_against,
    check_alive,
)
from shared.serving.engines.engine_child import COMMAND, EngineChild, Patience
from shared.serving.engines.load_engine import EngineOptions
from shared.serving.engines.model_files import FilesChanged, ModelFiles
from shared.serving.engines.open_requests import OpenRequests
from shared.serving.engines.supervision import RestartPolicy
from shared.serving.engines.wire import Frame
from shared.serving.guard.deadline import Deadline, within

logger = logging.getLogger(__name__)


def usual_policy() -> RestartPolicy:
    """A server goes on trying for about a minute: whoever ends the engine from outside may do so several times."""
    return RestartPolicy(first_s=0.5, longest_s=5.0, max_exits=12)


class ProcessEngine:
    """See Engine. path: the model's folder. version: names it for the prefix cache and in `limits`. tokenizer: of that
    folder; without one it's loaded at the start. policy: makes a RestartPolicy. command: starts an engine process.

    An engine that was ready once is never given up for good: while it's "failed" it is tried every retry_s seconds.
    """

    def __init__(
        self,
        path: Path,
        options: EngineOptions | None = None,
        version: str = "",
        tokenizer: EngineTokenizer | None = None,
        policy: Callable[[], RestartPolicy] = usual_policy,
        patience: Patience | None = None,
        command: Sequence[str] = COMMAND,
        retry_s: float = 30.0,
    ) -> None:
        self.path, self.options, self.version = Path(path).resolve(), options or EngineOptions(), version
        self.state: EngineState = "loading"
        self.error = ""
        self.limits: EngineLimits | None = None
        self.on_step: OnStep = lambda stats: None
        self.on_event: OnEvent = lambda kind, text: None
        self._tokenizer, self._make_policy, self._command = tokenizer, policy, command
        self._patience, self._retry_s = patience or Patience(), retry_s
        self._child: EngineChild | None = None
        self._requests: OpenRequests | None = None
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # it is ready, or won't be soon
        self._setting_to_blame = False
        self._load_s = 0.0  # how long the first one took
        self._files: ModelFiles | None = None  # as they were loaded
        self._maps = BlockMaps(self._send)

    @property
    def pid(self) -> int | None:
        """The engine process's, while there is one."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """See Engine. Also fails when the files can't be read; a first process that fails isn't tried again."""
        if self._task is not None:
            raise RuntimeError("the engine has been started already")
        try:
            self._files = await in_thread(lambda: ModelFiles(self.path))
            if self._tokenizer is None:
                loaded: EngineTokenizer = await in_thread(lambda: load_tokenizer(self.path))
                self._tokenizer = loaded
        except (OSError, ValueError) as error:
            self._give_up(str(error))
            raise EngineFailed(str(error)) from None
        check_alive(self, self._setting_to_blame)  # it may have been stopped meanwhile
        self._requests = OpenRequests(self._tokenizer, self._send, self._on_failure)
        self._task = asyncio.create_task(self._supervise(), name="engine supervisor")
        await self._settled.wait()
        check_alive(self, self._setting_to_blame)

    async def stop(self) -> None:
        """See Engine. Returns when the process is gone."""
        if self.state == "stopped":
            return
        self.state = "stopped"
        self._settled.set()
        if self._requests is not None:
            self._requests.end_all(lambda: EngineStopped("the engine was stopped"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def until_ready(self, deadline: Deadline) -> None:
        """See Engine."""
        while self.state not in ("ready", "failed", "stopped"):
            await within(deadline, self._settled.wait(), time.monotonic)
        check_alive(self, self._setting_to_blame)

    def check(self, prompt_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> SamplingParams:
        """See Engine. It needs no engine process, so it also works while there is none."""
        if self.limits is None:
            raise EngineFailed(self.error or "the engine has not been loaded yet")
        return check_against(self.limits, prompt_ids, params, priority)

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        request_id: str,
        priority: int = 0,
        trace: RequestTrace | None = None,
        on_end: OnEnd | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """See Engine. Taken in while there is no engine process, too: the next one is asked."""
        check_alive(self, self._setting_to_blame)
        params = self.check(prompt_ids, params, priority)
        assert self.limits is not None
        assert self._requests is not None
        notes = None if trace is None else RequestNotes(trace, len(prompt_ids), self.limits.block_size)
        return self._requests.take_in(request_id, prompt_ids, params, priority, notes, on_end)

    def abort(self, request_id: str) -> None:
        """See Engine."""
        if self._requests is not None:
            self._requests.abort(request_id)

    async def block_map(self) -> bytes:
        """See Engine. Empty as well when the engine doesn't come to it in time."""
        return await self._maps.ask() if self.state == "ready" else b""

    # The engine processes, one after the other.

    async def _supervise(self) -> None:
        """Keep one running, until this is stopped."""
        assert self._requests is not None
        policy, began = self._make_policy(), time.monotonic()
        try:
            while True:
                why, changed = await self._one_life(policy, began)
                if self.limits is None:  # it has never been ready, and the next one wouldn't be either
                    return self._give_up(why)
                if self._requests.progress:  # it was of use: this isn't an engine that can only die
                    policy, self._requests.progress = self._make_policy(), False
                began = time.monotonic()
                wait = None if changed or self.state == "failed" else policy.on_exit(began)
                if wait is None:
                    if policy.num_exits > 1 and not changed:
                        why = f"its process ended {policy.num_exits} times in a row; the last time {why}"
                    self._give_up(why)
                    policy, wait = self._make_policy(), self._retry_s
                await asyncio.sleep(wait)
        except Exception as error:  # a bug here: nobody may wait for what won't come
            logger.exception("the supervision of the engine has failed")
            self._give_up(in_words(error))

    async def _one_life(self, policy: RestartPolicy, away_since: float) -> tuple[str, bool]:
        """One engine process, from its start to its end. Returns why it ended, or wasn't started; and whether that is
        because the model's files have changed."""
        assert self._tokenizer is not None
        assert self._requests is not None
        assert self._files is not None
        began = time.monotonic()

        def on_ready() -> None:
            policy.on_ready(now := time.monotonic())
            self._load_s = self._load_s or now - began
            self._on_ready(now - away_since)

        try:
            await in_thread(self._files.check)
        except FilesChanged as error:
            return str(error), True
        except (OSError, RuntimeError) as error:  # no thread; no file can be opened; a network's disk is away
            return f"it can't be started: {error}", False

        options = asdict(self.options)
        if self.limits is not None:  # as it was before: what a request was promised must fit, and go on as it began
            options |= {"num_blocks": self.limits.num_blocks, "attention": self.limits.attention}
        patience = self._patience.after(policy.num_exits, self._load_s)
        child = self._child = EngineChild(self.path, self._on_frame, on_ready, patience, self._command)
        try:
            await child.start()
            child.send("load", {"engine": options, "version": self.version, "eos_ids": sorted(self._tokenizer.eos_ids)})
            why = await child.end()
        except OSError as error:
            why = f"it can't be started: {error}"
        finally:
            self._child = None
            await child.stop()
        if self.limits is not None:
            if self.state != "failed":
                self.state = "restarting"
                self._settled.clear()
            self._requests.on_death(why)
            self._maps.on_death()
            how = "was ended" if child.hung else "has ended"
            text = f"the engine process {how}: {why}; open requests: {len(self._requests)}"
            self.on_event("engine_hung" if child.hung else "engine_died", text)
        return why, False

    def _on_ready(self, seconds: float) -> None:
        assert self._requests is not None
        first, self.state, self.error = self.state == "loading", "ready", ""
        self._settled.set()
        text = f"the engine is ready after {seconds:.1f} s"
        text += "" if first else f"; open requests that go on: {len(self._requests)}"
        self.on_event("engine_ready" if first else "engine_restarted", text)
        self._requests.on_ready()

    def _give_up(self, why: str) -> None:
        """The reason is for the operator: it may name files."""
        again, self.state, self.error = self.state == "failed", "failed", why
        self._settled.set()
        if again:
            return
        hope = "" if self.limits is None else f". It is tried again every {self._retry_s:g} s"
        self.on_event("engine_failed", why + hope)
        if self._requests is not None:
            self._requests.end_all(lambda: GenerationError("the engine has failed"))

    # What they say and are told.

    def _send(self, kind: str, *fields: Any) -> None:
        if self._child is not None:
            self._child.send(kind, *fields)

    def _on_frame(self, frame: Frame) -> None:
        assert self._requests is not None
        kind, *fields = frame
        if kind == "step":
            stats = StepStats(*fields[0])
            self._requests.on_step(stats, *fields[1:])
            try:
                self.on_step(stats)
            except Exception:  # the engine isn't to blame, nor are its requests
                logger.exception("a step could not be told on")
        elif kind == "refused":
            self._requests.on_refused(*fields)
        elif kind == "ready":
            self.limits = EngineLimits(**fields[0])
        elif kind == "failed":
            _, self._setting_to_blame = fields
        elif kind == "map":
            self._maps.on_map(*fields)
        elif kind == "log":
            level, name, text, trouble = fields
            log = logging.getLogger(name)
            if log.isEnabledFor(level):
                record = log.makeRecord(name, level, "", 0, text, (), None)
                record.exc_text = trouble or None
                log.handle(record)

    def _on_failure(self, request_id: str, why: str) -> None:
        self.on_event("request_failed", f"{request_id}: {why}")
