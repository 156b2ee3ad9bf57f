"""Exercise regions in a source file: find them, blank them, fill them.

A region is the part of a function between two markers:

    # exercise 5.1: what to write, in one sentence
    #   a longer explanation goes on like this
    …the body…
    # end
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

START = re.compile(r"^(?P<indent>\s*)# exercise (?P<id>\d+\.\d+): (?P<prompt>\S.*)$")
ALMOST_START = re.compile(r"^\s*#+\s*exercise\b\s*:?\s*\d", re.IGNORECASE)
END = re.compile(r"^(?P<indent>\s*)# end\s*$")
TODO = re.compile(r"""^\s*raise Todo\((?P<quote>["'])(?P<id>\d+\.\d+)(?P=quote)\)\s*$""")


class BookError(Exception):
    """Something is wrong with what was asked, or with the book's files. The message says what to do."""


class RegionError(BookError):
    """A file whose exercise markers, or whose syntax, are broken. Says where and what to do."""

    def __init__(self, file: str, line: int, problem: str):
        super().__init__(f"{file}:{line}: {problem}")
        self.file, self.line, self.problem = file, line, problem


class MissingEnd(RegionError):
    """An exercise whose `# end` is gone. `above`: how many lines of the file come before the place of `marker`."""

    def __init__(self, file: str, line: int, exercise_id: str, above: int, marker: str):
        problem = f"exercise {exercise_id} has no '# end' line; put '{marker}' back below line {above}, behind the body"
        super().__init__(file, line, problem)
        self.exercise_id, self.above, self.marker = exercise_id, above, marker


@dataclass(frozen=True)
class Region:
    """One exercise's region. Line numbers count from 1; `first` is the marker's line, `last` that of `# end`."""

    id: str
    prompt: str  # what stands behind the marker; further lines as they are written, `#   ` and all
    indent: str
    first: int
    body_first: int
    last: int
    body: str  # dedented, without the final newline

    @property
    def marker(self) -> str:
        """The marker's first line as it stands in the file."""
        return f"{self.indent}# exercise {self.id}: {self.prompt.splitlines()[0]}"

    @property
    def is_todo(self) -> bool:
        """True when nothing but the stub stands in the region."""
        return bool(TODO.match(self.body)) or not self.body.strip()


def find_regions(text: str, file: str) -> list[Region]:
    """All regions of a source text, in order. Raises RegionError for a marker that is missing, doubled or misspelt."""
    regions: list[Region] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        match = START.match(line)
        if not match:
            if END.match(line):
                raise RegionError(file, number + 1, "'# end' without a '# exercise' line above it")
            if ALMOST_START.match(line):
                raise RegionError(
                    file, number + 1, f"not a marker I can read: {line.strip()!r}; write '# exercise 5.1: what to do'"
                )
            number += 1
            continue
        first, indent = number, match["indent"]
        number += 1
        while number < len(lines) and lines[number].startswith(f"{indent}#   "):
            number += 1
        body_first = number
        while number < len(lines) and not END.match(lines[number]):
            if START.match(lines[number]):
                break
            number += 1
        if number == len(lines) or not END.match(lines[number]):
            raise MissingEnd(file, first + 1, match["id"], body_end(lines, body_first, indent), f"{indent}# end")
        body = textwrap.dedent("\n".join(lines[body_first:number]))
        prompt = "\n".join([match["prompt"], *(line.removeprefix(indent) for line in lines[first + 1 : body_first])])
        regions.append(Region(match["id"], prompt, indent, first + 1, body_first + 1, number + 1, body))
        number += 1
    seen: dict[str, Region] = {}
    for region in regions:
        if region.id in seen:
            raise RegionError(
                file,
                region.first,
                f"exercise {region.id} stands here a second time (first at line {seen[region.id].first})",
            )
        seen[region.id] = region
    return regions


def body_end(lines: list[str], body_first: int, indent: str) -> int:
    """How many lines of a file come before the place of a body's `# end`: up to its last line that is indented so."""
    end = number = body_first
    while number < len(lines) and not START.match(lines[number]):
        if lines[number].strip():
            if not lines[number].startswith(indent or " "):
                break
            end = number + 1
        number += 1
    return end


def with_ends(text: str, file: str) -> str:
    """The text with each missing `# end` put back where the indentation says that the body ends."""
    while True:
        try:
            find_regions(text, file)
            return text
        except MissingEnd as missing:
            lines = text.splitlines()
            text = "\n".join([*lines[: missing.above], missing.marker, *lines[missing.above :]]) + "\n"


def fill(text: str, bodies: Mapping[str, str], file: str) -> str:
    """The text with the bodies of the named regions replaced; regions that aren't named stay as they are."""
    lines = text.splitlines()
    for region in reversed(find_regions(text, file)):
        if region.id in bodies:
            body = textwrap.indent(textwrap.dedent(bodies[region.id]).strip("\n"), region.indent)
            lines[region.body_first - 1 : region.last - 1] = body.splitlines()
    return "\n".join(lines) + "\n"


def stub(exercise_id: str) -> str:
    """The body of an exercise that nobody has written yet."""
    return f'raise Todo("{exercise_id}")'


def skeleton(text: str, file: str) -> str:
    """The text with every body blanked: what must stay the same however the exercises are solved."""
    return fill(text, {region.id: stub(region.id) for region in find_regions(text, file)}, file)
