"""An answer as its caller sees it: from each new token, the text that may be sent, and whether it is the last."""

from collections.abc import Iterable
from typing import Protocol

from shared.inference.detokenizer import Detokenizer, HasTokenBytes
from shared.inference.outputs import FinishReason
from shared.inference.sampling import SamplingParams


class EngineTokenizer(HasTokenBytes, Protocol):
    """What of a tokenizer it takes to make text of tokens."""

    eos_ids: frozenset[int]
    special_tokens: dict[str, int]


def silent_ids(tokenizer: EngineTokenizer | None, eos_ids: frozenset[int]) -> frozenset[int]:
    """The tokens that have no text: those that end an answer, and all special ones."""
    return eos_ids | frozenset(tokenizer.special_tokens.values() if tokenizer else ())


class AnswerText:
    """One answer, token by token. Without a tokenizer it has no text, and ends by its tokens alone.

    eos_ids: tokens that end it, unless the request ignores them. silent: `silent_ids`. output_ids: tokens that it has
    already, whose text was sent before. Raises ValueError when those ended it.
    """

    def __init__(
        self,
        tokenizer: EngineTokenizer | None,
        params: SamplingParams,
        eos_ids: frozenset[int],
        silent: frozenset[int],
        output_ids: Iterable[int] = (),
    ) -> None:
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, params.stop)
        self._ends = frozenset[int]() if params.ignore_eos else eos_ids
        self._silent, self._max_tokens = silent, params.max_tokens
        self.num_tokens = 0
        for token_id in output_ids:
            _, reason = self.add(token_id)
            if reason is not None:
                raise ValueError(f"output_ids: the answer ends with token {token_id}, its number {self.num_tokens}")

    def add(self, token_id: int) -> tuple[str, FinishReason | None]:
        """Take one more token. Returns the text that is new and can be sent now, and the reason if it was the last."""
        text, stopped, ended = "", False, token_id in self._ends
        self.num_tokens += 1
        if self._detokenizer is not None:
            text = "" if token_id in self._silent else self._detokenizer.add(token_id)
            stopped = self._detokenizer.stopped
        if not (ended or stopped or self.num_tokens == self._max_tokens):
            return text, None
        if self._detokenizer is not None:
            text += self._detokenizer.flush(cut=not ended)
        return text, "stop" if ended or stopped else "length"
