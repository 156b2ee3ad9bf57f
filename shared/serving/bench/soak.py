"""A long run with callers of all kinds, and then a look at what the processes hold that they did not hold before."""

import base64
import random
import time
from itertools import islice
from typing import Any

from shared.measure.progress import progress_bar
from shared.measure.trace import TraceRequest
from shared.serving.bench.callers import Ask
from shared.serving.bench.fuzz import requests
from shared.serving.bench.run import FIRST_ID, Callers, Numbers, Setup, callers_at, completion, statuses, verdict, vocab
from shared.serving.bench.server import ServerUnderTest, memory_mb, num_files, server_under_test
from shared.serving.bench.slow_reader import wait_until_idle

SECONDS = 30 * 60.0
WARM_UP = 0.2  # of the time: until then the processes may grow
EVERY_S = 5.0
PART_S = 60.0  # callers are new processes every minute: theirs isn't the memory that is looked at
RATE = 2.0  # requests a second
KINDS = {"stream": 40, "whole": 20, "leaves": 15, "fuzzed": 15, "slow": 5, "invalid": 5}
MOST_GROWTH = 0.03
MET = 1000


def measure_soak(setup: Setup) -> Numbers:
    """Memory at rest after the warm-up and at the end, and what is left of tasks, files, blocks and metric series."""
    seconds = setup.seconds or SECONDS
    warm_up, rests = WARM_UP * seconds, []
    samples: list[Numbers] = []
    counted: dict[str, int] = {}
    with (
        server_under_test(setup.model) as server,
        progress_bar("soak: seconds", int(seconds), setup.progress) as step,
    ):
        meet_all(server, counted)
        for number, part in enumerate((warm_up, seconds - warm_up)):
            soak(server, part, number, counted, samples, step)
            rests.append(at_rest(server))
    held, new = verdicts(rests[0], rests[1], counted), sorted(set(rests[1]["series"]) - set(rests[0]["series"]))
    first, last = ({**rest, "series": len(rest["series"])} for rest in rests)
    return {"seconds": seconds, "requests": sum(counted.values()), "statuses": dict(sorted(counted.items())),
            "after_warm_up": first, "at_the_end": last, "new_series": new, "samples": samples,
            "verdicts": held}  # fmt: skip


def meet_all(server: ServerUnderTest, counted: dict[str, int]) -> None:
    """Every kind of error once, or nearly: each has metric series of its own."""
    raw = islice(requests(99, server.model), MET)
    asks = [Ask(i, raw=base64.b64encode(one).decode(), hold_s=20.0) for i, one in enumerate(raw)]
    with callers_at(server, asks, callers=8) as at_work:
        for name, n in statuses(at_work.wait()).items():
            counted[name] = counted.get(name, 0) + n


def soak(
    server: ServerUnderTest, seconds: float, seed: int, counted: dict[str, int], samples: list[Numbers], step: Any
) -> None:
    """Load for so many seconds, in parts. counted, samples: filled as it goes, so that Ctrl-C loses nothing."""
    end, turn = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 1:
        asks = mixed(min(PART_S, left), 1000 * seed + turn, server.model, vocab(server))
        with callers_at(server, asks) as at_work:
            watch(server, at_work, samples, step)
            for name, n in statuses(at_work.wait()).items():
                counted[name] = counted.get(name, 0) + n
        turn += 1


def watch(server: ServerUnderTest, at_work: Callers, samples: list[Numbers], step: Any) -> None:
    """Look at the processes now and then, as long as the callers are at work."""
    ticks = 0
    while at_work.running:
        at_work.wait(1.0)
        step()
        ticks += 1
        if ticks % EVERY_S == 0:
            samples.append({"at": time.monotonic(), **held(server)})


