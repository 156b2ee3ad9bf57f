"""How many values a label may have: each is a series that Prometheus keeps, and none may be a caller's free choice."""

from collections.abc import Mapping, Sequence

MAX_LABELS = 64  # values of one label beside those known beforehand; what comes later is "other"


class LabelValues:
    """known: label -> the values known beforehand, of which there are always as many as they are."""

    def __init__(self, known: Mapping[str, Sequence[str]]) -> None:
        self._known = known
        self._others: dict[str, set[str]] = {label: set() for label in known}

    def bounded(self, label: str, value: str) -> str:
        """The value, or "other" where the label would get more than MAX_LABELS of them beside the known ones."""
        others = self._others[label]
        if value in self._known[label] or value in others:
            return value
        if len(others) < MAX_LABELS:
            others.add(value)
            return value
        return "other"
