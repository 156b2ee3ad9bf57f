"""Change the reader's files: fill in an answer, reset, show the difference, choose whose parts to run on."""

import difflib
from collections.abc import Callable
from pathlib import Path

from chapters.exercises import Book, Exercise, Module, check_markers, raw_text, reader_text
from chapters.progress import Progress
from chapters.regions import BookError, fill, find_regions, stub, with_ends
from chapters.views import back_up, is_edited, view, write_atomically


def write_answer(exercises: list[Exercise], book: Book) -> list[str]:
    """Put the reference's bodies into the reader's files; what stood there is kept in .backup/. Returns lines."""
    return change_bodies(exercises, book, lambda exercise: exercise.region.body, "answer written")


def reset(what: str, book: Book, progress: Progress) -> list[str]:
    """Back to the stub: one exercise ("9.4"), or a chapter's whole files ("9"). Returns lines to show."""
    chosen = book.select(what)
    if "." in what:
        lines = change_bodies(chosen, book, lambda exercise: stub(exercise.id), "back to the stub")
    else:
        lines = []
        for module in book.chapter_modules(chosen[0].chapter):
            file, text = book.relative(module.view), view(module, book)
            if module.view.exists() and is_edited(module.view.read_text(encoding="utf-8", errors="replace")):
                lines.append(f"{file}: yours is kept as {book.relative(back_up(module.view, book))}")
            write_atomically(module.view, text)
            lines.append(f"{file}: as new")
    for exercise in chosen:
        progress.checked.pop(exercise.id, None)
        progress.hints.pop(exercise.id, None)
    progress.save()
    return lines


def change_bodies(exercises: list[Exercise], book: Book, body: Callable[[Exercise], str], done: str) -> list[str]:
    """Replace bodies in the reader's files, a copy kept of each that changes; the bodies replaced may be broken."""
    lines = []
    modules: dict[Path, Module] = {exercise.module.view: exercise.module for exercise in exercises}
    for path, module in modules.items():
        file, old = book.relative(path), raw_text(module, book)
        text = with_ends(old, file)
        check_markers(text, module, book)
        new = fill(text, {e.id: body(e) for e in exercises if e.module == module}, file)
        if new == old:
            lines.append(f"{file}: nothing to change")
            continue
        touched = [region for region in find_regions(text, file) if region.id in {e.id for e in exercises}]
        if text != old or not all(region.is_todo for region in touched):
            lines.append(f"{file}: the file as it was is kept as {book.relative(back_up(path, book))}")
        write_atomically(path, new)
        lines.append(f"{file}: {done}: {', '.join(e.id for e in exercises if e.module == module)}")
    return lines


def difference(what: str, book: Book) -> str:
    """A unified diff from the reader's bodies to the reference's, for the exercises that aren't to do.

    A file whose markers are broken is compared as a whole, with the file as it was given.
    """
    parts: list[str] = []
    broken: set[Path] = set()
    for exercise in book.select(what):
        module = exercise.module
        file, text = book.relative(module.view), raw_text(module, book)
        try:
            check_markers(text, module, book)
        except BookError:
            if module.view not in broken:
                given = view(module, book).splitlines()
                parts += difflib.unified_diff(
                    text.splitlines(), given, f"{file} (yours)", f"{file} (as new)", lineterm=""
                )
            broken.add(module.view)
            continue
        own = next(region for region in find_regions(text, file) if region.id == exercise.id)
        if own.is_todo or own.body == exercise.region.body:
            continue
        parts += difflib.unified_diff(
            own.body.splitlines(),
            exercise.region.body.splitlines(),
            lineterm="",
            fromfile=f"{file} ({exercise.id}, yours)",
            tofile=f"{book.relative(module.source)} (the reference)",
        )
    return "\n".join(parts)


def use_own(chapter: int, book: Book, progress: Progress) -> list[str]:
    """Run on the reader's parts of a chapter from now on. Returns lines to show.

    Raises BookError when there is nothing to use.
    """
    lines = []
    for module in book.chapter_modules(chapter):
        regions = find_regions(reader_text(module, book), book.relative(module.view))
        open_ids = [region.id for region in regions if region.is_todo]
        if len(open_ids) == len(regions):
            lines.append(f"{module.name}: the reference, since nothing of {book.relative(module.view)} is written yet")
            continue
        progress.use[module.name] = book.relative(module.view)
        rest = f"; {', '.join(open_ids)} still from the reference" if open_ids else ""
        lines.append(f"{module.name}: yours, {book.relative(module.view)}{rest}")
    if not any(module.name in progress.use for module in book.chapter_modules(chapter)):
        raise BookError(
            f"nothing of chapter {chapter} is written yet, so there is nothing to use; "
            f"start with: python -m chapters notebook {chapter}"
        )
    progress.save()
    return lines


def use_reference(chapter: int | None, book: Book, progress: Progress) -> list[str]:
    """Back to the finished parts, of one chapter or of all. The reader's files stay as they are."""
    names = [m.name for m in (book.chapter_modules(chapter) if chapter is not None else book.modules)]
    own = [name for name in names if progress.use.pop(name, None)]
    progress.save()
    return [f"{name}: the reference" for name in own] or ["the reference was in use already"]
