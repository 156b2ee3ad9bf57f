"""From tokens to text that can be sent at once: whole characters only, and nothing of a stop text."""

import codecs
from collections.abc import Sequence
from typing import Protocol


class HasTokenBytes(Protocol):
    """What of a tokenizer the detokenizer needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, which need not be whole characters."""


class Detokenizer:
    """One answer's text, token by token.

    A character whose bytes are split over tokens is held back until it is whole; bytes that can never become a
    character turn into U+FFFD. Text that may become a stop text is held back until it has, or can't any more.
    Of several stop texts the one that is complete first counts, so the answer doesn't depend on how tokens cut it.
    """

    def __init__(self, tokenizer: HasTokenBytes, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False  # a stop text was met: the answer is over

    def add(self, token_id: int) -> str:
        """Take one more token and return the text that may be sent now, which is often none."""
        return self._release(self._utf8.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self, cut: bool = False) -> str:
        """No more tokens will come: return what was held back.

        cut: the answer didn't end, it was cut at its limit. The beginning of a character is then left out; at a real
        end it is what the model said, and becomes U+FFFD.
        """
        text = self._release("" if cut else self._utf8.decode(b"", final=True))
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if matches:
            self.stopped, self._held = True, ""
            return text[: min(matches)[1]]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """How many of text's last characters are the beginning of stop."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
