"""Row 0: the most naive generation there is, and a server in thirty lines.

Both are slow on purpose. What they do wrong is measured in chapter 0 and mended, part by part, in the chapters after.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from torch import Tensor

Model = Callable[[Tensor], Tensor]  # ids [batch, length] -> logits [batch, length, vocab]


class Tokenizer(Protocol):
    """What the server needs of a tokenizer."""

    eos_ids: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around them."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text that ids stand for, special tokens included."""


def next_token(logits: Tensor) -> int:
    """The greedy choice: the token id with the largest logit at the last position.

    logits: [1, length, vocab]; row i scores every token as the successor of position i. Returns a plain int.

    >>> next_token(torch.tensor([[[0.0, 9.0, 1.0], [4.0, 2.0, 3.0]]]))  # the last row is [4, 2, 3]
    0
    """
    # exercise 0.1: the position of the largest number in the last row, as an int
    last = logits[0, -1]  # [vocab]
    return int(last.argmax())
    # end


def generate_naive(
    model: Model, prompt_ids: Sequence[int], max_new_tokens: int, eos_ids: Collection[int] = frozenset()
) -> Iterator[int]:
    """Generate greedily, one token at a time, with the whole sequence through the model for every token.

    model: ids [1, length] -> logits [1, length, vocab]. Yields at most `max_new_tokens` ids, each as soon as it is
    known. An id in `eos_ids` ends the answer: it is generated, so it is yielded too, as the last one. The caller's
    `prompt_ids` is left as it was. The model is called inside torch.inference_mode(), which is left before each yield.

    With a model that always prefers the sum of its ids: prompt [1, 2], four tokens -> 3, 6, 12, 24.
    """
    # exercise 0.2: run the model on all ids so far, take the next token, append it and yield it; stop after an EOS
    #   model(torch.tensor([ids])) is a batch of one; torch.inference_mode() around that call spares the bookkeeping for
    #   gradients; around the whole loop it would be on in the caller's code, too, between two tokens
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        with torch.inference_mode():
            logits = model(torch.tensor([ids]))  # [1, length, vocab]
        token = next_token(logits)
        ids.append(token)
        yield token
        if token in eos_ids:
            return
    # end


def read_request(body: Any, tokenizer: Tokenizer, max_length: int) -> tuple[list[int], int]:
    """Check a request's JSON, already parsed, and turn it into (prompt_ids, max_new_tokens).

    {"prompt": "Once upon", "max_new_tokens": 8}: the prompt is a text that is not empty; max_new_tokens is a whole
    number of at least 1, and 16 when it is left out. Prompt and answer together are at most `max_length` tokens.
    Raises ValueError with a message that names the field at fault ("prompt" or "max_new_tokens").
    """
    # exercise 0.3: refuse what cannot be served, with a message that names the field, then encode the prompt
    #   mind that JSON's true arrives as a Python bool, and that a bool is an int
    if not isinstance(body, dict):
        raise ValueError('the body must be a JSON object with a "prompt"')
    prompt, max_new_tokens = body.get("prompt"), body.get("max_new_tokens", 16)
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f'"prompt" must be a text that is not empty, not {prompt!r}')
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ValueError(f'"max_new_tokens" must be a whole number of at least 1, not {max_new_tokens!r}')
    prompt_ids = tokenizer.encode(prompt)
    if (total := len(prompt_ids) + max_new_tokens) > max_length:
        raise ValueError(f'"prompt" has {len(prompt_ids)} tokens; with "max_new_tokens" that makes {total}, '
                         f"and the model's limit is {max_length}")  # fmt: skip
    return prompt_ids, max_new_tokens
    # end


def make_app(model: Model, tokenizer: Tokenizer, max_length: int = 2048) -> FastAPI:
    """The 30-line server: POST /generate, and GET /health -> {"status": "ok"}.

    /generate takes what `read_request` takes and answers 200 with
    {"text": "…", "prompt_tokens": n, "output_tokens": n} when the whole answer is there, or 400 with {"error": "…"} for
    a body that is not JSON or that `read_request` refuses. An EOS was generated, so it counts as an output token; it is
    a signal, and no part of the text. It blocks: while it computes, nobody else is served.
    """
    # exercise 0.4: make the app, its two routes, and return it
    #   `async def` with `request: Request`; `await request.json()` raises a ValueError for a body that is not JSON
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/generate")
    async def generate(request: Request) -> JSONResponse:
        try:
            prompt_ids, max_new_tokens = read_request(await request.json(), tokenizer, max_length)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        ids = list(generate_naive(model, prompt_ids, max_new_tokens, tokenizer.eos_ids))
        text = tokenizer.decode([token for token in ids if token not in tokenizer.eos_ids])
        return JSONResponse({"text": text, "prompt_tokens": len(prompt_ids), "output_tokens": len(ids)})

    return app
    # end
