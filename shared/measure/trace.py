"""Traces: which requests come, how long they are, and when. Made from a seed, kept as JSON, checked when read.

{"requests": [{"prompt_ids": [1, 2, 3], "max_new_tokens": 8, "at": 0.25}, …]}, with "at" in seconds from the start;
a request without it is there from the start.
"""

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.measure.files import write_json


class TraceError(ValueError):
    """A trace that can't be replayed. The message says where (file, request, field) and what was expected."""


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace: generate `max_new_tokens` from `prompt_ids`, due `at` seconds after the start."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    at: float = 0.0


Trace = Sequence[TraceRequest]


def make_trace(
    n_requests: int,
    seed: int = 0,
    prompt_lengths: tuple[int, int] = (16, 128),
    output_lengths: tuple[int, int] = (16, 128),
    rate: float | None = None,
    vocab: tuple[int, int] = (100, 49_152),
) -> list[TraceRequest]:
    """Make a trace that is the same for the same arguments, on every machine.

    prompt_lengths, output_lengths: shortest and longest, in tokens; drawn log-uniformly, so that 16 to 32 is as
    frequent as 64 to 128: real lengths have many short ones and a long tail. rate: requests per second, with
    exponential gaps between arrivals (a Poisson process: callers who know nothing of one another); None: all at 0.
    vocab: the ids are drawn from vocab[0] up to, but not including, vocab[1]; SmolLM2's first ids are special tokens.
    Raises ValueError for an argument that makes no sense.
    """
    if n_requests < 1:
        raise ValueError(f"n_requests must be at least 1, not {n_requests}")
    for name, (low, high) in {"prompt_lengths": prompt_lengths, "output_lengths": output_lengths}.items():
        if not 1 <= low <= high:
            raise ValueError(f"{name} must be (shortest, longest) with 1 <= shortest <= longest, not {(low, high)}")
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"rate must be a number of requests per second above 0, not {rate}")
    if not 0 <= vocab[0] < vocab[1]:
        raise ValueError(f"vocab must be (first id, last id + 1) with 0 <= first < last + 1, not {vocab}")
    rng = random.Random(seed)  # its random() is the same on every platform and version of Python
    trace, at = [], 0.0
    for _ in range(n_requests):
        n_prompt, n_output = _log_uniform(rng, *prompt_lengths), _log_uniform(rng, *output_lengths)
        ids = tuple(vocab[0] + int(rng.random() * (vocab[1] - vocab[0])) for _ in range(n_prompt))
        if rate is not None:
            at += -math.log(1.0 - rng.random()) / rate  # the inverse of the exponential's distribution function
        trace.append(TraceRequest(ids, n_output, round(at, 6)))
    return trace


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    """A whole number from low to high, both included, whose logarithm is spread evenly."""
    return min(high, int(math.exp(math.log(low) + rng.random() * (math.log(high + 1) - math.log(low)))))


def fingerprint(trace: Trace) -> str:
    """Twelve hex digits that are the same for the same requests: two results compare only when theirs agree."""
    return hashlib.sha256(json.dumps(_as_json(trace)).encode()).hexdigest()[:12]


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as JSON, in one step."""
    write_json(path, _as_json(trace))


def _as_json(trace: Trace) -> dict[str, Any]:
    requests = [{"prompt_ids": list(r.prompt_ids), "max_new_tokens": r.max_new_tokens, "at": r.at} for r in trace]
    return {"requests": requests}


def read_trace(path: Path) -> list[TraceRequest]:
    """Read and check a trace. Raises TraceError with the file, the request's index and the field at fault."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such file") from None
    except OSError as error:
        raise TraceError(f"{path}: can't be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8; is this a JSON file?") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in thousands
        raise TraceError(f"{path}: can't be read as JSON: {error}") from None
    return parse_trace(data, source=str(path))


def parse_trace(data: Any, source: str = "trace") -> list[TraceRequest]:
    """Check a parsed JSON trace and make requests of it. Fields it doesn't know are left aside. Raises TraceError."""
    if not isinstance(data, dict) or "requests" not in data:
        raise TraceError(f'{source}: must be an object with the field "requests", not {_short(data)}')
    requests = data["requests"]
    if not isinstance(requests, list) or not requests:
        raise TraceError(f"{source}: requests must be a list of at least one request, not {_short(requests)}")
    return [_parse_request(request, f"{source}: requests[{index}]") for index, request in enumerate(requests)]


def check_fits(trace: Trace, vocab_size: int, max_length: int, source: str = "trace") -> None:
    """Check that a model can replay a trace. Raises TraceError for an id outside its vocabulary or past its context."""
    for index, request in enumerate(trace):
        where = f"{source}: requests[{index}]"
        for place, token in enumerate(request.prompt_ids):
            if token >= vocab_size:
                raise TraceError(f"{where}.prompt_ids[{place}]: {token} is outside the model's vocabulary "
                                 f"of {vocab_size}")  # fmt: skip
        if (total := len(request.prompt_ids) + request.max_new_tokens) > max_length:
            raise TraceError(
                f"{where}.max_new_tokens: {len(request.prompt_ids)} prompt tokens and {request.max_new_tokens} new "
                f"ones make {total}; the model's context holds {max_length}"
            )


def _parse_request(request: Any, where: str) -> TraceRequest:
    if not isinstance(request, dict):
        raise TraceError(f"{where}: must be an object, not {_short(request)}")
    for name in ("prompt_ids", "max_new_tokens"):
        if name not in request:
            raise TraceError(f"{where}.{name}: missing")
    ids, n, at = request["prompt_ids"], request["max_new_tokens"], request.get("at")
    if not isinstance(ids, list) or not ids:
        raise TraceError(f"{where}.prompt_ids: must be a list of at least one token id, not {_short(ids)}")
    for place, token in enumerate(ids):
        if type(token) is not int or token < 0:  # a bool is an int to isinstance
            raise TraceError(f"{where}.prompt_ids[{place}]: must be a whole number of at least 0, not {_short(token)}")
    if type(n) is not int or n < 1:
        raise TraceError(f"{where}.max_new_tokens: must be a whole number of at least 1, not {_short(n)}")
    if at is None:
        at = 0.0
    if type(at) not in (int, float) or not 0 <= at < 1e9:  # refuses NaN too
        raise TraceError(f"{where}.at: must be a number of seconds from 0 to a billion, not {_short(at)}")
    return TraceRequest(tuple(ids), n, float(at))


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
