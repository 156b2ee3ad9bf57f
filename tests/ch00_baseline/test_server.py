"""Exercises 0.3 and 0.4: what the server refuses, what it answers, and that it blocks."""

import asyncio
import inspect
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from chapters import Todo
from chapters.ch00_baseline import baseline
from chapters.judge import exercise, expect, expect_equal, expect_raises
from tests.ch00_baseline.fake import LETTERS, FakeModel, FakeTokenizer, continuation

TOKENIZER = FakeTokenizer()
DBE = [3, 1, 4]  # the ids of "dbe"


@exercise("0.3")
def test_good_request():
    got = baseline.read_request({"prompt": "dbe", "max_new_tokens": 8}, TOKENIZER, 100)
    expect_equal(got, (DBE, 8), because="the result is (prompt_ids, max_new_tokens), with the prompt as token ids")


@exercise("0.3")
def test_default():
    got = baseline.read_request({"prompt": "dbe"}, TOKENIZER, 100)
    expect_equal(got, (DBE, 16), because="max_new_tokens is 16 when it is left out")


@exercise("0.3")
@pytest.mark.parametrize("prompt", ["", None, 7, ["dbe"], True])
def test_bad_prompt(prompt: Any):
    because = f'"prompt": {json.dumps(prompt)} is not a text that can be continued; the message must name "prompt"'
    with expect_raises(ValueError, because=because, match="prompt"):
        baseline.read_request({"prompt": prompt, "max_new_tokens": 8}, TOKENIZER, 100)


@exercise("0.3")
def test_missing_prompt():
    with expect_raises(ValueError, because='a request without a "prompt" must be refused by name', match="prompt"):
        baseline.read_request({"max_new_tokens": 8}, TOKENIZER, 100)


@exercise("0.3")
@pytest.mark.parametrize("value", [0, -1, 2.5, "8", None, [8], True])
def test_bad_number(value: Any):
    because = (
        f'"max_new_tokens": {json.dumps(value)} is not a whole number of at least 1; the message must name the field'
    )
    if value is True:
        because = "JSON's true arrives as Python's True, and isinstance(True, int) holds; look at type(…) instead"
    with expect_raises(ValueError, because=because, match="max_new_tokens"):
        baseline.read_request({"prompt": "dbe", "max_new_tokens": value}, TOKENIZER, 100)


@exercise("0.3")
@pytest.mark.parametrize("body", [None, [], "dbe", 3])
def test_not_an_object(body: Any):
    with expect_raises(ValueError, because="JSON needn't be an object: a list, a text, a number or null may come"):
        baseline.read_request(body, TOKENIZER, 100)


@exercise("0.3")
def test_length_limit():
    got = baseline.read_request({"prompt": "dbe", "max_new_tokens": 7}, TOKENIZER, 10)
    expect_equal(got, (DBE, 7), because="3 + 7 tokens are exactly the 10 allowed, and fit")
    because = "prompt and answer share the model's context: 3 + 8 tokens are more than the 10 allowed; name the field"
    with expect_raises(ValueError, because=because, match="max_new_tokens"):
        baseline.read_request({"prompt": "dbe", "max_new_tokens": 8}, TOKENIZER, 10)


@exercise("0.3")
def test_limit_counts_tokens():
    try:
        got = baseline.read_request({"prompt": "d-b-e", "max_new_tokens": 7}, TOKENIZER, 10)
    except ValueError as error:
        got = error
    because = "the limit is in tokens, and this prompt of five characters has three; count after encoding"
    expect_equal(got, (DBE, 7), because=because)


def ask(app: FastAPI, method: str, path: str, **request: Any) -> tuple[int, Any]:
    """One request to the app, in this process: status and parsed answer. What the app raises becomes a 500."""

    async def go() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, path, **request)

    try:
        response = asyncio.run(go())
    except Todo:
        raise
    except Exception as error:
        return 500, f"{type(error).__name__}: {error}"
    try:
        return response.status_code, response.json()
    except ValueError:
        return response.status_code, response.text


def make_app(model: Any = None, tokenizer: FakeTokenizer = TOKENIZER, **options: int) -> FastAPI:
    app = baseline.make_app(model or FakeModel(), tokenizer, **options)
    expect(app is not None, because="make_app returned None; return the app")
    return app


@exercise("0.4")
def test_health():
    status, answer = ask(make_app(), "GET", "/health")
    expect_equal((status, answer), (200, {"status": "ok"}), because='GET /health answers 200 with {"status": "ok"}')


@exercise("0.4")
def test_the_body_is_awaited(monkeypatch: pytest.MonkeyPatch):
    bodies: list[Any] = []

    def stop_here(body: Any, *_: Any) -> None:
        bodies.append(body)
        raise ValueError("seen enough")

    monkeypatch.setattr(baseline, "read_request", stop_here)
    _, answer = ask(make_app(), "POST", "/generate", json={"prompt": "dbe", "max_new_tokens": 5})
    waiting = [body for body in bodies if inspect.iscoroutine(body)]
    for body in waiting:
        body.close()
    because = (
        "request.json() alone is a coroutine, something to wait for, and not the body: write `await request.json()`"
    )
    expect(not waiting and "coroutine" not in str(answer), because=because)


