"""The table of what is done, to do and failing, and of whose parts are in use."""

from rich.markup import escape
from rich.table import Table

from chapters.checking import module_bodies
from chapters.exercises import Book
from chapters.progress import Progress
from chapters.regions import BookError, Region
from chapters.views import digest

STATES = ("done", "to do", "not yet", "unchecked", "broken")


def overview(book: Book, done: Progress) -> tuple[Table, list[str]]:
    """A row for each chapter, and what is wrong with each file that can't be read, with its place.

    The exercises of such a file are counted as broken; without one there is no such column.
    """
    rows, problems = [], []
    for number, folder in book.folders.items():
        states: list[str] = []
        for module in book.chapter_modules(number):
            try:
                states += [state(i, region, done) for i, region in module_bodies(book, module).items()]
            except BookError as error:
                problems.append(str(error))
                states += ["broken" for exercise in book.exercises.values() if exercise.module == module]
        counts = [str(states.count(name) or "") for name in STATES]
        own = any(module.name in done.use for module in book.chapter_modules(number))
        rows.append((f"{number:2}  {escape(folder.name[5:])}", *counts, "yours" if own else "reference"))
    columns = [name for name in STATES if name != "broken" or problems]
    table = Table("chapter", *columns, "in use", title="Your own parts", title_justify="left")
    for name, *counts, use in rows:
        table.add_row(name, *counts[: len(columns)], use, style="red" if counts[-1] else None)
    return table, problems


def state(exercise_id: str, region: Region, done: Progress) -> str:
    """An exercise's state, from its body and the last check of that same body."""
    if region.is_todo:
        return "to do"
    last = done.checked.get(exercise_id)
    return last["status"] if last and last["digest"] == digest(region.body) else "unchecked"
