"""What each stage of cleaning did: how many records it changed and removed, with examples, as a table and as a plot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = 3  # kept for each stage
AROUND = 30  # characters shown before a change, and as many again after it


@dataclass(frozen=True)
class Example:
    """One record that a stage changed or removed.  after: None if it was removed, for the reason given."""

    source: str
    before: str
    after: str | None
    reason: str = ""


@dataclass
class StageReport:
    """The count of one stage.  characters and seconds: summed over the records that reached it."""

    name: str
    seen: int = 0
    changed: int = 0
    removed: int = 0
    chars_in: int = 0
    chars_out: int = 0
    seconds: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)  # why records were removed, without the numbers
    examples: list[Example] = field(default_factory=list)

    def add(self, before: str, after: str | None, seconds: float, source: str = "", reason: str = "") -> None:
        """One record went through the stage.  after: None if it was removed."""
        self.seen += 1
        self.seconds += seconds
        self.chars_in += len(before)
        self.chars_out += len(after or "")
        self.changed += after is not None and after != before
        self.removed += after is None
        if after is None:
            reason_ = reason.split(":")[0]
            self.reasons[reason_] = self.reasons.get(reason_, 0) + 1
        if after != before and len(self.examples) < EXAMPLES:
            self.examples.append(Example(source, *excerpt(before, after), reason))


@dataclass
class Report:
    """All stages, in their order."""

    stages: list[StageReport] = field(default_factory=list)

    def stage(self, name: str) -> StageReport:
        """The stage of this name; added at the end when it is new."""
        found = next((stage for stage in self.stages if stage.name == name), None)
        if found is None:
            self.stages.append(found := StageReport(name))
        return found

    def table(self, timings: bool = True) -> str:
        """The counts as text, a line for each stage.  timings=False leaves out what differs from run to run."""
        lines = ["stage          records  changed  removed  characters" + ("   time" if timings else "")]
        for stage in self.stages:
            kept = stage.chars_out / stage.chars_in - 1 if stage.chars_in else 0.0
            line = f"{stage.name:<13}{stage.seen:>9}{stage.changed:>9}{stage.removed:>9}{kept:>+12.1%}"
            lines.append(line + (f"{stage.seconds:>6.2f}s" if timings else ""))
            lines += [f"    {count} {reason}" for reason, count in stage.reasons.items()]
        return "\n".join(lines)

    def examples(self, per_stage: int = 1) -> str:
        """Before and after, for each stage that did something."""
        lines = []
        for stage in self.stages:
            for example in stage.examples[:per_stage]:
                after = f"removed: {example.reason}" if example.after is None else repr(example.after)
                lines += [f"{stage.name}  ({example.source})", f"  - {example.before!r}", f"  + {after}"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)

    def plot(self) -> Figure:
        """A bar for each stage: which share of the records that reached it was changed, and which removed."""
        import matplotlib.pyplot as plt

        figure, ax = plt.subplots(figsize=(7.5, 0.6 + 0.3 * len(self.stages)))
        names = [stage.name for stage in self.stages]
        changed = [100 * stage.changed / max(1, stage.seen) for stage in self.stages]
        removed = [100 * stage.removed / max(1, stage.seen) for stage in self.stages]
        ax.barh(names, changed, label="changed")
        ax.barh(names, removed, left=changed, label="removed")
        ax.margins(x=0.05)
        ax.invert_yaxis()
        ax.set_xlabel("% of the records that reached the stage")
        ax.legend(loc="lower right")
        return figure


def excerpt(before: str, after: str | None) -> tuple[str, str | None]:
    """Both texts around their first difference.

    >>> excerpt("a" * 100 + "x", "a" * 100 + "y") == ("a" * 30 + "x", "a" * 30 + "y")
    True
    """
    if after is None:
        return before[: 2 * AROUND], None
    first = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    window = slice(max(0, first - AROUND), first + AROUND)
    return before[window], after[window]
