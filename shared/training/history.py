"""A run's history: one JSON line for each step, in step with the checkpoints."""

import json
from pathlib import Path
from typing import Any

from shared.measure.files import replacing

Row = dict[str, Any]


class History:
    """The rows of folder/history.jsonl up to `start` steps, and those that are added; `save` writes what is new.

    What stands in the file after step `start` is removed: the run was killed after those steps and before they were
    saved, and does them again. A last line that a kill cut short goes the same way.
    """

    def __init__(self, folder: Path, start: int) -> None:
        self.path, self.rows = folder / "history.jsonl", read_history(folder)[:start]
        self.saved = 0

    def save(self) -> None:
        """Bring the file up to the last row. The first time it is written anew, in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in self.rows[self.saved :])
        if self.saved == 0:
            with replacing(self.path) as part:
                part.write_text(lines, encoding="utf-8")
        else:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
        self.saved = len(self.rows)


def read_history(folder: Path) -> list[Row]:
    """All whole rows of folder/history.jsonl, in order; none when there is no such file."""
    rows: list[Row] = []
    try:
        lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return rows
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or row.get("step") != len(rows) + 1:
            break
        rows.append(row)
    return rows
