"""What the parts of the benchmark share: callers at work, requests made of a trace, sums, and verdicts."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared import ROOT
from shared.measure.progress import progress_bar
from shared.measure.summary import percentile
from shared.measure.trace import Trace, TraceRequest
from shared.serving.bench.callers import Ask, Seen
from shared.serving.bench.server import ServerUnderTest

FIRST_ID = 100  # as in make_trace: SmolLM2's first ids are special tokens

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """What all parts are told. seconds: how long a part measures that could go on for ever; count: how many kills,
    requests or rounds; None: the part's own choice."""

    model: Path | None = None
    seconds: float | None = None
    count: int | None = None
    progress: bool = True


class Callers:
    """The callers' process at work. `seen` grows as requests end; `told`, called in another thread, hears of each."""

    def __init__(
        self,
        server: ServerUnderTest,
        asks: Sequence[Ask],
        callers: int | None = None,
        told: Callable[[Seen], None] = lambda seen: None,
    ) -> None:
        self.seen: list[Seen] = []
        self.usage: dict[str, float] = {}
        self._told = told
        plan = {"host": server.host, "port": server.port, "callers": callers, "requests": [asdict(a) for a in asks]}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shared.serving.bench.callers"], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, "BOOK_REFERENCE": "1"},
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, args=(json.dumps(plan).encode(),), daemon=True)
        self._thread.start()

    def _read(self, plan: bytes) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(plan)
        self.process.stdin.close()
        for line in self.process.stdout:
            found = json.loads(line)
            if "cpu_s" in found:
                self.usage = found
            else:
                self.seen.append(Seen(**found))
                self._told(self.seen[-1])

    @property
    def running(self) -> bool:
        """Whether any request is still open or to be sent."""
        return self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> list[Seen]:
        """What was seen, in the requests' order; with `seconds`, what was seen until then."""
        self._thread.join(seconds)
        return sorted(self.seen, key=lambda seen: seen.index)

    def stop(self) -> None:
        """End the callers at once; what was seen so far stays."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._thread.join()


@contextmanager
def callers_at(
    server: ServerUnderTest, asks: Sequence[Ask], callers: int | None = None, told: Callable[[Seen], None] | None = None
) -> Iterator[Callers]:
    """Callers, who are gone at the end of the block."""
    at_work = Callers(server, asks, callers, told or (lambda seen: None))
    try:
        yield at_work
    finally:
        at_work.stop()


def ask_all(
    server: ServerUnderTest, asks: Sequence[Ask], callers: int | None, label: str, progress: bool
) -> list[Seen]:
    """What all saw, with a progress bar."""
    with (
        progress_bar(label, len(asks), progress) as step,
        callers_at(server, asks, callers, told=lambda seen: step()) as at_work,
    ):
        return at_work.wait()


def completion(index: int, request: TraceRequest, model: str, **more: Any) -> Ask:
    """A trace's request as /v1/completions takes it: greedy, streamed, and of exactly its length."""
    body = {
        "model": model, "prompt": list(request.prompt_ids), "max_tokens": request.max_new_tokens, "temperature": 0,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, **more.pop("body", {}),
    }  # fmt: skip
    return Ask(index, request.at, body=body, **more)


def vocab(server: ServerUnderTest) -> tuple[int, int]:
    """The ids that prompts may be made of, for make_trace."""
    return FIRST_ID, server.limits["vocab_size"]


def other_ids(trace: Trace, turn: int, vocab: tuple[int, int]) -> list[TraceRequest]:
    """The same lengths with other tokens, so that nothing of them is in the prefix cache."""
    low, high = vocab
    moved = [tuple(low + (token - low + 7919 * turn) % (high - low) for token in r.prompt_ids) for r in trace]
    return [TraceRequest(ids, r.max_new_tokens, r.at) for ids, r in zip(moved, trace, strict=True)]


def verdict(promise: str, measured: str, holds: bool) -> Numbers:
    """What was promised, what was measured, and whether it holds."""
    return {"promise": promise, "measured": measured, "holds": bool(holds)}


def answered(seen: Sequence[Seen]) -> list[Seen]:
    """Those that were answered in full."""
    return [one for one in seen if one.status == 200 and not one.error]


def statuses(seen: Sequence[Seen]) -> dict[str, int]:
    """How many requests ended how: by status, and by the error where there was one."""
    found: dict[str, int] = {}
    for one in seen:
        name = f"{one.status} {one.error}".strip()
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def ttft(seen: Sequence[Seen]) -> list[float]:
    """Seconds from each arrival to its first token, of those answered in full."""
    return [one.times[0] - one.arrived for one in answered(seen) if one.times]


def e2e(seen: Sequence[Seen]) -> list[float]:
    """Seconds from each arrival to its last token, of those answered in full."""
    return [one.ended - one.arrived for one in answered(seen)]


def p(values: Sequence[float], percent: float) -> float | None:
    """A percentile, to a tenth of a millisecond; None of nothing."""
    return round(percentile(values, percent), 4) if values else None


def rate(seen: Sequence[Seen]) -> float:
    """Output tokens a second of the answers in full, from the first arrival to the last end."""
    done = answered(seen)
    return sum(s.tokens for s in done) / (max(s.ended for s in done) - min(s.arrived for s in seen)) if done else 0.0
