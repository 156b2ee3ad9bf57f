"""The book's text: the documentation that the reader's own Python and its installed packages carry.

`python -m shared.data.corpus docs` writes data/corpus/docs.jsonl, one {"text", "label", "source"} a line, and what is
known of it beside it, docs.truth.json. Two more kinds are made out of the same text: "dirty" and "near_duplicates".
"""

import signal

if __name__ == "__main__":  # Ctrl-C during the imports below then ends the process, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import ast
import hashlib
import json
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from shared.measure.command import run_command
from shared.measure.files import replacing, write_json
from shared.measure.progress import progress_bar

CORPORA = Path(__file__).resolve().parents[2] / "data" / "corpus"
LIMITS = {"docs": 30_000, "dirty": 4_000, "near_duplicates": 8_000}  # documents that each kind starts from
VERSION = 2  # of what the makers write; a corpus of another version is made again
MIN_CHARS = 200
MAX_FILE_BYTES = 1_000_000
MIN_DENSITY = 0.15  # files with a smaller share of long strings cost half of the parsing and hold a tenth of the text
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "__pycache__", "site-packages"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Record = dict[str, Any]
Maker = Callable[[Iterator[Record], int, Path], dict[str, Any]]


def docstring_documents(
    limit: int = 30_000, seed: int = 0, min_chars: int = MIN_CHARS, roots: Sequence[Path] | None = None
) -> Iterator[Record]:
    """Real docstrings and documentation files, at most `limit`, as {"text", "label", "source"}.

    text: a docstring of a module, class or function, or a whole .rst, .md or .txt file; at least min_chars characters.
    label: the top-level package ("python" for the standard library).  source: the file, relative to where packages lie.
    The order is the same on every run: files in an order drawn with `seed`, each file's texts as they stand in it.
    Files that can't be read or parsed are left out.  roots: where to look, by default this Python's own folders.
    """
    if limit < 0 or min_chars < 1:
        raise ValueError(f"limit must be at least 0 and min_chars at least 1; got {limit} and {min_chars}")
    given = 0
    for path, source, label in _files(_installed() if roots is None else [(Path(r), "") for r in roots], seed):
        for text in _texts(path, min_chars):
            if given == limit:
                return
            given += 1
            yield {"text": text, "label": label, "source": source}


def make_corpus(
    kind: str, path: Path | None = None, seed: int = 0, limit: int | None = None, force: bool = False,
    progress: bool = True,
) -> Path:  # fmt: skip
    """The corpus of this kind as JSONL; made first when it isn't there yet, or was made with other settings.

    kind: "docs", "dirty" (broken in every way we know, with the truth beside it) or "near_duplicates".
    path: by default data/corpus/KIND.jsonl; the truth lies beside it as KIND.truth.json.
    limit: how many documents it starts from.  Raises ValueError for an unknown kind, and for a limit below 1.
    """
    if kind not in LIMITS:
        raise ValueError(f"kind must be one of {', '.join(LIMITS)}, not {kind!r}")
    limit = LIMITS[kind] if limit is None else limit
    if limit < 1:
        raise ValueError(f"limit is how many documents a corpus starts from: at least 1, not {limit}")
    if path is None:
        name = kind + (f"-{limit}" if limit != LIMITS[kind] else "") + (f"-seed{seed}" if seed else "")
        path = CORPORA / f"{name}.jsonl"
    settings = {"kind": kind, "seed": seed, "limit": limit, "version": VERSION}
    if force or not _is_made(path, settings):
        path.parent.mkdir(parents=True, exist_ok=True)
        with progress_bar(f"making {path.name}", limit, enabled=progress) as step:
            documents = _counted(docstring_documents(limit, seed), step)
            with replacing(path) as part:
                facts = _maker(kind)(documents, seed, part)
                facts = settings | {"bytes": part.stat().st_size} | facts
        write_json(truth_path(path), facts)
    return path


def truth_path(path: Path) -> Path:
    """Where the truth about a corpus lies: docs.jsonl -> docs.truth.json."""
    return path.with_suffix(".truth.json")


def read_truth(path: Path) -> dict[str, Any]:
    """What the maker of this corpus knows about it."""
    truth: dict[str, Any] = json.loads(truth_path(path).read_text(encoding="utf-8"))
    return truth


