"""The tokenizer's two routes: a text or a conversation to ids, and ids to text."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from shared.serving.api.chat_request import conversation
from shared.serving.api.completion_request import DetokenizeRequest, TokenizeRequest
from shared.serving.api.openapi import answers, body_of
from shared.serving.api.responses import MSGPACK, encoded, read
from shared.serving.concurrency import unless_disconnected
from shared.serving.errors import bad_value
from shared.serving.guard.service import Service

router = APIRouter()
ANY_LENGTH = 2**62  # a body has its limit, and a text that is too long for the context may be counted here


@router.post("/tokenize", openapi_extra=body_of(TokenizeRequest), responses=answers(MSGPACK))
async def tokenize(request: Request) -> Response:
    """The ids of a text, or of a conversation as the model would read it."""
    asked = await read(request, TokenizeRequest)
    service: Service = request.app.state.service
    call = service.begin(request, asked.model, degrade=False)  # the middleware closes its books
    text, limits = call.version.text, call.version.engine.limits
    assert text is not None
    assert limits is not None

    def encode() -> list[int]:
        if asked.messages is not None:
            return text.encode_chat(conversation(asked.messages), ANY_LENGTH)
        return text.encode(asked.prompt or "", ANY_LENGTH)

    try:
        ids = await unless_disconnected(request, service.encode(call, encode))
    except ValueError as error:
        raise bad_value("messages" if asked.messages is not None else "prompt", str(error)) from None
    if ids is None:
        return Response()  # it goes nowhere: the caller has left
    return encoded(request, {"count": len(ids), "max_model_len": limits.max_model_len, "tokens": ids})


@router.post("/detokenize", openapi_extra=body_of(DetokenizeRequest), responses=answers(MSGPACK))
async def detokenize(request: Request) -> Response:
    """The text of ids, special tokens included. What isn't a whole character becomes U+FFFD."""
    asked = await read(request, DetokenizeRequest)
    service: Service = request.app.state.service
    text = service.begin(request, asked.model, degrade=False).version.text
    assert text is not None
    try:
        return encoded(request, {"prompt": text.decode(asked.tokens)})
    except ValueError as error:
        raise bad_value("tokens", str(error)) from None
