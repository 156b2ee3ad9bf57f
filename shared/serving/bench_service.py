"""The whole server measured: what HTTP costs, load beyond capacity, slow readers, kills, a long run, and fuzz."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shared.serving.bench.fuzz_run import measure_fuzz
from shared.serving.bench.kills import measure_kills
from shared.serving.bench.load import measure_load
from shared.serving.bench.overhead import measure_overhead
from shared.serving.bench.run import Numbers, Setup
from shared.serving.bench.server import ServerFailed
from shared.serving.bench.slow_reader import measure_slow_readers
from shared.serving.bench.soak import measure_soak

PARTS: dict[str, Callable[[Setup], Numbers]] = {
    "overhead": measure_overhead,
    "load": measure_load,
    "slow-reader": measure_slow_readers,
    "kills": measure_kills,
    "fuzz": measure_fuzz,
    "soak": measure_soak,
}


def bench_service(
    parts: Sequence[str] = tuple(PARTS), model: Path | None = None, seconds: float | None = None,
    count: int | None = None, progress: bool = True, say: Callable[[str, Numbers], None] = lambda part, numbers: None,
) -> dict[str, Any]:  # fmt: skip
    """The report: a group of numbers for each part, with its "verdicts", and whether Ctrl-C "interrupted" it.

    seconds: how long the soak, and each level of the load, lasts. count: of kills, of fuzzed requests, of rounds. say:
    told of each part when it is done. A part whose server fails is told in "failed" (part -> why).
    """
    report: dict[str, Any] = {"failed": {}, "interrupted": False}
    try:
        for part in parts:
            try:
                report[part] = PARTS[part](Setup(model, seconds, count, progress))
            except ServerFailed as error:
                report["failed"][part] = str(error)
                continue
            say(part, report[part])
    except KeyboardInterrupt:
        report["interrupted"] = True
    return report
