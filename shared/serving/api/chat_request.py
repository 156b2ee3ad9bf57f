"""OpenAI's chat completions: the request."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from shared.serving.api.protocol import MAX_TOP_LOGPROBS, GenerationRequest, Nothing, Strict
from shared.serving.errors import ApiError


class TextPart(Strict):
    """A piece of a message. Pictures and sounds are refused: the model reads text."""

    type: Literal["text"]
    text: str


def _as_parts(content: Any, message: ValidationInfo) -> Any:
    if content is None and message.data.get("role") == "assistant":  # it said nothing
        content = ""
    if not isinstance(content, str | list):
        raise ValueError("must be a text or a list of text parts")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Content = Annotated[
    list[TextPart],
    Field(min_length=1, fail_fast=True),  # or a body full of faults would take seconds, to collect them all
    BeforeValidator(_as_parts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": TextPart.model_json_schema()},
                {"type": "null", "description": "of an assistant only"},
            ]
        }
    ),
]


class Message(Strict):
    """One turn of a conversation, in OpenAI's form."""

    role: Literal["system", "developer", "user", "assistant"]  # OpenAI calls its newer models' system "developer"
    content: Content
    # An answer of ours comes back with these, empty, when a caller sends the whole conversation.
    refusal: None = None
    annotations: Nothing = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing = None

    @property
    def text(self) -> str:
        """All of its parts, a line each."""
        return "\n".join(part.text for part in self.content)


class ResponseFormat(Strict):
    """Plain text alone: the engine doesn't constrain what it writes."""

    type: Literal["text"]


Messages = Annotated[list[Message], Field(min_length=1, max_length=2048, fail_fast=True)]


def conversation(messages: list[Message]) -> list[dict[str, str]]:
    """The messages as the model's template reads them."""
    role = {"developer": "system"}
    return [{"role": role.get(message.role, message.role), "content": message.text} for message in messages]


class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None  # the caller's notes
    # What this server can't do is taken only where it would change nothing.
    store: Literal[False] | None = None
    response_format: ResponseFormat | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    tools: Nothing = None
    functions: Nothing = None
    tool_choice: Literal["none"] | None = None
    function_call: Literal["none"] | None = None
    audio: None = None
    parallel_tool_calls: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None

    @property
    def limit(self) -> int | None:
        """As in GenerationRequest; max_completion_tokens is the newer name of max_tokens."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """As in GenerationRequest; top_logprobs counts only beside logprobs: true."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """Raises ApiError 400 for parameters that contradict one another."""
        super().check()
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            message = "max_tokens and max_completion_tokens say different things; give one of them."
            raise ApiError(400, message, param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs may only be given when logprobs is true.", param="top_logprobs")
