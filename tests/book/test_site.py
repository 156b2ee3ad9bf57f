"""The web book: which pages it is made of, where their links lead, and that nothing broken gets out."""

import base64
import importlib.util
import json
import re
from pathlib import Path

import pytest

from chapters import links
from chapters.book import make
from chapters.pages import Pages
from chapters.regions import BookError

needs_sphinx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("sphinx", "myst_nb", "furo"))), reason="needs pip install -e '.[book]'"
)
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

README = """# Toy

See [chapter 1](chapters/ch01_second/notebook.ipynb#1.1-Turn%2C-turn), [answers](solutions/ch00_first/README.md),
[`shared/part.py`](shared/part.py), [the code](shared/part.py), `[not](a/link)` and <a href="data/README.md">data</a>.

```
[neither](is/this)
```

<!-- claims: generated -->
| # | claim | measured | verdict | chapter |
|---|---|---|---|---|
| 1 | it works | yes | holds | first |
<!-- end -->

| two | small |
|---|---|
| columns | here |

![a dot](solutions/ch00_first/dot.png) <img alt="the same" src="solutions/ch00_first/dot.png">
"""
FIRST = """# Chapter 0: first

**You will build** nothing.

```
a ──► b
```
"""
QUESTION = """## Questions

**1.** Why?
- (a) So.
- (b) Otherwise.

<details><summary>Answer</summary>

(b). It *is* otherwise; see [chapter 1](../ch01_second/notebook.ipynb).

</details>
"""
ANSWERS = """# Chapter 0: first

### 0.1 part

**Hint 1.** Look.

```python answer 0.1
return "secretword"
```

**Mistake: none.** Of the kind.

### 0.2 other

**Hint 1.** Look again.
"""


def cell(source, *outputs):
    if not outputs:
        return {"cell_type": "markdown", "metadata": {}, "source": source}
    return {"cell_type": "code", "metadata": {}, "source": source, "execution_count": 1, "outputs": [*outputs]}


def shown(data):
    return {"output_type": "display_data", "metadata": {}, "data": data}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def write_notebook(root, name, *cells):
    (root / "chapters" / name).mkdir(parents=True)
    cells = [{**cell, "id": str(number)} for number, cell in enumerate(cells)]
    metadata = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    write(root / "solutions" / name / "notebook.ipynb", json.dumps(notebook))


@pytest.fixture
def root(tmp_path) -> Path:
    """A repository with a book of two chapters."""
    root = tmp_path / "repository"
    figure = shown({"image/png": DOT, "text/plain": "<Figure>"})
    claim = shown({"application/vnd.book.claim+json": {"number": 1}, "text/plain": "Claim 1: it holds"})
    write_notebook(
        root,
        "ch00_first",
        cell(FIRST),
        cell("import math", {"output_type": "stream", "name": "stdout", "text": "printed here"}),
        cell("## A *look*"),
        cell('ax.set(xlabel="step", ylabel="loss")', figure),
        cell("claim(1)", claim),
        cell(QUESTION),
    )
    write_notebook(
        root, "ch01_second", cell("# Chapter 1: second\n\nPreemption."), cell("pass", figure), cell("## 1.1 Turn, turn")
    )
    write(root / "README.md", README)
    write(root / "solutions/ch00_first/README.md", ANSWERS)
    write(root / "data/README.md", "# Data\n\n[Home](../README.md)\n")
    write(root / "shared/part.py", "")
    (root / "solutions/ch00_first/dot.png").write_bytes(base64.b64decode(DOT))
    return root


def test_a_chapter_that_was_not_executed_is_named(root, tmp_path):
    (root / "solutions/ch01_second/notebook.ipynb").unlink()
    with pytest.raises(BookError, match=r"solutions/ch01_second/notebook.ipynb is missing.*chapters execute 1$"):
        Pages(root, tmp_path / "work").write()


def test_links_lead_to_pages_and_other_files_are_named(root, tmp_path):
    Pages(root, tmp_path / "work").write()
    front = (tmp_path / "work/pages/index.md").read_text(encoding="utf-8")
    assert "[chapter 1](chapters/ch01_second/notebook.ipynb#11-turn-turn)" in front
    assert "[answers](solutions/ch00_first/README.md)" in front
    assert "\n`shared/part.py`, the code (`shared/part.py`), `[not](a/link)` and" in front
    assert '<a href="data/README.html">' in front
    assert "[neither](is/this)" in front
    assert "[Home](../index.md)" in (tmp_path / "work/pages/data/README.md").read_text(encoding="utf-8")