def mixed(seconds: float, seed: int, model: str, ids_from: tuple[int, int]) -> list[Ask]:
    """Requests of all kinds, at random times."""
    rng, raw = random.Random(seed), requests(seed, model)
    asks: list[Ask] = []
    for i in range(max(1, int(RATE * seconds))):
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        ids = tuple(rng.randrange(*ids_from) for _ in range(rng.randint(4, 100)))
        if rng.random() < 0.3:
            ids = tuple(range(FIRST_ID, FIRST_ID + 96)) + ids  # a beginning that others have, too
        ask = completion(i, TraceRequest(ids, rng.randint(1, 48), rng.uniform(0, seconds)), model)
        if kind == "whole":
            ask.body |= {"stream": False, "stream_options": None}
        elif kind == "leaves":
            ask.leave_after = rng.randint(1, 20)
            ask.body["max_tokens"] = 200
        elif kind == "slow":
            ask.bytes_per_s, ask.hold_s = 1.0, min(rng.uniform(5, 30), seconds - ask.at + 1)
        elif kind == "invalid":
            ask.body |= rng.choice([{"model": "none"}, {"temperature": "hot"}, {"n": 0}, {"prompt": []}, {"what": 1}])
        elif kind == "fuzzed":
            ask = Ask(i, ask.at, raw=base64.b64encode(next(raw)).decode(), hold_s=20.0)
        asks.append(ask)
    return asks


def held(server: ServerUnderTest) -> Numbers:
    """What both processes hold now."""
    api, engine = server.process.pid, server.engine_pid
    return {
        "api": memory_mb(api), "engine": memory_mb(engine) if engine else None,
        "api_files": num_files(api), "engine_files": num_files(engine) if engine else None,
    }  # fmt: skip


def at_rest(server: ServerUnderTest) -> Numbers:
    """What is held when nobody asks for anything. The engine tells its numbers after each step: so there is one."""
    with callers_at(server, [completion(0, TraceRequest((FIRST_ID,), 1), server.model)]) as at_work:
        at_work.wait()
    wait_until_idle(server)
    metrics = server.metrics()
    return held(server) | {
        "series": sorted(key for key in metrics if 'le="' not in key),  # a histogram's buckets count as one with it
        "open_requests": sum(version["requests"]["open"] for version in server.versions()),
        "tasks": total(metrics, "tasks"),
        "blocks_used": total({key: value for key, value in metrics.items() if 'state="used"' in key}, "llm_kv_blocks"),
    }


def total(metrics: dict[str, float], name: str) -> float | None:
    """The sum of the series whose names hold this; None when there is none."""
    found = [value for key, value in metrics.items() if name in key.partition("{")[0]]
    return sum(found) if found else None


def verdicts(before: Numbers, after: Numbers, counted: dict[str, int]) -> list[Numbers]:
    """What may not grow, and whether it has: memory, metric series, files, errors."""
    bad = {name: n for name, n in counted.items() if name.startswith("5") and not name.startswith("503")}
    growth = {side: after[side]["rss"] / before[side]["rss"] - 1 for side in ("api", "engine")}
    said = ", ".join(f"{side} {before[side]['rss']:.0f} to {after[side]['rss']:.0f} MB: {grown:+.1%}"
                     for side, grown in growth.items())  # fmt: skip
    found = [verdict("memory grows by under 3%", said, max(growth.values()) < MOST_GROWTH)]
    more = set(after["series"]) - set(before["series"])
    found.append(
        verdict(
            "no metric series without bound (under 5% more: kinds of errors not met before)",
            f"{len(before['series'])} and {len(after['series'])}",
            len(more) < 0.05 * len(before["series"]),
        )
    )
    for name, what in (("api_files", "file of the API process"), ("engine_files", "file of the engine"),
                       ("tasks", "task")):  # fmt: skip
        holds = before[name] is None or after[name] <= before[name]
        found.append(verdict(f"no leaked {what}", f"{before[name]} and {after[name]}", holds))
    left = after["blocks_used"]
    found.append(verdict("no leaked block", f"{left} in use at rest", not left))
    found.append(verdict("no open request at rest", str(after["open_requests"]), after["open_requests"] == 0))
    found.append(verdict("no 5xx but 503", str(bad or "none"), not bad))
    return found