@exercise("0.4")
def test_answer():
    status, answer = ask(make_app(), "POST", "/generate", json={"prompt": "dbe", "max_new_tokens": 5})
    expect_equal(status, 200, because=f"POST /generate with a good body answers 200; yours said {answer}")
    text = "".join(LETTERS[i] for i in continuation(DBE, 5))
    expect(isinstance(answer, dict), because="the answer is a JSON object")
    expect_equal(answer.get("text"), text, because="the text is the new tokens, decoded, without the prompt")
    want = {"text": text, "prompt_tokens": 3, "output_tokens": 5}
    expect_equal(answer, want, because="the answer holds text, prompt_tokens (3) and output_tokens (5), nothing else")


@exercise("0.4")
def test_eos_ends_the_text():
    want = continuation(DBE, 8)
    tokenizer = FakeTokenizer(eos_ids=frozenset({want[4]}))
    app = make_app(tokenizer=tokenizer)
    status, answer = ask(app, "POST", "/generate", json={"prompt": "dbe", "max_new_tokens": 8})
    expect_equal(status, 200, because=f"POST /generate with a good body answers 200; yours said {answer}")
    because = (
        "the tokenizer knows the EOS ids; hand tokenizer.eos_ids to generate_naive, or answers never end by themselves"
    )
    expect(answer.get("output_tokens") != 8, because=because)
    n = want.index(want[4])
    because = "the EOS token is a signal, and no part of the text: leave out what is in tokenizer.eos_ids, then decode"
    expect_equal(answer.get("text"), "".join(LETTERS[i] for i in want[:n]), because=because)
    because = "the EOS token was generated: it is no text, but it counts as an output token"
    expect_equal(answer.get("output_tokens"), n + 1, because=because)


@exercise("0.4")
@pytest.mark.parametrize(
    ("body", "field"), [({"prompt": ""}, "prompt"), ({"prompt": "d", "max_new_tokens": 0}, "max_new")]
)
def test_refusal(body: dict[str, Any], field: str):
    model = FakeModel()
    status, answer = ask(make_app(model), "POST", "/generate", json=body)
    because = f"what read_request refuses is the caller's mistake: answer 400, not {status} ({answer})"
    expect_equal(status, 400, because=because)
    good = isinstance(answer, dict) and field in str(answer.get("error"))
    expect(good, because=f'the 400 carries {{"error": …}} with the message of read_request, not {answer}')
    expect_equal(model.lengths, [], because="a request that is refused must not reach the model")


@exercise("0.4")
@pytest.mark.parametrize("content", [b"", b"{", b"prompt=dbe", b"\xff\xfe"])
def test_not_json(content: bytes):
    status, answer = ask(make_app(), "POST", "/generate", content=content)
    because = (
        f"the body {content!r} is not JSON: request.json() raises a ValueError, which must become a 400, not {status}"
    )
    expect_equal(status, 400, because=because)
    expect(isinstance(answer, dict) and "error" in answer, because=f'a 400 carries {{"error": …}}, not {answer}')


@exercise("0.4")
@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_failure_of_the_model_is_not_hidden(kind: type[Exception]):
    def broken(ids: Any) -> None:
        raise kind("the model is broken")

    status, answer = ask(make_app(broken), "POST", "/generate", json={"prompt": "dbe"})
    because = (
        f"the model raised a {kind.__name__} and the caller was told {status} {answer}: a failure of ours is a 500 and"
        " must stay visible. Keep the generation out of the `try`, and catch ValueError, not Exception"
    )
    expect_equal(status, 500, because=because)


@exercise("0.4")
def test_length_limit_reaches_the_check():
    body = {"prompt": "dbe", "max_new_tokens": 8}
    status, _ = ask(make_app(max_length=10), "POST", "/generate", json=body)
    expect_equal(status, 400, because="make_app's max_length is the limit: hand it to read_request")


@exercise("0.4")
def test_it_blocks():
    """The notebook measures what blocking does, so the server has to."""
    n = 6
    model = FakeModel(seconds=0.03)
    app = make_app(model)

    async def go() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:

            async def health() -> int:
                for _ in range(1000):
                    if model.lengths:
                        break
                    await asyncio.sleep(0.001)
                await client.get("/health")
                return len(model.lengths)

            job = client.post("/generate", json={"prompt": "dbe", "max_new_tokens": n})
            _, calls = await asyncio.gather(job, health())
            return calls

    because = (
        "/health was answered in the middle of a generation: this server is to block, so that the notebook can measure "
        "what that costs; call generate_naive directly in an `async def` handler"
    )
    expect_equal(asyncio.run(go()), n, because=because)
