"""The reader's command: `python -m chapters`."""

import os
import re
import sys
import time
from typing import Annotated

try:
    import typer
    from rich.console import Console

    from chapters import answers, author, bench, bench_stacks, evaluate
    from chapters.book import web_book
    from chapters.checking import check as run_check
    from chapters.checking import print_checked, print_results
    from chapters.console import console, run_instead, say, working
    from chapters.exercises import Book, Exercise
    from chapters.overview import overview
    from chapters.progress import Progress
    from chapters.regions import BookError
    from chapters.solutions import read_solutions
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in ("chapters", "shared"):
        raise
    sys.exit("the book's packages are not here; activate its environment, . .venv/bin/activate (make setup makes it)")
except ImportError as error:
    if error.name:
        raise
    sys.stderr.write(f"{error}\n")  # shared/__init__.py says what is wrong with the parts in use
    sys.exit(2)
except KeyboardInterrupt:
    sys.exit(130)

app = typer.Typer(
    help="Work through the book: check your exercises, get hints, run the server on your own parts.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")

Which = Annotated[str, typer.Argument(metavar="WHICH", help="a chapter (9) or an exercise (9.4)")]
Chapter = Annotated[str, typer.Argument(metavar="CHAPTER", help="a chapter's number")]


@app.callback(invoke_without_command=True)
def progress(context: typer.Context) -> None:
    """With no command: what is done, to do and failing, and whose parts are in use."""
    if context.invoked_subcommand is not None:
        return
    table, problems = overview(Book(), Progress())
    console.print(table)
    for problem in problems:
        console.print(problem, style="red", markup=False)
    console.print(
        "next: python -m chapters notebook N · check N · hint N.k · use N      all commands: python -m chapters --help"
    )


@app.command()
def check(
    which: Annotated[str | None, typer.Argument(metavar="[WHICH]", help="a chapter (9) or an exercise (9.4)")] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="show Python's traceback too")] = False,
) -> None:
    """Check your answers. Exit code 1 when one is wrong, 2 when a file can't be read."""
    with working(f"checking {which or 'everything'}"):
        checked = run_check(which, Book(), Progress())
    print_checked(checked, console, traceback)
    raise typer.Exit(checked.exit_status)


@app.command()
def watch(which: Which) -> None:
    """Check again whenever you save; Ctrl-C ends it."""
    book = Book()
    files = {exercise.module.view for exercise in book.select(which)}
    seen: object = None
    try:
        while True:
            now = {file: file.stat().st_mtime_ns if file.exists() else 0 for file in files}
            if now != seen:
                seen = now
                console.rule(time.strftime("%H:%M:%S"))
                try:
                    with working(f"checking {which}"):
                        checked = run_check(which, book, Progress())
                    print_checked(checked, console)
                except BookError as error:
                    console.print(str(error), style="red", markup=False)
                console.print("watching; save to check again, Ctrl-C to stop", style="dim")
            time.sleep(0.3)
    except KeyboardInterrupt:
        console.print("stopped")


@app.command()
def hint(
    exercise: Annotated[str, typer.Argument(metavar="EXERCISE")],
    all_: Annotated[bool, typer.Option("--all", help="show every hint at once")] = False,
) -> None:
    """The next hint for an exercise; each call shows one more."""
    book, done = Book(), Progress()
    chosen = one(book, exercise)
    hints = read_solutions(book.solutions(chosen.chapter) / "README.md", book)[chosen.id].hints
    shown = len(hints) if all_ else min(done.hints.get(exercise, 0) + 1, len(hints))
    for number, text in enumerate(hints[:shown], 1):
        console.print(f"hint {number} of {len(hints)}: {text}", markup=False)
    done.hints[exercise] = shown
    done.save()
    console.print(
        f"more: python -m chapters hint {exercise}"
        if shown < len(hints)
        else f"that was the last one; the answer: python -m chapters answer {exercise}",
        style="dim",
    )


@app.command()
def answer(
    which: Which,
    write: Annotated[
        bool, typer.Option("--write", help="fill it into your file; of a chapter, only what is to do")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="with --write: also over what you have written")] = False,
) -> None:
    """Show the reference's answer with its reason, or fill it in."""
    book = Book()
    if write:
        say(answers.write_answer(which, book, over=all_))
        return
    for exercise in book.select(which):
        solution = read_solutions(book.solutions(exercise.chapter) / "README.md", book)[exercise.id]
        console.print(f"{exercise.id}  {exercise.title}", style="bold")
        console.print(
            f"# exercise {exercise.id}: {exercise.region.prompt}\n{exercise.region.body}\n# end\n", markup=False
        )
        for why in solution.why:
            console.print(re.sub(r"\A\*\*(.*?)\*\*", r"\1", why) + "\n", markup=False)


