"""What an engine says to its callers: the pieces of an answer, and the ways in which there may be none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


class QueueFull(RuntimeError):
    """As many requests as allowed run and wait; those should have been served in about `retry_after_s` seconds."""

    def __init__(self, retry_after_s: float = 1.0) -> None:
        super().__init__(
            f"as many requests as may run and wait are here already; try again in about {retry_after_s:.0f} s"
        )
        self.retry_after_s = retry_after_s


class EngineStopped(RuntimeError):
    """The engine isn't running, or was stopped before it could finish this request."""


class GenerationError(RuntimeError):
    """This request failed inside the model or its tools; the engine goes on with the others."""


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely the model found one token, before any temperature, penalty or filter: natural logarithms.

    top: the likeliest tokens, as many as were asked for, the likeliest first; the chosen one need not be among them.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class RequestOutput:
    """What is new since the last output of the same answer. Text may lag behind the tokens: see Detokenizer.

    finish_reason is None except in the answer's last output: "stop" (an end-of-sequence token or a stop text), "length"
    (max_tokens, or the end of the context) or "abort". Special tokens are in token_ids and have no text. index: which
    of the request's n answers it belongs to, from 0. logprobs: one for each token, where the request asks for them.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: list[TokenLogprobs] | None = None


Outputs = list[tuple[str, RequestOutput | GenerationError]]  # request id, and what is new of it


def joined(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """The pieces of one answer as one."""
    last = outputs[-1]
    logprobs = None if last.logprobs is None else [entry for output in outputs for entry in output.logprobs or []]
    ids = [token for output in outputs for token in output.token_ids]
    return RequestOutput("".join(o.text for o in outputs), ids, last.finish_reason, last.index, logprobs)
