"""/v1/chat/completions against a live server: what can't be honoured is refused, and the refusal names it."""

import json

import httpx
import pytest

from tests.inference.scripted import ScriptedModel
from tests.serving.live import PATH, chat, scripted, serving


@pytest.fixture(scope="module")
def server():
    with serving(scripted(ScriptedModel("An answer."))) as client:
        yield client


def refused(client: httpx.Client, body) -> dict:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post(PATH, content=content)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop[0]"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": "x" * 257}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_more": True}}, "stream_options.include_more"),
        ({"n": 129}, "n"),
        ({"n": 8 + 64 + 1}, "n"),  # more than can ever run and wait
        ({"n": 2, "seed": 2**63 - 1}, "seed"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": 10_000}, "timeout"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"user": 5}, "user"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"store": True}, "store"),
        ({"modle": "x"}, "modle"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "Hi", "tool_call_id": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "Hi", "name": "me"}]}, "messages[0].name"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{}]}]},
            "messages[1].tool_calls",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content[0]"),
    ],
)
def test_each_bad_parameter_is_refused_by_name(server, change, param):
    error = refused(server, {**chat(), **change})
    assert error["param"] == param
    assert error["message"].startswith(("Unknown parameter: ", "Missing parameter: ")) or param in error["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop": ""}, 'stop[0]: must have at least 1 character, not "".'),
        ({"stop": ["a"] * 5}, "stop: must have at most 4 items, not 5."),
        ({"stop": 5}, "stop: must be a text or a list of texts, not 5."),
        ({"messages": []}, "messages: must have at least 1 item, not 0."),
        ({"messages": "Hi"}, 'messages: must be a list, not "Hi".'),
        ({"user": 5}, "user: must be a text, not 5."),
        ({"metadata": []}, "metadata: must be an object."),
    ],
)
def test_the_words_are_for_callers(server, change, message):
    assert refused(server, {**chat(), **change})["message"] == message


def test_a_missing_parameter(server):
    for name in ("model", "messages"):
        body = chat()
        del body[name]
        assert refused(server, body)["param"] == name


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"model": "scripted",}',
        b'{"model": "\xff\xfe"}',
        b'{"model": "scripted", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"temperature": NaN',
    ],
)
def test_what_is_not_json(server, body):
    error = refused(server, body)
    assert error["code"] == "invalid_json"
    assert "JSON" in error["message"]


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"5", b"null", b"true"])
def test_json_that_is_no_object(server, body):
    assert "object" in refused(server, body)["message"]


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_that_are_none(server, number):
    body = json.dumps(chat()).encode()[:-1] + b', "temperature": ' + number + b"}"
    assert refused(server, body)["param"] == "temperature"


def test_huge_whole_numbers(server):
    for name in ("seed", "max_tokens", "n"):
        body = json.dumps(chat()).encode()[:-1] + f', "{name}": 1{"0" * 5000}'.encode() + b"}"
        refused(server, body)


def test_an_unknown_model(server):
    response = server.post(PATH, json=chat(model="gpt-5"))
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "model", "model_not_found")
    assert "gpt-5" in error["message"]
    assert "scripted" in error["message"]


def test_a_prompt_longer_than_the_context(server):
    response = server.post(PATH, json=chat("x" * 200))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages"
    assert "context is 200 tokens" in error["message"]
    for stream in (False, True):
        assert server.post(PATH, json=chat("x" * 200, stream=stream)).status_code == 400


def test_a_prompt_longer_than_the_memory():
    """The model would take it; the pool of 3 blocks of 16 tokens doesn't. The scripted prompt is 5 tokens longer."""
    with serving(scripted(ScriptedModel("ab"), num_blocks=3)) as client:
        error = refused(client, chat("x" * 43))
        assert "48 tokens, and this server's KV memory is for 48" in error["message"]
        assert "--kv-memory" in error["message"]
        assert "context" not in error["message"]
        assert client.post(PATH, json=chat("x" * 42)).status_code == 200


def test_the_order_of_a_body_does_not_matter_and_spaces_are_fine(server):
    body = json.dumps(dict(reversed(chat().items())), indent=3).encode()
    assert server.post(PATH, content=b"\n " + body + b"\n").status_code == 200
