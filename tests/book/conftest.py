"""A tiny book with one chapter and two exercises, to try the machinery on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from chapters import ROOT
from chapters.checking import PLAIN_PYTEST

SOURCE = '''"""Two functions."""

import math


def double(x: float) -> float:
    """Twice x."""
    # exercise 3.1: return twice x
    #   whatever its type
    return 2 * x
    # end


class Circle:
    def __init__(self, radius: float):
        self.radius = radius

    def area(self) -> float:
        """The area."""
        # exercise 3.2: return pi times the radius squared
        square = self.radius * self.radius
        return math.pi * square
        # end
'''

TESTS = """from chapters.ch03_toy import parts
from chapters.judge import exercise, expect_close, expect_equal


@exercise("3.1")
def test_double():
    expect_equal(parts.double(3), 6, because="twice three is six; you may have squared it")


@exercise("3.2")
def test_area():
    expect_close(parts.Circle(3.0).area(), 28.274333882308138, because="the radius is squared before it is multiplied")
"""

PAGE = """# Toy

### 3.1 double
**Hint 1.** What is three and three?
**Hint 2.** `2 * x`.

```python answer 3.1
```

**Why.** Because the next function needs it.

**Mistake: squared.**
```python mistake 3.1
return x * x
```

**Mistake: unchanged.**
```python mistake 3.1
return x
```

### 3.2 area
**Hint 1.** Pi.

```python answer 3.2
```

**Why the square.** It is an area.

**Mistake: the circumference.**
```python mistake 3.2
return 2 * math.pi * self.radius
```

**Mistake: pi squared.**
```python mistake 3.2
return (math.pi * self.radius) ** 2
```
"""


@dataclass
class MiniBook:
    """The tiny book's folder, and ways to change and run it."""

    root: Path
    path: str = ""  # what stands in PYTHONPATH beside the root

    def run(self, *arguments: str, ok: bool = True) -> str:
        """Run `python -m chapters …` in it. Returns stdout and stderr together."""
        path = os.pathsep.join(filter(None, (str(self.root), self.path)))
        environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200", "BOOK_REFERENCE": ""}
        run = subprocess.run(
            [sys.executable, "-m", "chapters", *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        text = run.stdout + run.stderr
        assert "Traceback (most recent call last)" not in text, text
        assert (run.returncode == 0) == ok, f"exit code {run.returncode}:\n{text}"
        return text

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run some Python in it."""
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root,
            env=os.environ | PLAIN_PYTEST | {"PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def view(self) -> Path:
        return self.root / "chapters/ch03_toy/parts.py"

    def edit(self, path: str, change: Callable[[str], str]) -> None:
        file = self.root / path
        before = file.read_text()
        after = change(before)
        assert after != before, f"the edit changed nothing in {path}"
        file.write_text(after)

    def solve(self, exercise: str, body: str) -> None:
        """Write a body as a reader would: the raise line replaced by it."""
        indent = next(line for line in self.view.read_text().splitlines() if f'Todo("{exercise}")' in line)
        indent = indent[: len(indent) - len(indent.lstrip())]
        lines = "\n".join(indent + line if line else "" for line in body.splitlines())
        self.edit("chapters/ch03_toy/parts.py", lambda text: text.replace(f'{indent}raise Todo("{exercise}")', lines))


@pytest.fixture
def book(built: Path, tmp_path: Path) -> MiniBook:
    """A copy of its own for each test."""
    shutil.copytree(built, tmp_path / "book")
    return MiniBook(tmp_path / "book")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built") / "book"
    for folder in ("shared/toy", "chapters/ch03_toy", "tests/ch03_toy", "solutions/ch03_toy"):
        (root / folder).mkdir(parents=True)
    for file in (ROOT / "chapters").glob("*.py"):
        shutil.copy2(file, root / "chapters" / file.name)
    (root / "chapters/bench.py").write_text("import typer\n\napp = typer.Typer()\n\n\n@app.command()\ndef run(): ...\n")
    shutil.copy2(ROOT / "shared/__init__.py", root / "shared/__init__.py")
    shutil.copy2(ROOT / "pyproject.toml", root / "pyproject.toml")
    (root / "shared/toy/__init__.py").write_text("")
    (root / "chapters/ch03_toy/__init__.py").write_text("")
    (root / "shared/toy/parts.py").write_text(SOURCE)
    (root / "tests/ch03_toy/test_parts.py").write_text(TESTS)
    (root / "solutions/ch03_toy/README.md").write_text(PAGE)
    notebook = nbformat.v4.new_notebook()
    for name, title in (("3.1", "double"), ("3.2", "area")):
        notebook.cells.append(nbformat.v4.new_markdown_cell(f"## {name} {title}"))
        notebook.cells.append(nbformat.v4.new_code_cell(f'from chapters import check\n\ncheck("{name}")'))
    nbformat.write(notebook, root / "chapters/ch03_toy/notebook.ipynb")
    nbformat.write(notebook, root / "solutions/ch03_toy/notebook.ipynb")
    MiniBook(root).run("build")
    return root
