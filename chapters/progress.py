"""What the reader has done, kept in `.progress.json` (git-ignored)."""

import json
from pathlib import Path
from typing import Any

from chapters import ROOT
from chapters.regions import BookError
from chapters.views import write_atomically

FILE = ".progress.json"


class Progress:
    """The reader's results, the hints already shown, and the chapters whose parts are in use.

    `checked` maps an exercise to {"status": "done" | "not yet", "digest": of the body that was checked};
    `hints` an exercise to the number of hints shown; `use` a finished module's name to the reader's file.
    """

    def __init__(self, root: Path = ROOT):
        self.path = root / FILE
        self.data: dict[str, dict[str, Any]] = {"checked": {}, "hints": {}, "use": {}}
        try:
            loaded = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(loaded, dict) or not all(isinstance(loaded.get(key, {}), dict) for key in self.data):
                raise ValueError("not the expected shape")
            if not all(isinstance(file, str) for file in loaded.get("use", {}).values()):
                raise ValueError("what is in use is not a file")
            self.data |= {key: loaded.get(key, {}) for key in self.data}
        except FileNotFoundError:
            pass
        except ValueError as error:
            raise BookError(
                f"{FILE} can't be read ({error}); it holds the ticks, the hints shown and what is in use, and no code: "
                f"mv {FILE} {FILE}.broken, then check your chapters and use them again"
            ) from None

    @property
    def checked(self) -> dict[str, Any]:
        """Exercise id -> the outcome of its latest check."""
        return self.data["checked"]

    @property
    def hints(self) -> dict[str, Any]:
        """Exercise id -> how many hints were given."""
        return self.data["hints"]

    @property
    def use(self) -> dict[str, Any]:
        """Finished module's name -> the reader's file that stands in for it; shared/__init__.py reads this."""
        return self.data["use"]

    def save(self) -> None:
        """Write it to its file, at once and whole, so that Ctrl-C leaves no half of it."""
        write_atomically(self.path, json.dumps(self.data, indent=1, sort_keys=True) + "\n")
