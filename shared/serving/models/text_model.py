"""What of a model is text: tokenizer, chat template, sampling defaults. It needs no weights, and lives with the API."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.data.chat import ChatTemplate, encode_chat
from shared.data.fallback_tokenizer import LibraryTokenizer, load_tokenizer
from shared.data.tokenizer import Tokenizer
from shared.inference.sampling import SamplingParams
from shared.serving.api.protocol import GenerationRequest

# When a caller sets no limit. A small model that has begun to repeat itself must not go on to the context's end.
DEFAULT_MAX_TOKENS = 1024
PIECE = 2**12  # characters that are encoded before it is asked again whether the text is too long already


class PromptTooLong(ValueError):
    """The prompt leaves no room for an answer."""


@dataclass
class TextModel:
    """`defaults` holds what a request that doesn't say is sampled with. context: the model's own, in tokens, for
    telling callers whether it is the model or this server's memory that is too small; None where it isn't known."""

    name: str
    tokenizer: Tokenizer | LibraryTokenizer
    template: ChatTemplate
    defaults: SamplingParams
    context: int | None = None

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> "TextModel":
        """Read a model directory, without its weights. Raises ValueError that names the file."""
        path = Path(path)
        defaults = read_defaults(path)
        tokenizer, template = load_tokenizer(path), ChatTemplate.load(path)
        return cls(name or model_name(path), tokenizer, template, defaults, read_context(path))

    def encode_chat(self, messages: Sequence[Mapping[str, str]], max_model_len: int) -> list[int]:
        """The prompt that a conversation makes. Raises PromptTooLong, and ValueError where the template refuses it.

        A text that is much too long is read only as far as it takes to see that.
        """
        return encode_chat(_Bounded(self, max_model_len), self.template, messages)  # type: ignore[arg-type]

    def encode(self, text: str, max_model_len: int) -> list[int]:
        """The ids of a plain text, in which no special token is found. Raises ValueError as encode_chat does."""
        return _Bounded(self, max_model_len).encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included; what isn't a whole character becomes U+FFFD. Raises ValueError."""
        return b"".join(map(self.tokenizer.token_bytes, ids)).decode(errors="replace")

    def least_tokens(self, text: str) -> float:
        """At least so many tokens the text makes, without encoding it; 0 where the vocabulary isn't known.

        A byte is at least one n-th of a token, if no token that it is in has more than n bytes: the letters of a word
        are found in tokens of 20, the spaces in some of 80. And if no token has it more than m times, there are at
        least as many tokens as one m-th of its number.
        """
        part, share = self._bounds
        counts = np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=256)
        return float(max(counts @ part, (counts * share).max()))

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of each byte value 1/n and 1/m, as above; 0 for a byte that no token has. Each [256]."""
        longest, most = np.zeros(256), np.zeros(256)
        for token in self.tokenizer.vocab.values() if isinstance(self.tokenizer, Tokenizer) else ():
            for byte in set(token):
                longest[byte] = max(longest[byte], len(token))
                most[byte] = max(most[byte], token.count(byte))
        one = np.ones(256)
        return (
            np.divide(one, longest, out=np.zeros(256), where=longest > 0),
            np.divide(one, most, out=np.zeros(256), where=most > 0),
        )

    def check_length(self, n: int, max_model_len: int, at_least: bool = False) -> None:
        """Raise PromptTooLong when a prompt of n tokens leaves no room for one token of an answer."""
        if n < max_model_len:
            return
        has = f"the prompt has {'at least ' if at_least else ''}{n} tokens"
        if self.context is not None and max_model_len < self.context:
            raise PromptTooLong(
                f"{has}, and this server's KV memory is for {max_model_len} tokens of prompt and answer together; "
                "shorten the prompt, or start the server with a larger --kv-memory"
            )
        raise PromptTooLong(
            f"{has}, and the model's context is {max_model_len} tokens for the prompt and the answer together; "
            "shorten the prompt"
        )

    def sampling_params(self, request: GenerationRequest) -> SamplingParams:
        """What the request asks for, and the model's defaults where it doesn't; without a seed, a new one each time."""

        def given(value: Any, default: Any) -> Any:
            return default if value is None else value

        return SamplingParams(
            max_tokens=given(request.limit, self.defaults.max_tokens),
            temperature=given(request.temperature, self.defaults.temperature),
            top_p=given(request.top_p, self.defaults.top_p),
            top_k=given(request.top_k, self.defaults.top_k),
            min_p=given(request.min_p, self.defaults.min_p),
            repetition_penalty=given(request.repetition_penalty, self.defaults.repetition_penalty),
            seed=given(request.seed, secrets.randbits(62)),  # the k-th of n answers draws with seed + k: leave room
            stop=tuple(request.stop or ()),
            ignore_eos=bool(request.ignore_eos),
            n=given(request.n, 1),
            logprobs=request.num_logprobs,
        )

    def warm_up_prompt(self, max_model_len: int) -> list[int]:
        """A question for nobody, so that the first caller doesn't pay for what happens only once."""
        return self.encode_chat([{"role": "user", "content": "Hi"}], max_model_len)


class _Bounded:
    """A tokenizer that stops, with PromptTooLong, as soon as it has made too many tokens for the context."""

    def __init__(self, model: TextModel, max_model_len: int) -> None:
        self._model, self._max_model_len, self._made = model, max_model_len, 0
        self.special_tokens = model.tokenizer.special_tokens

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        tokenizer, room = self._model.tokenizer, self._max_model_len - self._made
        long = len(text) > max(room, PIECE)
        if long and isinstance(tokenizer, Tokenizer):  # the library's takes hardly any time
            self._model.check_length(int(self._model.least_tokens(text)) + self._made, self._max_model_len, True)
            pieces = (text[i : i + PIECE] for i in range(0, len(text), PIECE))
            ids = list(islice(tokenizer.encode_iterable(pieces, allow_special), room + 1))
        else:
            ids = tokenizer.encode(text, allow_special)
        self._made += len(ids)
        self._model.check_length(self._made, self._max_model_len, at_least=long)
        return ids


def model_name(path: Path) -> str:
    """The name a model directory is served under: the folder's own."""
    return path.resolve().name


def read_context(path: Path) -> int | None:
    """The model's context in tokens, from its config.json; None where that doesn't say."""
    try:
        context = json.loads((path / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None  # what loads the weights tells what is wrong with it
    return context if isinstance(context, int) else None


def read_defaults(path: Path) -> SamplingParams:
    """The sampling that the model's makers recommend in generation_config.json; without one, OpenAI's: temperature 1.

    Raises ValueError naming the file.
    """
    file = path / "generation_config.json"
    if not file.is_file():
        return SamplingParams(max_tokens=DEFAULT_MAX_TOKENS, temperature=1.0)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        greedy = config.get("do_sample") is False
        return SamplingParams(
            max_tokens=DEFAULT_MAX_TOKENS,
            temperature=0.0 if greedy else config.get("temperature", 1.0),
            top_p=config.get("top_p", 1.0),
            top_k=config.get("top_k", 0),
        )
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} can't be used: {error}") from error
