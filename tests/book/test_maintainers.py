"""The maintainers' pages name files that exist: what has moved or has been split moves there, too."""

import re

import pytest

from chapters import ROOT

PAGES = {"CONTRIBUTING.md": ROOT, "shared/README.md": ROOT / "shared"}  # and what their paths are relative to
INVENTED = re.compile(r"ch15_toy|NAME|LAYER|\*")  # of the example, or for several


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_are_named_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([\w./]+/[\w.]+\.\w+)`", text) if not INVENTED.search(name)}
    assert len(named) >= 10
    assert {name for name in named if not (PAGES[page] / name).is_file()} == set()


def test_the_architecture_fits_a_screen():
    """No file is named twice in the order to read them in, and the diagram isn't wider than a page."""
    text = (ROOT / "shared" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    assert len(rows) == len(set(rows)) >= 10
    assert max(map(len, re.search(r"```\n(.*?)```", text, re.DOTALL)[1].splitlines())) <= 100
    assert text.count("\n") <= 80
