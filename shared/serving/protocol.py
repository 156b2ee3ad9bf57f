"""OpenAI's chat completions: the request, checked field by field, and the answers. Nothing is accepted and ignored."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from shared.serving.errors import ApiError


class Strict(BaseModel):
    """No unknown fields, and no guessed types: "5" is not 5."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(Strict):
    type: Literal["text"]
    text: str


def _as_parts(content: Any) -> Any:
    if not isinstance(content, str | list):
        raise ValueError("must be a text or a list of text parts")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _as_list(stop: Any) -> Any:
    if not isinstance(stop, str | list):
        raise ValueError("must be a text or a list of texts")
    return [stop] if isinstance(stop, str) else stop


MAX_ERRORS = 100
_TEXT = {"type": "string"}
_STOPS = {"type": "array", "maxItems": 4, "items": {"type": "string", "minLength": 1, "maxLength": 256}}
Content = Annotated[
    list[TextPart],
    Field(min_length=1, fail_fast=True),  # or a body full of faults would take seconds, to collect them all
    BeforeValidator(_as_parts),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": TextPart.model_json_schema()}]}),
]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=256)]],  # longer ones would be slow to look for, and for nobody
    Field(max_length=4, fail_fast=True),
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [_TEXT, _STOPS]}),
]


class Message(Strict):
    role: Literal["system", "user", "assistant"]
    content: Content
    # An answer of ours comes back with these, empty, when a caller sends the whole conversation.
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content)


class StreamOptions(Strict):
    include_usage: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text"]


class ChatRequest(Strict):
    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=2048, fail_fast=True)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None  # not OpenAI's, but every server of open models has it
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | None = None
    user: str | None = None  # whom the caller asks for, and notes of theirs: of no effect with OpenAI either
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    # What this server can't do is taken only where it would change nothing.
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logprobs: Literal[False] | None = None
    store: Literal[False] | None = None
    response_format: ResponseFormat | None = None
    service_tier: Literal["auto", "default"] | None = None
    audio: None = None
    function_call: None = None
    functions: None = None
    logit_bias: None = None
    modalities: None = None
    parallel_tool_calls: None = None
    prediction: None = None
    reasoning_effort: None = None
    tool_choice: None = None
    tools: None = None
    top_logprobs: None = None
    verbosity: None = None
    web_search_options: None = None

    def conversation(self) -> list[dict[str, str]]:
        return [{"role": message.role, "content": message.text} for message in self.messages]


_ONLY = {"n": "1", "presence_penalty": "0", "frequency_penalty": "0", "logprobs": "false", "store": "false",
         "response_format": '{"type": "text"}', "service_tier": '"auto" or "default"'}  # fmt: skip

# Pydantic's words and ours.
_WORDS = {"Input should": "must", "String should": "must", "List should": "must", "Dictionary should": "must",
          " after validation": "", "a valid string": "a text", "a valid array": "a list",
          "a valid list": "a list", "a valid dictionary": "an object"}  # fmt: skip


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read a request's body. Raises ApiError 400 that names the first wrong parameter and what is wrong with it."""
    try:
        chat = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _bad_request(error) from None
    if chat.stream_options is not None and not chat.stream:
        raise ApiError(400, "stream_options may only be given when stream is true.", param="stream_options")
    limits = {chat.max_tokens, chat.max_completion_tokens} - {None}
    if len(limits) > 1:
        message = "max_tokens and max_completion_tokens say different things; give one of them."
        raise ApiError(400, message, param="max_tokens")
    return chat


def _bad_request(error: ValidationError) -> ApiError:
    if error.error_count() > MAX_ERRORS:  # unknown names, most likely: one error each, and no way to get only the first
        return ApiError(400, f"The body has {error.error_count()} faults, such as unknown parameters.")
    # Of several faults a wrong value is told before an unknown name: it is more likely what the caller cares about.
    first = error.errors(include_url=False, include_context=False)[0]
    kind, value, names = first["type"], first["input"], first["loc"]
    if kind == "json_invalid":
        return ApiError(400, f"The body is not valid JSON. {first['msg']}.", code="invalid_json")
    if not names:
        return ApiError(400, "The body must be a JSON object.", code="invalid_type")
    param = str(names[0]) + "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names[1:])
    if kind == "extra_forbidden":
        return ApiError(400, f"Unknown parameter: {param}.", param=param, code="unknown_parameter")
    if kind == "missing":
        return ApiError(400, f"Missing parameter: {param}.", param=param, code="missing_parameter")
    if kind == "none_required":
        return ApiError(400, f"{param} is not supported by this server.", param=param, code="unsupported_parameter")
    if names[0] in _ONLY:
        message = f"{names[0]} is supported only as {_ONLY[str(names[0])]}."
        return ApiError(400, message, param=str(names[0]), code="unsupported_value")
    given = f", not {json.dumps(value)}" if isinstance(value, str | int | float | None) and len(str(value)) < 60 else ""
    reason = first["msg"].removeprefix("Value error, ")
    for words, ours in _WORDS.items():
        reason = reason.replace(words, ours)
    return ApiError(400, f"{param}: {reason}{given}.", param=param, code="invalid_value")


class Answer:
    """Builds the bodies of one answer, whole or in pieces."""

    def __init__(self, id: str, created: int, model: str, prompt_tokens: int) -> None:
        self._head = {"id": id, "created": created, "model": model}
        self._prompt_tokens = prompt_tokens

    def whole(self, text: str, finish_reason: str, completion_tokens: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        usage = self._usage(completion_tokens)
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def piece(self, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], "usage": None}

    def usage_piece(self, completion_tokens: int) -> dict[str, Any]:
        """The last piece of a stream whose caller asked for the usage."""
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage(completion_tokens)}

    def _usage(self, completion_tokens: int) -> dict[str, int]:
        total = self._prompt_tokens + completion_tokens
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def event(data: dict[str, Any]) -> str:
    """One server-sent event. ASCII only: some readers of lines take U+2028 for the end of one."""
    return f"data: {json.dumps(data)}\n\n"
