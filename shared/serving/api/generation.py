"""The two routes that generate text: from the request's body to the whole answer, or to its stream."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from shared.inference.outputs import RequestOutput, joined
from shared.serving.api.answers import DONE, Answer, ChatAnswer, CompletionAnswer, event, head, usage
from shared.serving.api.chat_request import ChatRequest, conversation
from shared.serving.api.completion_request import CompletionRequest, Prompt
from shared.serving.api.fan_out import all_outputs
from shared.serving.api.middleware import CLIENT_LEFT
from shared.serving.api.openapi import answers, body_of
from shared.serving.api.protocol import GenerationRequest
from shared.serving.api.responses import MSGPACK, EventStream, encoded, read
from shared.serving.concurrency import in_thread, unless_disconnected
from shared.serving.errors import bad_value, from_engine
from shared.serving.guard.call import Call
from shared.serving.guard.service import Service
from shared.serving.models.text_model import PromptTooLong, TextModel

router = APIRouter()
Encode = Callable[[TextModel, int], list[list[int]]]  # (text side, max_model_len) -> the ids of all prompts
KINDS = answers("text/event-stream", MSGPACK)


@router.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest), responses=KINDS)
async def chat_completions(request: Request) -> Response:
    """An answer to a conversation."""
    chat = await read(request, ChatRequest)

    def encode(text: TextModel, max_model_len: int) -> list[list[int]]:
        return [text.encode_chat(conversation(chat.messages), max_model_len)]

    def answer(call: Call, text: TextModel) -> Answer:
        fields = _head(call, "chatcmpl", ChatAnswer.kind, chat.model)
        return ChatAnswer(fields, chat.n or 1, text.tokenizer, bool(chat.logprobs), chat.include_usage)

    return await generate(request, chat, "messages", encode, answer)


@router.post("/v1/completions", openapi_extra=body_of(CompletionRequest), responses=KINDS)
async def completions(request: Request) -> Response:
    """What comes after a text, or after each of several."""
    asked = await read(request, CompletionRequest)

    def encode(text: TextModel, max_model_len: int) -> list[list[int]]:
        return [prompt_ids(text, prompt, max_model_len) for prompt in asked.prompt]

    def answer(call: Call, text: TextModel) -> Answer:
        repeated = [
            (prompt if isinstance(prompt, str) else text.decode(prompt)) if asked.echo else ""
            for prompt in asked.prompt
            for _ in range(asked.n or 1)
        ]
        fields = _head(call, "cmpl", CompletionAnswer.kind, asked.model)
        return CompletionAnswer(fields, repeated, text.tokenizer, asked.logprobs is not None, asked.include_usage)

    return await generate(request, asked, "prompt", encode, answer)


def prompt_ids(text: TextModel, prompt: Prompt, max_model_len: int) -> list[int]:
    """A prompt of either form, as ids. Raises ValueError for what the model can't continue."""
    if isinstance(prompt, str):
        return text.encode(prompt, max_model_len)
    text.check_length(len(prompt), max_model_len)
    return prompt


def _head(call: Call, prefix: str, kind: str, asked: str) -> dict[str, Any]:
    model = call.version.model if "model" in call.degraded else asked
    id = f"{prefix}-{uuid4().hex}"
    return head(id, kind, int(time.time()), model, call.version.name, call.degraded)


async def generate(
    request: Request,
    asked: GenerationRequest,
    param: str,
    encode: Encode,
    make: Callable[[Call, TextModel], Answer],
) -> Response:
    """Answer one request. param: where its prompt stands; encode and make: what differs between the routes."""
    service: Service = request.app.state.service
    call = service.begin(request, asked.model, asked.timeout, degrade=asked.of_any_model)
    try:
        begun = await unless_disconnected(request, _begin(service, call, asked, param, encode))
        if begun is None:
            return _left(service, call)
        (prompts, outputs), text = begun, call.version.text
        assert text is not None
        if service.telemetry.logs_texts_of(call.request_id):
            outputs = _logged(service, call, "\n".join(map(text.decode, prompts)), outputs)
        answer = make(call, text)
        headers = {"X-Model-Version": call.version.name}
        prompt_tokens = sum(map(len, prompts))
        if asked.stream:
            events = _events(call, answer, outputs, prompt_tokens, asked.include_usage)
            return EventStream(events, headers, lambda left: _end(service, call, left))
        whole = await unless_disconnected(request, _collect(outputs, len(prompts) * (asked.n or 1)))
    except Exception as error:
        failure = from_engine(error)  # of what it doesn't know, the middleware makes a 500
        service.end(call, failure.status, failure.code)
        raise failure from None
    if whole is None:
        return _left(service, call)
    call.trace.finish_reason = str(whole[-1].finish_reason)
    tokens = sum(len(output.token_ids) for output in whole)
    counted = usage(prompt_tokens, tokens, call.trace.cached_tokens)

    def respond() -> Response:
        return encoded(request, answer.whole(whole, counted), headers)

    # Twenty logprobs for each of 1,000 tokens make a megabyte, which takes 50 ms to put together.
    return respond() if asked.num_logprobs is None else await in_thread(respond)


