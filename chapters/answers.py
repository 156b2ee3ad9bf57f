"""Change the reader's files: fill in an answer, reset, show the difference, choose whose parts to run on."""

import difflib
from collections.abc import Callable
from pathlib import Path

from chapters.exercises import Book, Exercise, Module, check_markers, raw_text, reader_text
from chapters.progress import Progress
from chapters.regions import BookError, fill, find_regions, stub, with_ends
from chapters.views import back_up, is_edited, view, write_atomically


def write_answer(what: str, book: Book, over: bool = False) -> list[str]:
    """Put the reference's bodies into the reader's files; what stood there is kept in .backup/. Returns lines.

    A whole chapter's bodies that the reader has written are left alone, unless `over`.
    """
    keep = "" if over or "." in what else f"python -m chapters answer {what} --write --all"
    return change_bodies(book.select(what), book, lambda exercise: exercise.region.body, "answer written", keep)


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


def change_bodies(
    exercises: list[Exercise], book: Book, body: Callable[[Exercise], str], done: str, keep: str = ""
) -> list[str]:
    """Replace bodies in the reader's files, a copy kept of each that changes; the bodies replaced may be broken.

    keep: only bodies that are to do are replaced; for the others, this command is named that replaces them, too.
    """
    lines = []
    modules: dict[Path, Module] = {exercise.module.view: exercise.module for exercise in exercises}
    for path, module in modules.items():
        file, old = book.relative(path), raw_text(module, book)
        text = with_ends(old, file)
        check_markers(text, module, book)
        bodies = {e.id: body(e) for e in exercises if e.module == module}
        touched = [region for region in find_regions(text, file) if region.id in bodies]
        if own := [r.id for r in touched if keep and not r.is_todo and r.body != bodies[r.id]]:
            one = f"one of them: python -m chapters answer {own[0]} --write"
            lines.append(f"{file}: yours, left alone: {', '.join(own)} (to replace them: {keep}; {one})")
            touched = [region for region in touched if region.id not in own]
            bodies = {region.id: bodies[region.id] for region in touched}
        new = fill(text, bodies, file)
        if new == old:
            if not own:
                lines.append(f"{file}: nothing to change")
            continue
        if text != old or not all(region.is_todo for region in touched):
            lines.append(f"{file}: the file as it was is kept as {book.relative(back_up(path, book))}")
        write_atomically(path, new)
        lines.append(f"{file}: {done}: {', '.join(bodies)}" if bodies else f"{file}: its '# end' lines are back")
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
