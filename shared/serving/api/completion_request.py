"""OpenAI's older completions, which go on from a plain text, and the two routes of the tokenizer: the requests."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from shared.serving.api.chat_request import Messages
from shared.serving.api.protocol import MAX_TOP_LOGPROBS, GenerationRequest, Strict
from shared.serving.errors import ApiError, bad_value

MAX_PROMPTS = 128
DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this route
TOP = 2**31  # no vocabulary is as large; the model's own is asked later
Prompt = str | list[int]


def _as_prompts(prompt: Any) -> Any:
    """A list of prompts, whichever of the four forms it has."""
    what = "must be a text, a list of texts, a list of token ids, or a list of such lists"
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise ValueError(what)
    prompts = [prompt] if prompt and type(prompt[0]) is int else prompt
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise ValueError(f"must hold from 1 to {MAX_PROMPTS} prompts")
    for one in prompts:
        ids = isinstance(one, list) and len(one) > 0 and all(type(id) is int and 0 <= id < TOP for id in one)
        if not ids and not isinstance(one, str):
            raise ValueError(what)
    return prompts


_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": TOP}}
_MANY = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}
Prompts = Annotated[
    Any,  # `_as_prompts` has looked at every item, much faster than a union would
    BeforeValidator(_as_prompts),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, _MANY | {"items": {"type": "string"}}, _IDS, _MANY | {"items": _IDS}]}
    ),
]


class CompletionRequest(GenerationRequest):
    """The body of /v1/completions."""

    prompt: Prompts  # list[Prompt]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    # What this server can't do is taken only where it would change nothing.
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Literal[""] | None = None

    @property
    def limit(self) -> int | None:
        """As in GenerationRequest; OpenAI's default here is 16 tokens."""
        return self.max_tokens or DEFAULT_MAX_TOKENS

    @property
    def num_logprobs(self) -> int | None:
        """As in GenerationRequest; here logprobs is a number, and 0 tells the drawn token's alone."""
        return self.logprobs

    @property
    def of_any_model(self) -> bool:
        """As in GenerationRequest: whether all prompts are texts."""
        return all(isinstance(prompt, str) for prompt in self.prompt)

    def check(self) -> None:
        """Raises ApiError 400 for parameters that contradict one another, or that only a prompt's logits answer."""
        super().check()
        if self.best_of is not None and self.best_of != (self.n or 1):
            message = "best_of is supported only with the same value as n."
            raise ApiError(400, message, param="best_of", code="unsupported_value")
        if self.echo and self.logprobs is not None:
            message = "echo is supported only without logprobs: those of the prompt are not computed."
            raise ApiError(400, message, param="echo", code="unsupported_value")


class TokenizeRequest(Strict):
    """A text, or a conversation with the model's template around it."""

    model: str
    prompt: str | None = None
    messages: Messages | None = None

    def check(self) -> None:
        """Raises ApiError 400 unless there is either a prompt or a conversation."""
        if (self.prompt is None) == (self.messages is None):
            raise bad_value("prompt", "give either a prompt or messages, and not both")


class DetokenizeRequest(Strict):
    """The body of /detokenize."""

    model: str
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=TOP)]], Field(fail_fast=True)]
