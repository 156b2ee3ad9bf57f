"""Clean a JSONL file: `python -m shared.data.clean IN OUT`.

The stages are pure functions, put in a row. A record that takes too long is dropped, and reported like any other.
"""

import signal

if __name__ == "__main__":  # Ctrl-C during the imports below then ends the process, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.data import cleaning, quality
from shared.data.corpus import write_record
from shared.data.guard import TooSlow, check_seconds, time_limit
from shared.data.reader import ReadStats, Record, count_lines, read_jsonl
from shared.data.report import Report
from shared.measure.command import run_command
from shared.measure.files import replacing, write_json
from shared.measure.outputs import check_output
from shared.measure.progress import progress_bar

SECONDS_PER_RECORD = 1.0
GUARD = "time limit"


@dataclass(frozen=True)
class Cleaner:
    """A stage that changes texts."""

    name: str
    apply: Callable[[str], str]


@dataclass(frozen=True)
class Filter:
    """A stage that drops texts: problem says why, or None for a text that may stay."""

    name: str
    problem: Callable[[str], str | None]


Stage = Cleaner | Filter


def html_if_html(text: str) -> str:
    """`strip_html` for what is HTML. Other text may talk of tags, and they belong to it."""
    return cleaning.strip_html(text) if cleaning.is_html(text) else text


# The order matters. Entities can spell an @ or a control character, so HTML goes first; white space comes after all
# that leaves some behind; length is measured on the text that would be kept.
STAGES: tuple[Stage, ...] = (
    Cleaner("html", html_if_html),
    Cleaner("control", cleaning.remove_control_characters),
    Cleaner("unicode", cleaning.normalise_unicode),
    Cleaner("whitespace", cleaning.normalise_whitespace),
    Cleaner("pii", cleaning.mask_pii),
    Filter("length", quality.length_problem),
    Filter("characters", quality.charset_problem),
    Filter("repetition", lambda text: quality.repetition_problem(text, quality.DOCUMENTATION)),
)


def clean_records(
    records: Iterable[Record],
    report: Report,
    stages: Sequence[Stage] = STAGES,
    seconds_per_record: float = SECONDS_PER_RECORD,
) -> Iterator[Record]:
    """The records that pass all stages, with their text cleaned.  What each stage did goes into report.

    seconds_per_record: CPU time after which a record is given up; it counts as removed by a last stage, "time limit".
    """
    counts = [(stage, report.stage(stage.name)) for stage in stages]
    guard = report.stage(GUARD)
    for record in records:
        source, text, start = str(record.get("source", "")), record["text"], time.perf_counter()
        try:
            with time_limit(seconds_per_record):
                cleaned = _through(text, source, counts)
        except TooSlow as error:
            guard.add(text, None, time.perf_counter() - start, source, f"too slow: {error}")
            continue
        if cleaned is not None:
            guard.add(cleaned, cleaned, 0.0)
            yield record | {"text": cleaned}


def _through(text: str, source: str, counts: Sequence[tuple[Stage, Any]]) -> str | None:
    for stage, count in counts:
        start = time.perf_counter()
        result: str | None = text
        reason = ""
        if isinstance(stage, Cleaner):
            result = stage.apply(text)
        elif problem := stage.problem(text):
            result, reason = None, problem
        count.add(text, result, time.perf_counter() - start, source, reason)
        if result is None:
            return None
        text = result
    return text


def clean_file(
    path_in: Path, path_out: Path, seconds_per_record: float = SECONDS_PER_RECORD, progress: bool = True
) -> tuple[ReadStats, Report]:
    """Read, clean, write; in memory is one record at a time.  path_out appears when all of it is written.

    Raises ValueError if the two are the same file, if path_out can't be written, and if there are lines in path_in, but
    not one record: path_out then stays as it was.
    """
    check_seconds(seconds_per_record)
    path_in.stat()  # says that there is no such file before anything is made
    check_output(path_out, {"the input": path_in})
    stats, report, total = ReadStats(), Report(), count_lines(path_in)
    with (
        progress_bar(f"cleaning {path_in.name}", total, enabled=progress) as step,
        replacing(path_out) as part,
        part.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        records = _counted(read_jsonl(path_in, stats=stats), step)
        for record in clean_records(records, report, STAGES, seconds_per_record):
            write_record(file, record)
        if stats.bad and not stats.good:
            raise ValueError(
                f"{path_in}: not one of its {stats.lines} lines is a record. Is this JSONL? Each line has to be an "
                f'object with a "text", in UTF-8. The first that is none:\n  {stats.first_bad[0]}'
            )
    return stats, report


def _counted(records: Iterator[Record], step: Callable[[], None]) -> Iterator[Record]:
    for record in records:
        step()
        yield record


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 when all is written, 2 for an error told in a line, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m shared.data.clean", description=__doc__.splitlines()[0])
    parser.add_argument("path_in", type=Path, metavar="IN", help="JSONL, plain or gzipped")
    parser.add_argument("path_out", type=Path, metavar="OUT", help="JSONL")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_PER_RECORD, help="CPU time for each record (%(default)s)"
    )
    parser.add_argument("--report", type=Path, help="write the report here too, as JSON")
    options = parser.parse_args(arguments)

    def work() -> None:
        if options.report:
            check_output(options.report, {"the input": options.path_in, "the output": options.path_out})
        stats, report = clean_file(options.path_in, options.path_out, options.seconds)
        if options.report:
            write_json(options.report, report.to_dict())
        print(stats, *(f"  {bad}" for bad in stats.first_bad[:10]), "", report.table(), sep="\n")

    return run_command(work, f"Stopped. {options.path_out} was not touched.")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
