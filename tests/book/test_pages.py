"""Every link of every page leads to a file that is there, and to a heading that it has."""

import json
import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

from chapters import ROOT

PATTERNS = ("README.md", "CONTRIBUTING.md", "chapters/*.md", "solutions/*/README.md", "shared/**/*.md", "data/*.md")
PAGES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
FENCE = re.compile(r"^(```+|~~~+).*?^\1[ ]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(
    r"\[(?:[^][]|\[[^][]*\])*\]\((?P<target>[^()\s]+)(?:\s+\"[^\"]*\")?\)|(?:src|href)=\"(?P<html>[^\"]+)\""
)
HEADING = re.compile(r"^#{1,6}[ ]+(?P<text>.+?)[ ]*#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def links(text: str) -> list[str]:
    """The targets of a page's links and pictures, but for those outside of the repository."""
    found = [match["target"] or match["html"] for match in LINK.finditer(CODE.sub("", FENCE.sub("", text)))]
    return [unquote(target) for target in found if not ELSEWHERE.match(target)]


def headings(text: str) -> list[str]:
    """A page's headings as they read, without marks for code, stress and links."""
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match["text"]) for match in HEADING.finditer(FENCE.sub("", text))]
    return [re.sub(r"[`*]", "", heading) for heading in plain]


def anchors(path: Path) -> set[str]:
    """What may stand behind # in a link to a page (by GitHub's rule) or to a notebook (by Jupyter's)."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        return {heading.replace(" ", "-") for source in sources for heading in headings(source)}
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in headings(text):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere, each with what it lacks."""
    problems = []
    for link in links(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            problems.append(f"{link}: there is no such file")
        elif not target.is_relative_to(ROOT):
            problems.append(f"{link}: outside of the repository")
        elif anchor and anchor not in anchors(target):
            problems.append(f"{link}: {target.name} has no such heading")
    return problems


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    assert not broken(page), "\n".join(broken(page))


def test_the_pages_are_there_and_lead_to_each_other():
    """From the README one gets to every page that is meant for reading, in one step or two."""
    readme = ROOT / "README.md"
    near = {(ROOT / link.partition("#")[0]).resolve() for link in links(readme.read_text(encoding="utf-8"))}
    for name in ("CONTRIBUTING.md", "shared/README.md", "data/README.md"):
        assert ROOT / name in near, name
    for name in ("TROUBLESHOOTING.md", "GLOSSARY.md"):
        assert ROOT / "chapters" / name in near, name
    assert {path.parent.name for path in near if path.suffix == ".ipynb"} == {
        folder.name for folder in (ROOT / "chapters").glob("ch[0-9][0-9]_*")
    }


def test_the_readme_quotes_a_check_as_it_is():
    """The example of a wrong answer: its exercise, its file and the sentence about the cause are the book's."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = re.search(
        r"^(?P<id>\d+\.\d+)  \w+ +not yet\n.*\n +(?P<because>.*)\n +(?P<file>\S+\.py):\d+ ", readme, re.M
    )
    assert f'Todo("{quoted["id"]}")' in (ROOT / quoted["file"]).read_text(encoding="utf-8")
    folder = ROOT / "tests" / Path(quoted["file"]).parent.name
    tests = " ".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("test_*.py")))
    assert quoted["because"] in re.sub(r'"\s+f?"', "", tests)


def test_each_trouble_is_reproduced():
    """A form of a trouble names the cells where one meets it, in notebooks that exist."""
    text = (ROOT / "chapters" / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^#{2,3} ([^\n]+)\n(.*?)(?=^#{2,3} |\Z)", text, re.MULTILINE | re.DOTALL))
    forms = [name for name, part in parts.items() if "**What you see.**" in part]
    assert len(forms) == 4 + 3 + 3, "four of memory, three of garbled output, jitter, loss, queueing"
    for name in forms:
        assert re.search(r"\(ch\d\d_\w+/notebook\.ipynb#", parts[name]), name
        assert "**How to tell" in parts[name], name


def test_anchors_are_githubs_and_jupyters(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# What `x_y` *is*, and why?\n```\n# no heading\n```\n## Twice\n## Twice\n## A: b - c\n")
    assert anchors(page) == {"what-x_y-is-and-why", "twice", "twice-1", "a-b---c"}
    notebook = tmp_path / "n.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["## 9.3 Top-p\n", "text"]},
                                              {"cell_type": "code", "source": ["# no heading"]}]}))  # fmt: skip
    assert anchors(notebook) == {"9.3-Top-p"}


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](#here) [b](#there) ![c](no.png) `[d](no.md)` [e](https://example.org/x) [f](../..)\n")
    assert [problem.partition(":")[0] for problem in broken(page)] == ["#there", "no.png", "../.."]