def write_record(file: TextIO, record: Record) -> None:
    """One record as one line of JSON, readable: only what JSON demands is escaped."""
    file.write(json.dumps(record, ensure_ascii=False) + "\n")


def make_docs(documents: Iterator[Record], seed: int, path: Path) -> dict[str, Any]:
    """Write the documents as they are.  Returns how many there are, and how many repeat an earlier one exactly."""
    seen: set[bytes] = set()
    records = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for records, record in enumerate(documents, 1):  # noqa: B007
            seen.add(hashlib.sha256(record["text"].encode()).digest())
            write_record(file, record)
    return {"records": records, "exact_duplicates": records - len(seen)}


def _maker(kind: str) -> Maker:
    if kind == "dirty":
        from shared.data.dirt import make_dirty

        return make_dirty
    if kind == "near_duplicates":
        from shared.data.near_duplicates import make_near_duplicates

        return make_near_duplicates
    return make_docs


def _is_made(path: Path, settings: dict[str, Any]) -> bool:
    try:
        truth = read_truth(path)
        return settings.items() <= truth.items() and truth["bytes"] == path.stat().st_size
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _counted(documents: Iterator[Record], step: Callable[[], None]) -> Iterator[Record]:
    for document in documents:
        yield document
        step()


def _installed() -> list[tuple[Path, str]]:
    """The folders with this Python's modules, and the label that all in them get ("": the package's name)."""
    folders = {Path(sysconfig.get_path("stdlib")): "python"}
    for name in ("purelib", "platlib"):
        folders.setdefault(Path(sysconfig.get_path(name)), "")
    return list(folders.items())


def _files(roots: Sequence[tuple[Path, str]], seed: int) -> list[tuple[Path, str, str]]:
    """(file, source, label) of all that may hold text, in an order that depends on the names and the seed alone.

    The order's hash must not be the one that `splitting` uses: the files that a limit cuts off would then all be
    missing from the same split.
    """
    found: dict[str, tuple[Path, str, str]] = {}
    for root, fixed_label in roots:
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS)
            for name in names:
                if name.endswith((".py", ".rst", ".md", ".txt")):
                    path = Path(folder, name)
                    source = path.relative_to(root).as_posix()
                    label = source.split("/")[0].split("-")[0].removesuffix(".py")  # numpy-2.1.dist-info -> numpy
                    found.setdefault(source, (path, source, fixed_label or label))
    return sorted(found.values(), key=lambda file: hashlib.sha256(f"order {seed}:{file[1]}".encode()).digest())


def _texts(path: Path, min_chars: int) -> Iterator[str]:
    try:
        raw = path.read_bytes() if path.stat().st_size <= MAX_FILE_BYTES else b""
        texts = _docstrings(raw) if path.suffix == ".py" else [raw.decode("utf-8").replace("\r\n", "\n")]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # UnicodeDecodeError is a ValueError
        return
    for text in texts:
        if len(text) >= min_chars:
            yield text.encode("utf-8", "replace").decode("utf-8")  # a docstring may hold a lone surrogate


def _docstrings(raw: bytes) -> list[str]:
    """All docstrings of a Python file, cleaned of their indentation, in the order of the file."""
    strings = sum(len(inside) for inside in raw.split(b'"""')[1::2])
    if strings < MIN_DENSITY * len(raw) or not raw:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "invalid escape sequence": not ours to mend
        tree = ast.parse(raw)
    found: list[str] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            found.append(text)
        inner = [n for n in ast.iter_child_nodes(node) if hasattr(n, "body") and not isinstance(n, ast.expr)]
        stack.extend(reversed(inner))  # never into expressions: that would take most of the time
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the kinds asked for, where missing. Returns the exit status: 0, 2 for an error, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m shared.data.corpus", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(LIMITS)}; all of them by default")
    parser.add_argument("--force", action="store_true", help="make it again, even if it is there")
    parser.add_argument("--limit", type=int, help="how many documents to start from")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    def work() -> None:
        for kind in options.kinds or LIMITS:
            path = make_corpus(kind, seed=options.seed, limit=options.limit, force=options.force)
            truth = read_truth(path)
            print(f"{path}  {truth['records']} records, {truth['bytes'] / 1e6:.1f} MB")

    return run_command(work, "Stopped. Nothing half-made was kept; run this again to start over.")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
