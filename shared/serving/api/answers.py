"""The bodies of answers in OpenAI's two shapes, whole and as the events of a stream.

Of an event everything but its text is the same for a whole answer, and is put together once: per token there is one
text to quote, and no object to build and walk through.
"""

import codecs
import json
from collections.abc import Sequence
from typing import Any, Protocol

from shared.data.fallback_tokenizer import LibraryTokenizer
from shared.data.tokenizer import Tokenizer
from shared.inference.outputs import RequestOutput, TokenLogprobs

AnyTokenizer = Tokenizer | LibraryTokenizer
DONE = "data: [DONE]\n\n"
LEAST_LOGPROB = -9999.0  # JSON has no minus infinity; this is what OpenAI writes


class Answer(Protocol):
    """Builds the bodies of one answer."""

    def whole(self, outputs: Sequence[RequestOutput], usage: dict[str, Any]) -> dict[str, Any]:
        """outputs: all choices in order, each in one piece."""

    def opening(self) -> str:
        """The events that say that the request has its place, before there is any text."""

    def piece(self, output: RequestOutput) -> str:
        """The events for what is new of one choice; none where there is nothing to say yet."""

    def usage(self, usage: dict[str, Any]) -> str:
        """The last event of a stream whose caller asked for it."""


def head(id: str, kind: str, created: int, model: str, version: str, degraded: dict[str, str]) -> dict[str, Any]:
    """What all bodies of an answer begin with. degraded: what was made less of, if anything was."""
    fields = {"id": id, "object": kind, "created": created, "model": model, "system_fingerprint": version}
    return fields | ({"degraded": degraded} if degraded else {})


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """A request's tokens as OpenAI counts them: all prompts and all answers; cached ones are among the prompt's."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def event(data: Any) -> str:
    """One server-sent event. ASCII only: some readers of lines take U+2028 for the end of one."""
    return f"data: {_json(data)}\n\n"


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


class ChatAnswer:
    """/v1/chat/completions."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(
        self, fields: dict[str, Any], n: int, tokenizer: AnyTokenizer, with_logprobs: bool, with_usage: bool
    ) -> None:
        self._fields, self._n, self._tokenizer, self._with_logprobs = fields, n, tokenizer, with_logprobs
        self._before, self._after = _frame(fields | {"object": self.chunk_kind}, with_usage)

    def whole(self, outputs: Sequence[RequestOutput], usage: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer that isn't streamed. outputs: the choices, each whole."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": output.text, "refusal": None},
                "logprobs": self._logprobs(output) if self._with_logprobs else None,
                "finish_reason": output.finish_reason,
            }
            for index, output in enumerate(outputs)
        ]
        return self._fields | {"choices": choices, "usage": usage}

    def opening(self) -> str:
        """The first events of a stream: whose words follow, for each choice."""
        return "".join(self._event(index, '{"role":"assistant","content":""}') for index in range(self._n))

    def piece(self, output: RequestOutput) -> str:
        """The events of one output: its text, and how it ended, if it did; none for a token without text."""
        events = ""
        if output.text or self._with_logprobs:
            logprobs = _json(self._logprobs(output)) if self._with_logprobs else "null"
            events = self._event(output.index, f'{{"content":{json.dumps(output.text)}}}', logprobs)
        if output.finish_reason is not None:
            events += self._event(output.index, "{}", finish_reason=f'"{output.finish_reason}"')
        return events

    def usage(self, usage: dict[str, Any]) -> str:
        """The last event of a stream that asked for it: no choice, and what the request used."""
        return event(self._fields | {"object": self.chunk_kind, "choices": [], "usage": usage})

    def _event(self, index: int, delta: str, logprobs: str = "null", finish_reason: str = "null") -> str:
        return (
            f'{self._before}{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish_reason}}}'
            f"{self._after}"
        )

    def _logprobs(self, output: RequestOutput) -> dict[str, Any]:
        return {"content": [self._entry(token) for token in output.logprobs or []], "refusal": None}

    def _entry(self, token: TokenLogprobs) -> dict[str, Any]:
        top = [self._scored(id, logprob) for id, logprob in token.top]
        return self._scored(token.token_id, token.logprob) | {"top_logprobs": top}

    def _scored(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {"token": token_text(data), "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(data)}


class CompletionAnswer:
    """/v1/completions. texts: what each choice begins with, where the prompt is to be repeated; else empty."""

    kind = "text_completion"

    def __init__(
        self,
        fields: dict[str, Any],
        texts: Sequence[str],
        tokenizer: AnyTokenizer,
        with_logprobs: bool,
        with_usage: bool,
    ) -> None:
        self._fields, self._texts = fields, texts
        self._before, self._after = _frame(fields, with_usage)
        self._logprobs = [LegacyLogprobs(tokenizer) for _ in texts] if with_logprobs else None

    def whole(self, outputs: Sequence[RequestOutput], usage: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer that isn't streamed. outputs: the choices, each whole."""
        choices = [
            {
                "index": index,
                "text": self._texts[index] + output.text,
                "logprobs": self._logprobs[index].add(output) if self._logprobs else None,
                "finish_reason": output.finish_reason,
            }
            for index, output in enumerate(outputs)
        ]
        return self._fields | {"choices": choices, "usage": usage}

    def opening(self) -> str:
        """The first events of a stream: the prompts, where they are to be repeated."""
        return "".join(self._event(index, json.dumps(text)) for index, text in enumerate(self._texts) if text)

    def piece(self, output: RequestOutput) -> str:
        """The event of one output; none for a token without text that doesn't end the choice."""
        reason, logprobs = output.finish_reason, self._logprobs
        if not output.text and reason is None and logprobs is None:
            return ""
        return self._event(
            output.index,
            json.dumps(output.text),
            "null" if logprobs is None else _json(logprobs[output.index].add(output)),
            "null" if reason is None else f'"{reason}"',
        )

    def usage(self, usage: dict[str, Any]) -> str:
        """The last event of a stream that asked for it: no choice, and what the request used."""
        return event(self._fields | {"choices": [], "usage": usage})

    def _event(self, index: int, text: str, logprobs: str = "null", finish_reason: str = "null") -> str:
        return (
            f'{self._before}{{"index":{index},"text":{text},"logprobs":{logprobs},"finish_reason":{finish_reason}}}'
            f"{self._after}"
        )


def _frame(fields: dict[str, Any], with_usage: bool) -> tuple[str, str]:
    """What stands before and behind the one choice of an event."""
    whole = event(fields | {"choices": [0]} | ({"usage": None} if with_usage else {}))
    before, _, after = whole.rpartition("[0]")
    return f"{before}[", f"]{after}"


class LegacyLogprobs:
    """The log-probabilities of one choice as /v1/completions tells them: four lists, and where each token's text
    begins, in characters from the choice's beginning."""

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self._tokenizer, self._offset = tokenizer, 0
        self._silent = frozenset(tokenizer.special_tokens.values())  # of these nothing is in the text
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, output: RequestOutput) -> dict[str, Any]:
        """The four lists of an output's tokens; the offsets go on where those of the output before ended."""
        entries = output.logprobs or []
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            if entry.token_id not in self._silent:
                self._offset += len(self._utf8.decode(self._tokenizer.token_bytes(entry.token_id)))
        return {
            "tokens": [self._text(entry.token_id) for entry in entries],
            "token_logprobs": [max(entry.logprob, LEAST_LOGPROB) for entry in entries],
            "top_logprobs": [{self._text(id): logprob for id, logprob in entry.top} for entry in entries],
            "text_offset": offsets,
        }

    def _text(self, token_id: int) -> str:
        return token_text(self._tokenizer.token_bytes(token_id))


def token_text(data: bytes) -> str:
    """A token as text; where it is only a part of a character, its bytes are spelt out.

    >>> token_text(b" a"), token_text("é".encode()[:1])
    (' a', 'bytes:\\\\xc3')
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
