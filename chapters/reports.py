"""The JSON report of a command that takes long: whether it can be written, asked before; and writing it."""

from pathlib import Path
from typing import Any

from chapters.console import console
from chapters.regions import BookError


def prepare_output(path: Path | None) -> None:
    """Make sure that a file can be written there before a long run, not after it. Raises BookError."""
    from shared.measure.outputs import check_output

    if path is not None:
        try:
            check_output(path, {})
        except ValueError as error:
            raise BookError(str(error)) from None


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write a report as JSON and say so. Raises BookError when it can't be written."""
    from shared.measure.files import write_json

    try:
        write_json(path, report)
    except OSError as error:
        raise BookError(f"{path}: can't be written: {error.strerror}") from None
    console.print(f"{path}: written", markup=False)
