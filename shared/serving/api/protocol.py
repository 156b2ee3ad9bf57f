"""What all requests have in common: read strictly, and refused by the name of what is wrong in them.

Nothing is accepted and ignored: a parameter is honoured, or it is refused.
"""

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from shared.serving.errors import ApiError

MAX_ERRORS = 100
MAX_ANSWERS = 128  # to one prompt
MAX_TOP_LOGPROBS = 20


class Strict(BaseModel):
    """No unknown fields, and no guessed types: "5" is not 5."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def check(self) -> None:
        """Raise ApiError for what no single field can know."""


def _as_list(stop: Any) -> Any:
    if not isinstance(stop, str | list):
        raise ValueError("must be a text or a list of texts")
    return [stop] if isinstance(stop, str) else stop


_STOP = {"type": "string", "minLength": 1, "maxLength": 256}
Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=256)]],  # longer ones would be slow to look for, and for nobody
    Field(max_length=4, fail_fast=True),
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "maxItems": 4, "items": _STOP}]}),
]
Nothing = Annotated[list[Any], Field(max_length=0)] | None  # an empty list says the same as none
NoBias = Annotated[dict[str, float], Field(max_length=0)] | None


Parsed = TypeVar("Parsed", bound=Strict)


class StreamOptions(Strict):
    """include_usage: end the stream with an event that says what the request used."""

    include_usage: bool | None = None


class GenerationRequest(Strict):
    """The parameters that every route has which generates text."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    user: str | None = None  # whom the caller asks for: of no effect with OpenAI either
    # These aren't OpenAI's, but servers of open models have them.
    top_k: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    ignore_eos: bool | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None  # seconds
    # What this server can't do is taken only where it would change nothing.
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: NoBias = None

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer; None where the request doesn't say."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to tell with each token; None for no logprobs at all."""
        return None

    @property
    def of_any_model(self) -> bool:
        """Whether another model would understand it, too: not where it holds token ids, which are one vocabulary's."""
        return True

    @property
    def include_usage(self) -> bool:
        """Whether a stream is to end with what the request used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        """Raises ApiError 400 for parameters that contradict one another; what pydantic can't see in one field."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options may only be given when stream is true.", param="stream_options")
        if self.seed is not None and self.seed + (self.n or 1) > 2**63:
            message = "seed: the k-th of n answers is drawn with seed + k, and that is more than 64 bits hold."
            raise ApiError(400, message, param="seed", code="invalid_value")


# What a parameter may be, where this server can do only one thing.
_ONLY = {"presence_penalty": "0", "frequency_penalty": "0", "logit_bias": "{}", "store": "false", "tools": "[]",
         "response_format": '{"type": "text"}', "service_tier": '"auto" or "default"', "modalities": '["text"]',
         "tool_choice": '"none"', "suffix": '""'}  # fmt: skip

# Pydantic's words and ours.
_WORDS = {"Input should": "must", "String should": "must", "List should": "must", "Dictionary should": "must",
          " after validation": "", "a valid string": "a text", "a valid array": "a list",
          "a valid list": "a list", "a valid dictionary": "an object"}  # fmt: skip


def parse(model: type[Parsed], body: bytes) -> Parsed:
    """Read a request's body. Raises ApiError 400 that names the first wrong parameter and what is wrong with it."""
    try:
        request = model.model_validate_json(body)
    except ValidationError as error:
        raise _bad_request(error) from None
    request.check()
    return request


def _bad_request(error: ValidationError) -> ApiError:
    if error.error_count() > MAX_ERRORS:  # unknown names, most likely: one error each, and no way to get only the first
        return ApiError(400, f"The body has {error.error_count()} faults, such as unknown parameters.")
    # Of several faults a wrong value is told before an unknown name: it is more likely what the caller cares about.
    first = error.errors(include_url=False, include_context=False)[0]
    kind, value, names = first["type"], first["input"], first["loc"]
    if kind == "json_invalid":
        reason = first["msg"].removeprefix("Invalid JSON: ")
        return ApiError(400, f"The body is not valid JSON: {reason}.", code="invalid_json")
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