async def _begin(
    service: Service, call: Call, asked: GenerationRequest, param: str, encode: Encode
) -> tuple[list[list[int]], AsyncGenerator[list[RequestOutput], None]]:
    """The prompts' ids, and their outputs to be, once the first prompt has its place in the engine."""
    text, limits = call.version.text, call.version.engine.limits
    assert text is not None
    assert limits is not None
    try:
        prompts = await service.encode(call, lambda: encode(text, limits.max_model_len))
        params = [text.sampling_params(asked) for _ in prompts]  # for each prompt: without a seed, one of its own
        params = service.admit(call, prompts, params, any_length=asked.limit is None)
        return prompts, await all_outputs(service, call, prompts, params)
    except PromptTooLong as error:
        raise bad_value(param, str(error), "context_length_exceeded") from None
    except ValueError as error:  # no template for these messages, or more than the engine can ever hold
        name, _, message = str(error).partition(": ")
        if name in type(asked).model_fields:
            raise bad_value(name, message) from None
        raise bad_value(param, str(error)) from None


async def _logged(
    service: Service, call: Call, prompt: str, outputs: AsyncGenerator[list[RequestOutput], None]
) -> AsyncGenerator[list[RequestOutput], None]:
    """The outputs, and at their end the request's texts in the log: it is one of the sample that the operator wants."""
    texts: list[str] = []
    try:
        async with aclosing(outputs):
            async for batch in outputs:
                texts += [output.text for output in batch]
                yield batch
    finally:
        service.telemetry.log_texts(call.request_id, prompt=prompt, answer="".join(texts))


async def _collect(outputs: AsyncGenerator[list[RequestOutput], None], n: int) -> list[RequestOutput]:
    """All n answers, each in one piece."""
    pieces: list[list[RequestOutput]] = [[] for _ in range(n)]
    async with aclosing(outputs):
        async for batch in outputs:
            for output in batch:
                pieces[output.index].append(output)
    return [joined(answer) for answer in pieces]


async def _events(
    call: Call,
    answer: Answer,
    outputs: AsyncGenerator[list[RequestOutput], None],
    prompt_tokens: int,
    include_usage: bool,
) -> AsyncGenerator[str, None]:
    """The stream's text. What is there at once is sent at once."""
    tokens, reason = 0, None
    if opening := answer.opening():
        yield opening
    try:
        async with aclosing(outputs):
            async for batch in outputs:
                text = ""
                for output in batch:
                    tokens += len(output.token_ids)
                    reason = output.finish_reason or reason
                    text += answer.piece(output)
                if text:
                    yield text
    except Exception as error:  # too late for another status: the stream says so itself, and ends without [DONE]
        failure = from_engine(error)
        call.trace.error = failure.code
        yield event(failure.full_body())
        return
    call.trace.finish_reason = str(reason)
    last = answer.usage(usage(prompt_tokens, tokens, call.trace.cached_tokens)) if include_usage else ""
    yield last + DONE


def _end(service: Service, call: Call, left: bool) -> None:
    """Close the books on a stream."""
    service.end(call, *((CLIENT_LEFT, "cancelled") if left else (200, call.trace.error)))


def _left(service: Service, call: Call) -> Response:
    """The answer to a caller who has left, which goes nowhere."""
    service.end(call, CLIENT_LEFT, "cancelled")
    return Response()
