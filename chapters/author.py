"""The authors' commands: generate the views, execute the notebooks, and hold the book against its contract."""

import time
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from chapters import solved, views
from chapters import verify as contract
from chapters.console import console, say, working
from chapters.exercises import Book
from chapters.regions import BookError


def build(
    check_only: Annotated[bool, typer.Option("--check", help="write nothing; fail when a view is out of step")] = False,
) -> None:
    """Generate the readers' files and the answers from shared/."""
    book = Book()
    if check_only:
        problems = views.out_of_step(book)
        say(problems)
        if problems:
            raise BookError("out of step: edit shared/, then run: python -m chapters build")
        console.print(f"{len(book.modules)} modules, {len(book.exercises)} exercises: every view is in step")
        return
    say(views.build(book) or ["nothing to do: every view is in step"])


def execute(chapter: Annotated[int, typer.Argument(metavar="CHAPTER", help="a chapter's number")]) -> None:
    """Run a chapter's notebook on the answers and write it, with outputs, to solutions/."""
    book = Book()
    started = time.monotonic()
    with working(f"executing chapter {chapter}'s notebook"):
        path = solved.execute(chapter, book)
    console.print(f"{book.relative(path)}: written, {time.monotonic() - started:.0f} s")


def verify(
    chapter: Annotated[int | None, typer.Option("--chapter", metavar="N", help="only this chapter")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON, nothing else")] = False,
) -> None:
    """Hold every exercise against the book's contract. Exit code 1 when one breaks it."""
    book = Book()
    began = time.monotonic()
    with working("verifying", quiet=json) as step:
        verdicts, stray = contract.verify(book, chapter, step)
    bad = bool(stray) or any(verdict.problems for verdict in verdicts)
    if json:
        print(contract.as_json(verdicts, stray))
        raise typer.Exit(int(bad))
    for verdict in verdicts:
        rejected = sum(mistake["rejected"] for mistake in verdict.mistakes)
        mark = "[red]broken[/]" if verdict.problems else "[green]kept[/]"
        console.print(
            f"{verdict.id:<6}{verdict.title:<36} stub {verdict.stub}, answer {verdict.answer}, "
            f"{rejected} of {len(verdict.mistakes)} mistakes rejected   {mark}"
        )
        say(f"      {problem}" for problem in verdict.problems)
    say(stray)
    mistakes, broken = sum(len(v.mistakes) for v in verdicts), sum(bool(v.problems) for v in verdicts)
    console.print(
        f"\n{len(verdicts)} exercises with {mistakes} mistakes, {broken} broken, {len(stray)} stray problems, "
        f"{time.monotonic() - began:.0f} s"
    )
    raise typer.Exit(int(bad))


def claims(
    check_only: Annotated[bool, typer.Option("--check", help="fail when a claim has not been measured")] = False,
) -> None:
    """What people say about AI systems, and what the notebooks measured of it."""
    from chapters import readme
    from shared.measure.claims import CLAIMS

    rows = readme.claims(Book())
    missing = sorted(set(CLAIMS) - {row["number"] for row in rows})
    if not check_only:
        table = Table("#", "claim", "verdict", "chapter", box=box.SIMPLE)
        for row in rows:
            table.add_row(str(row["number"]), row["claim"], row["verdict"], row["chapter"].partition("_")[2])
        console.print(table)
    if missing:
        raise BookError(f"not measured by any executed notebook: claim {', '.join(map(str, missing))}")
    console.print(f"all {len(CLAIMS)} claims are measured")


def solved_tests(
    chapter: Annotated[int | None, typer.Option("--chapter", metavar="N", help="only this chapter")] = None,
) -> None:
    """In a scratch copy with every answer in use: test the exercises, the server and the notebooks."""
    raise typer.Exit(solved.solved_tests(Book(), chapter))
