"""The pytest side of the exercises: skip what is to do and name its place, say why an answer is wrong."""

import json
import re
import signal
import threading
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from chapters import ROOT, Todo
from chapters.exercises import Book
from chapters.judge import Rejected
from chapters.variants import serve_reference

SECONDS = 30  # for one test of an exercise
PRINTED = 20  # lines of what a failing test printed that are shown, the last ones
results = pytest.StashKey[list[dict[str, Any]]]()
endless = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options by which `check` and `verify` run one exercise's tests and read what came of them."""
    group = parser.getgroup("exercises")
    group.addoption(
        "--exercise", action="append", default=[], metavar="ID", help="run only this exercise's tests (9.4)"
    )
    group.addoption("--reference", action="store_true", help="judge the finished modules of shared/, not the reader's")
    group.addoption("--results", metavar="FILE", help="write each exercise test's outcome to FILE, as JSON")
    group.addoption("--judges-only", action="store_true", help="of the chapters' folders, only what judges an exercise")
    group.addoption("--until-rejected", action="store_true", help="stop after the first test that says why it fails")
    group.addoption("--exercise-seconds", type=float, default=SECONDS, metavar="S", help="limit for one exercise test")


def pytest_configure(config: pytest.Config) -> None:
    """Name the markers; with --reference, serve shared/'s modules under the readers' names."""
    config.addinivalue_line("markers", "exercise(id): judges one exercise; skipped while that is still to do")
    config.addinivalue_line("markers", "real: needs the real model (fetched on first use)")
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "longest: takes minutes, so it begins first, and others run beside it")
    config.stash[results] = []
    config.stash[endless] = set()
    if config.getoption("--reference"):
        serve_reference(Book())


def exercise_id(item: pytest.Item) -> str | None:
    """The exercise that a test judges, such as "9.4"; None for a test of anything else."""
    marker = item.get_closest_marker("exercise")
    return marker.args[0] if marker else None


