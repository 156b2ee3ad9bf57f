"""The web book: the executed notebooks and the pages beside them, built by Sphinx, their links checked."""

import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from chapters import ROOT, links
from chapters.console import console, say, working
from chapters.pages import Pages
from chapters.regions import BookError

SETTINGS = Path(__file__).parent / "site"


def _sphinx(pages: Path, out: Path, builder: str = "html") -> subprocess.CompletedProcess[str]:
    """Run Sphinx, with every warning an error."""
    where = ["-c", str(SETTINGS), "-d", str(out.parent / "doctrees"), str(pages), str(out)]
    command = [sys.executable, "-m", "sphinx", "-b", builder, "-q", "-W", "--keep-going", "-j", "auto", *where]
    if (pages.parent / "as_is").is_dir():
        command += ["-D", f"html_extra_path={pages.parent / 'as_is'}"]
    return subprocess.run(command, capture_output=True, text=True)


def make(root: Path, out: Path, repository: str = "", outside: bool = False) -> set[str]:
    """Build the book of the repository `root` in the folder `out`; returns the addresses of other sites it links to.

    outside: visit those, too. Raises BookError with every warning of Sphinx's and every link that leads nowhere.
    """
    if out.exists() and not (out / ".buildinfo").exists() and any(out.iterdir()):
        raise BookError(f"{out} holds something else than a book; name another folder, or empty it")
    with tempfile.TemporaryDirectory(prefix="book-") as scratch:
        folder = Path(scratch)
        Pages(root, folder, repository).write()
        for builder in ("html", "linkcheck") if outside else ("html",):
            done = _sphinx(folder / "pages", folder / builder, builder)
            if done.returncode:
                raise BookError((done.stderr + done.stdout).replace(f"{folder / 'pages'}/", "").strip())
        problems, addresses = links.check(folder / "html")
        if problems:
            raise BookError("\n".join(problems))
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(folder / "html", out)
    return addresses


def web_book(
    out: Annotated[Path, typer.Option(help="the folder to build it in", show_default="_book")] = ROOT / "_book",
    repository: Annotated[str, typer.Option(help="the repository's address, for links to source files")] = "",
    outside: Annotated[bool, typer.Option("--links", help="visit the links to other sites, too")] = False,
) -> None:
    """Build the book as web pages from the executed notebooks, and check its links."""
    if not all(map(find_spec, ("sphinx", "myst_nb", "furo"))):
        raise BookError("the web book needs Sphinx and its theme: pip install -e '.[book]'")
    started = time.monotonic()
    with working("building the web book"):
        addresses = make(ROOT, out, repository, outside)
    say(f"links to {address}" for address in sorted(addresses))
    console.print(f"{out / 'index.html'}: {len(list(out.rglob('*.html')))} pages, {time.monotonic() - started:.0f} s")
    console.print(f"read it on this computer, or on a phone in your network: python -m http.server -d {out}")