@app.command()
def diff(which: Which) -> None:
    """Your bodies against the reference's."""
    text = answers.difference(which, Book())
    console.print(
        text or "no difference: what you wrote is the reference's, word for word, or nothing is written yet",
        markup=False,
    )


@app.command()
def reset(which: Which) -> None:
    """Start over; what you wrote is kept below .backup/."""
    say(answers.reset(which, Book(), Progress()))


@app.command()
def use(
    which: Annotated[str | None, typer.Argument(metavar="[CHAPTER]", help="a chapter's number")] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="back to the finished parts (without a number: all)")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="also when a check fails")] = False,
) -> None:
    """Run later chapters and the server on your parts of a chapter."""
    book, done = Book(), Progress()
    chapter = None if which is None else whole(book, which, "use")
    if chapter is not None:
        book.select(str(chapter))
    if reference:
        say(answers.use_reference(chapter, book, done))
        return
    if chapter is None:
        raise BookError("which chapter? python -m chapters use 9 (or: use --reference, for the finished parts)")
    with working(f"checking chapter {chapter}"):
        checked = run_check(str(chapter), book, done)
    if checked.broken:
        raise BookError("\n".join([*checked.broken, "nothing was changed"]))
    failing = [result for result in checked.results if result.status == "not yet"]
    if failing and not force:
        print_results(failing, console)
        raise BookError(
            f"nothing was changed, since {', '.join(r.exercise.id for r in failing)} can't be right yet; "
            f"mend that, or: python -m chapters use {chapter} --force"
        )
    say(answers.use_own(chapter, book, done))
    if chapter in {8, *bench_stacks.CHAPTER.values()}:  # the row int8 has its weights from chapter 8
        console.print("its row of the scoreboard is measured by: python -m chapters bench", style="dim")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def notebook(context: typer.Context, which: Chapter) -> None:
    """Open a chapter's notebook in Jupyter. Other options, such as --no-browser, are jupyter lab's."""
    book = Book()
    chapter = whole(book, which, "notebook")
    if chapter not in book.folders:
        raise BookError(f"no chapter {chapter}; there are: {', '.join(map(str, book.folders))}")
    # from the root, so that the other chapters and the answers can be opened, too
    opened = f"--LabApp.default_url=/lab/tree/{book.relative(book.folders[chapter])}/notebook.ipynb"
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    run_instead("jupyter", "lab", *root, f"--ServerApp.root_dir={book.root}", opened, *context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def serve(context: typer.Context) -> None:
    """Start the server; takes the same options as python -m shared.serving (see serve --help)."""
    run_instead("shared.serving", *context.args)


app.command()(evaluate.evaluate)
app.command()(author.claims)
app.command("build", rich_help_panel="For authors")(author.build)
app.command("execute", rich_help_panel="For authors")(author.execute)
app.command("verify", rich_help_panel="For authors")(author.verify)
app.command("test-solved", rich_help_panel="For authors")(author.solved_tests)
app.command("book", rich_help_panel="For authors")(web_book)


def one(book: Book, exercise: str) -> Exercise:
    """The exercise meant; a chapter's number is refused."""
    chosen = book.select(exercise)
    if "." not in exercise:
        raise BookError(f"which exercise? chapter {exercise} has {', '.join(e.id for e in chosen)}")
    return chosen[0]


def whole(book: Book, chapter: str, command: str) -> int:
    """The chapter meant; an exercise, and what is neither, is refused."""
    if not chapter.isdecimal():
        number = book.select(chapter)[0].chapter
        raise BookError(f"{command} takes a whole chapter: python -m chapters {command} {number}")
    return int(chapter)


def main() -> None:
    """Run the command; errors are one line, Ctrl-C is quiet."""
    try:
        app()
    except (BookError, OSError, ImportError) as error:
        if isinstance(error, ImportError) and error.name:  # not a word of shared/__init__.py on the parts in use
            raise
        Console(stderr=True, soft_wrap=True).print(str(error), style="red", markup=False, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