def of_a_chapter(item: pytest.Item) -> bool:
    """Whether the test lies in a chapter's folder, tests/chNN_*/."""
    return bool(re.search(r"\btests/ch\d\d_\w+/", item.nodeid))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what wasn't asked for, begin with the longest, and skip what needs a GPU where there is none."""
    wanted = set(config.getoption("--exercise"))
    judges_only = config.getoption("--judges-only")
    left: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        ident = exercise_id(item)
        keep = ident in wanted if wanted else not (judges_only and ident is None and of_a_chapter(item))
        (left if keep else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = left
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            for item in items:
                if item.get_closest_marker("gpu"):
                    item.add_marker(pytest.mark.skip(reason="needs a CUDA device; there is none here"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Stop an exercise's test that doesn't end."""
    limit = item.config.getoption("--exercise-seconds")
    alarm = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    ident = exercise_id(item)
    if ident is None or not alarm:
        return (yield)
    if ident in item.config.stash[endless]:
        raise Rejected("not run, since an earlier test of this exercise did not end", "mend that one first")

    started = time.monotonic()

    def stop(_: int, frame: FrameType | None) -> None:
        if (elapsed := time.monotonic() - started) < 0.9 * limit:
            raise Rejected(
                f"the signal SIGALRM came after {elapsed:.1f} s",
                "a timer of yours sent it: ITIMER_REAL counts the time on the wall and sends SIGALRM",
            )
        item.config.stash[endless].add(ident)  # one of them is enough to wait for
        places = readers_lines(traceback.extract_stack(frame))
        raise Rejected(
            f"not finished after {limit:g} s" + (f", at {places[0]}" if places else ""),
            "a loop that never ends (what should make it stop?), far more work than this input needs, or a lock that "
            "waits for itself",
        )

    clocks = {signal.SIGALRM: signal.ITIMER_REAL, signal.SIGPROF: signal.ITIMER_PROF}
    before = {number: signal.getsignal(number) for number in clocks}
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return (yield)
    except Rejected as error:
        if ident in item.config.stash[endless]:
            # The signal may have come between two lines, and pytest can't show a traceback without a line.
            raise error.with_traceback(None) from None
        raise
    finally:
        for number, clock in clocks.items():  # a wrong answer may have left a clock running: it must not ring elsewhere
            signal.setitimer(clock, 0)
            signal.signal(number, before[number])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a Todo into a skip and a Rejected into its words, and note the outcome for --results."""
    report = yield
    ident = exercise_id(item)
    outcome: dict[str, Any] | None = None
    if call.excinfo is not None:
        error, places = call.excinfo.value, readers_lines(traceback.extract_tb(call.excinfo.tb))
        place = places[0] if places else ""
        todo = find_todo(error)
        if todo is not None:
            report.outcome = "skipped"
            file, line = stub_place(todo)
            report.longrepr = (str(item.path), line, f"Skipped: exercise {todo.exercise_id} is to do: {file}:{line}")
            outcome = {"outcome": "todo", "todo": todo.exercise_id, "place": f"{file}:{line}"}
        elif report.failed and isinstance(error, Rejected):
            said = filter(None, (error.detail, error.because, place))
            report.longrepr = f"{ident or item.name}: " + "\n     ".join(said)
            outcome = {"outcome": "rejected", "detail": error.detail, "because": error.because, "place": place}
            if error.because and item.config.getoption("--until-rejected"):
                item.session.shouldfail = "one is enough"
        elif report.failed:
            detail = "".join(traceback.format_exception_only(error)).strip()
            outcome = {
                "outcome": "crashed",
                "detail": detail,
                "because": "",
                "place": place,
                "places": places,
                "traceback": str(report.longrepr),
            }
        elif report.skipped:
            outcome = {"outcome": "skipped", "detail": str(error)}
    elif report.when == "call" and report.passed:
        outcome = {"outcome": "passed"}
    if ident is not None and outcome is not None:
        if outcome["outcome"] in ("rejected", "crashed") and report.capstdout:
            printed = report.capstdout.splitlines()
            outcome["printed"] = [line[:300] for line in printed[-PRINTED:]]
            outcome["unseen"] = max(len(printed) - PRINTED, 0)
        item.config.stash[results].append({"exercise": ident, "test": item.nodeid, **outcome})
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcomes to the file of --results: a list of {exercise, test, outcome, …}."""
    outcomes, file = session.config.stash[results], session.config.getoption("--results")
    if hasattr(session.config, "workeroutput"):  # one of several that pytest-xdist has started
        session.config.workeroutput["exercises"] = outcomes
    elif file:
        Path(file).write_text(json.dumps(outcomes), encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add a worker's outcomes to those that are written at the end; one that crashed has none."""
    node.config.stash[results].extend(getattr(node, "workeroutput", {}).get("exercises", []))


def find_todo(error: BaseException | None) -> Todo | None:
    """The Todo behind an error, also when a caller wrapped it in an error of its own."""
    while error is not None:
        if isinstance(error, Todo):
            return error
        if isinstance(error, BaseExceptionGroup):
            return next((found for inner in error.exceptions if (found := find_todo(inner))), None)
        error = error.__cause__ or error.__context__
    return None


def stub_place(todo: Todo) -> tuple[str, int]:
    """File and line of the stub that raised."""
    frame = traceback.extract_tb(todo.__traceback__)[-1]
    return shown(frame.filename), frame.lineno or 0


def readers_lines(stack: traceback.StackSummary) -> list[str]:
    """The places in readers' files, innermost first, each as `chapters/ch09_kv_cache/kv_cache.py:41`."""
    named = [(shown(frame.filename), frame.lineno) for frame in reversed(stack)]
    # a loop's jump back stands in no line
    return [f"{name}:{line}" if line else name for name, line in named if name.startswith("chapters/ch")]


def shown(filename: str) -> str:
    """A path as messages name it: from the repository's root, where it is below that."""
    path = Path(filename)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else filename