def test_with_an_address_files_are_linked(root, tmp_path):
    Pages(root, tmp_path / "work", "https://example.org/book/").write()
    front = (tmp_path / "work/pages/index.md").read_text(encoding="utf-8")
    assert "[`shared/part.py`](https://example.org/book/blob/main/shared/part.py)" in front


@pytest.mark.parametrize(
    "link", ["[gone](gone.md)", '<img src="gone.png">', "[out](../../secret)", "[![a](no.png)](.)"]
)
def test_a_link_to_nothing_is_named(root, tmp_path, link):
    write(root / "data/README.md", f"# Data\n\n{link}\n")
    with pytest.raises(BookError, match=r"data/README.md: a link to \S+, which is not in the repository"):
        Pages(root, tmp_path / "work").write()


@pytest.mark.parametrize(
    ("html", "trouble"),
    [
        ('<a href="other.html">', "no such file"),
        ('<a href="b.html#nowhere">', "no #nowhere"),
        ('<a href="#nowhere">', "no #nowhere"),
        ('<img src="none.png">', "no such file"),
        ('<img srcset="dot.png 1x, none.png 2x">', "no such file"),
        ('<form action="none.html">', "no such file"),
        ('<a href="http://">', "no address"),
        ('<a href="https://example.org/a b">', "no address"),
        ('<a href="javascript:x()">', "no address"),
        ('<a href="https://[::1">', "no address"),
        ('<script src="https://example.org/x.js">', "another site"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "no address"),
        ('<a href="b.html#p%C3%A4th">', None),
        ('<a href="#top">', None),
        ('<a href="folder/">', None),
        ('<a href="mailto:someone@example.org">', None),
        ('<a href="https://example.org/#any">', None),
        ('<img src="dot.png?v=1"><img src="data:image/png;base64,xx">', None),
    ],
)
def test_the_checker_finds_what_is_broken_and_nothing_else(tmp_path, html, trouble):
    write(tmp_path / "a.html", f"<p>\n{html}")
    write(tmp_path / "b.html", '<h1 id="päth">')
    write(tmp_path / "folder/index.html", "")
    write(tmp_path / "dot.png", "")
    problems, addresses = links.check(tmp_path)
    if trouble is None:
        assert problems == []
        assert addresses == ({"https://example.org/#any"} if "example.org/#" in html else set())
    else:
        assert [trouble in problem and problem.startswith("a.html:2: ") for problem in problems] == [True]


@needs_sphinx
def test_the_book_is_built(root, tmp_path):
    out = tmp_path / "out"
    write(out / ".buildinfo", "")
    write(out / "left_over.html", "")
    make(root, out)
    assert not (out / "left_over.html").exists(), "a page that is no longer in the book must go"

    first = (out / "chapters/ch00_first/notebook.html").read_text(encoding="utf-8")
    assert "printed here" in first
    assert "Claim 1: it holds" in first
    assert 'alt="Figure: loss over step; A look"' in first
    assert "a ──► b" in first
    folded = first[first.index("<details><summary>Answer") :].partition("</details>")[0]
    assert "<em>is</em>" in folded, "Markdown in a folded answer is Markdown"
    assert 'href="../ch01_second/notebook.html"' in folded
    assert re.search(r'class="next-page" href="../ch01_second/notebook.html"', first), "not to the answers"

    answers = (out / "solutions/ch00_first/README.html").read_text(encoding="utf-8")
    assert re.search(
        r"<details><summary>The answer.*secretword.*</details>.*0\.2 other.*Look again", answers, re.DOTALL
    )
    found = (out / "searchindex.js").read_text(encoding="utf-8")
    assert "preemption" in found or "preempt" in found
    assert "secretword" not in found, "nobody meets an answer by searching"
    front = (out / "index.html").read_text(encoding="utf-8")
    assert '<span class="column">measured: </span>yes' in front, "a phone stacks the cells"
    assert '<span class="column">small' not in front, "two columns fit"
    assert (out / "solutions/ch00_first/dot.png").read_bytes() == base64.b64decode(DOT), "for the <img> in HTML"


@needs_sphinx
def test_a_link_to_a_place_that_is_not_on_the_page_stops_the_build(root, tmp_path):
    write(root / "data/README.md", "# Data\n\n[there](../README.md#nowhere)\n")
    with pytest.raises(BookError, match=r"data/README.md:3: .*nowhere"):
        make(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_is_left_alone(root, tmp_path):
    write(tmp_path / "mine/thesis.txt", "years of work")
    with pytest.raises(BookError, match="something else"):
        make(root, tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").read_text(encoding="utf-8") == "years of work"
