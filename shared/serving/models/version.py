"""One loaded version of a model, and the ways in which it may not be had."""

import asyncio
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shared import in_words
from shared.serving.engines.engine import Engine
from shared.serving.errors import ApiError
from shared.serving.models.text_model import TextModel

State = Literal["loading", "warming", "checking", "ready", "rejected", "failed", "unloading"]
SEPARATOR = "@"
GOOD_NAME = re.compile(r"[A-Za-z0-9._:+-]{1,64}")


class UnknownModel(ApiError):
    """No model of that name, or no version."""

    def __init__(self, name: str, known: list[str]) -> None:
        message = f"The model {name!r} does not exist; this server has {', '.join(map(repr, known)) or 'none yet'}."
        super().__init__(404, message, param="model", code="model_not_found")


class NotReady(ApiError):
    """It is there, and can't answer now."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, type="server_error", code="not_ready", headers={"Retry-After": "5"})


class Refused(ApiError):
    """What the operator asks for can't be done as things are; the message says what to do about it."""

    def __init__(self, message: str, code: str = "conflict", param: str | None = None) -> None:
        super().__init__(409, message, code=code, param=param)


def invalid(message: str, param: str) -> ApiError:
    """The operator's fault: 400, and which parameter it is."""
    return ApiError(400, message, param=param, code="invalid_value")


@dataclass(eq=False)
class Version:
    """One loaded model. `name` is its own in this server; `model` is what callers ask for.

    settled: its loading; done when the state is "ready", "rejected" (it can answer, but the gate found it worse) or
    "failed" (there is no engine; `error` and `failure` say why). warm_up, gate: what those found. results: what it
    answered to the regression set. num_open: requests being answered; num_requests, num_tokens: requests, and their
    output tokens, so far.
    """

    name: str
    model: str
    path: Path
    engine: Engine
    text: TextModel | None = None
    state: State = "loading"
    error: str = ""
    failure: BaseException | None = None
    warm_up: dict[str, float] = field(default_factory=dict)
    gate: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))
    num_open: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    settled: asyncio.Task[None] | None = None
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        """What a request names that wants this version and no other."""
        return f"{self.model}{SEPARATOR}{self.name}"

    @property
    def status(self) -> str:
        """The state, as whoever wants answers sees it: what is ready and has lost its engine has failed."""
        return "failed" if self.state == "ready" and self.engine.state == "failed" else self.state

    @property
    def trouble(self) -> str:
        """What is wrong with it, or with its engine; mostly nothing."""
        return self.error or self.engine.error

    def check_may_serve(self, force: bool) -> None:
        """Raise Refused, saying why, unless it may be given requests. force: one that the gate has rejected, too."""
        if self.state == "rejected" and not force:
            why = f'{self.error.rstrip(".")}. Send "force": true to overrule this.'
            raise Refused(f"{self.name!r} was not promoted: {why}", "version_rejected")
        if self.state not in ("ready", "rejected"):
            how = "can't be loaded" if self.state == "failed" else f"is {self.state}"
            why = f": {self.error.rstrip('.')}" if self.error else "; wait until it is ready"
            raise Refused(f"{self.name!r} {how}{why}.", f"version_{self.state}")
        if self.engine.state == "failed":
            raise Refused(f"The engine of {self.name!r} has failed: {self.engine.error.rstrip('.')}.", "engine_failed")

    def enter(self) -> None:
        """A request begins; the version isn't unloaded before it leaves."""
        self.num_open += 1
        self.num_requests += 1
        self._empty.clear()

    def leave(self, output_tokens: int = 0) -> None:
        """A request has ended, with so many output tokens."""
        self.num_open -= 1
        self.num_tokens += output_tokens
        if not self.num_open:
            self._empty.set()

    async def emptied(self) -> None:
        """Wait until no request is being answered."""
        if self.num_open:
            await self._empty.wait()


def check_names(name: str, model: str) -> None:
    """Raises ApiError for names that a version and its model can't have."""
    if not GOOD_NAME.fullmatch(name):
        message = "name: must be at most 64 letters, digits and signs among . _ : + -"
        raise invalid(f"{message}, not {name[:80]!r}.", "name")
    if not model.isprintable() or not 0 < len(model) <= 128 or SEPARATOR in model:
        raise invalid(f"model: must be a name of at most 128 characters without {SEPARATOR}.", "model")


def reason(error: BaseException) -> str:
    """An exception in words: the first one of a group, and its kind where it says nothing."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, asyncio.CancelledError):
        return "it was stopped while it was being loaded"
    plain = isinstance(error, ValueError | OSError | RuntimeError | ApiError) and str(error)
    return str(error) if plain else in_words(error)
