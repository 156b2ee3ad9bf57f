"""/v1/chat/completions against a live server: answers, streams, and every parameter honoured."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from shared.inference.sampling import SamplingParams
from shared.serving.models.text_model import read_defaults
from tests.inference.scripted import ScriptedModel
from tests.serving.live import PATH, chat, events, hold, scripted, serving, until, write_tiny_model
from tests.serving.whole import whole_model

ANSWER = "The “naïve” answer: 42. 😀"


@pytest.fixture(scope="module")
def server():
    with serving(scripted(ScriptedModel(ANSWER))) as client:
        yield client


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A whole model directory, loaded the way the program loads one; its defaults sample at temperature 1.3."""
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    with serving(whole_model(folder)) as client:
        yield client


def ask(client: httpx.Client, **parameters) -> dict:
    response = client.post(PATH, json=chat(**parameters))
    assert response.status_code == 200, response.text
    return response.json()


# ---- answers


def test_a_whole_answer(server):
    answer = ask(server)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "scripted"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["created"] > 1.7e9
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == ANSWER
    assert choice["finish_reason"] == "stop"
    prompt, completion = len("u:Hi\na:"), len(ANSWER.encode()) + 1  # and the end token
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream(server):
    with server.stream("POST", PATH, json=chat(stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        pieces = events(response.iter_lines())
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
    assert len({piece["id"] for piece in pieces}) == 1
    choices = [piece["choices"][0] for piece in pieces]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    texts = [choice["delta"].get("content", "") for choice in choices]
    assert "".join(texts) == ANSWER
    assert "“" in texts  # three tokens, one character, one piece
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert not any("usage" in piece for piece in pieces)


def test_a_stream_with_usage(server):
    whole = ask(server, max_tokens=9)["usage"]
    body = chat(stream=True, max_tokens=9, stream_options={"include_usage": True})
    with server.stream("POST", PATH, json=body) as response:
        *pieces, last = events(response.iter_lines())
    assert last["choices"] == []
    assert last["usage"] == whole
    assert whole["completion_tokens"] == 9
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    assert all(piece["usage"] is None for piece in pieces)


def test_max_tokens_under_both_names(server):
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(server, **{name: 3})
        assert answer["choices"][0]["message"]["content"] == "The"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 3
    assert ask(server, max_tokens=3, max_completion_tokens=3)["usage"]["completion_tokens"] == 3


def test_stop(server):
    cases = ((" answer", "The “naïve”"), (["zzz", "42", "😀"], "The “naïve” answer: "), (["nowhere"], ANSWER))
    for stop, text in cases:
        for stream in (False, True):
            if stream:
                with server.stream("POST", PATH, json=chat(stream=True, stop=stop)) as response:
                    choices = [piece["choices"][0] for piece in events(response.iter_lines())]
                got = "".join(choice["delta"].get("content", "") for choice in choices), choices[-1]["finish_reason"]
            else:
                choice = ask(server, stop=stop)["choices"][0]
                got = choice["message"]["content"], choice["finish_reason"]
            assert got == (text, "stop")


def test_the_conversation_reaches_the_model(server):
    messages = [
        {"role": "developer", "content": "S"},  # the same as system
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "A", "refusal": None, "tool_calls": None, "annotations": None},
        {"role": "user", "content": ""},
    ]
    answer = ask(server, messages=messages)
    assert answer["usage"]["prompt_tokens"] == len("s:S\nu:one\ntwo\na:A\nu:\na:")


def test_an_assistant_may_have_said_nothing(server):
    messages = [*chat()["messages"], {"role": "assistant", "content": None}, *chat("x")["messages"]]
    assert ask(server, messages=messages)["usage"]["prompt_tokens"] == len("u:Hi\na:\nu:x\na:")


def test_every_answer_names_its_version(server):
    for stream in (False, True):
        response = server.post(PATH, json=chat(stream=stream, max_tokens=2))
        assert response.headers["x-model-version"] == "v1"
        bodies = events(response.text.splitlines()) if stream else [response.json()]
        assert {body["system_fingerprint"] for body in bodies} == {"v1"}
        assert not any("degraded" in body for body in bodies)


@pytest.mark.parametrize("stream", [False, True])
def test_a_degraded_answer_says_so(stream):
    """One runs and one of two places in the queue is taken: from here on answers are short."""
    model = ScriptedModel("x" * 190)
    service = scripted(model, max_waiting=2, max_num_seqs=1, settings={"degrade": "shorter"})
    with serving(service) as client, ThreadPoolExecutor() as pool:
        turnstile = hold(model)
        before = []
        for waiting in (0, 1):
            before.append(pool.submit(ask, client, max_tokens=150))
            until(lambda n=waiting: len(service.open) == n + 1 and service.num_waiting == n)
        degraded = pool.submit(client.post, PATH, json=chat(max_tokens=150, stream=stream))
        until(lambda: service.num_waiting == 2)
        turnstile.allow(1000)
        assert [answer.result()["usage"]["completion_tokens"] for answer in before] == [150, 150]
        assert not any("degraded" in answer.result() for answer in before)
        response = degraded.result()
        assert response.headers["x-degraded"] == "max_tokens=128"
        bodies = events(response.text.splitlines()) if stream else [response.json()]
        assert all(body["degraded"] == {"max_tokens": "128"} for body in bodies)
        assert bodies[-1]["choices"][0]["finish_reason"] == "length"


def test_several_answers_in_one_stream(server):
    with server.stream("POST", PATH, json=chat("a text of some length", stream=True, n=3)) as response:
        choices = [piece["choices"][0] for piece in events(response.iter_lines())]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in own) == ANSWER
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]


def test_what_changes_nothing_is_accepted(server):
    neutral = {
        "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "top_logprobs": None, "user": "me",
        "store": False, "metadata": {"a": "b"}, "response_format": {"type": "text"}, "service_tier": "auto",
        "tools": None, "functions": [], "tool_choice": "none", "modalities": ["text"], "logit_bias": {},
        "temperature": None, "top_p": None, "seed": None, "stop": None, "max_tokens": None, "stream": None,
        "stream_options": None, "timeout": None, "ignore_eos": False,
    }  # fmt: skip
    assert ask(server, **neutral)["choices"][0]["message"]["content"] == ANSWER


# ---- sampling, on a model that knows no certainty


def text(client, **parameters) -> str:
    answer = ask(client, model="tiny", max_tokens=24, **parameters)
    return answer["choices"][0]["message"]["content"]


def test_sampling_parameters_are_honoured(tiny):
    assert text(tiny, seed=1) == text(tiny, seed=1)
    assert len({text(tiny, seed=seed) for seed in range(4)}) == 4
    assert len({text(tiny) for _ in range(6)}) >= 3  # without a seed, a new one each time; some may end at once, empty
    assert text(tiny, seed=2**63 - 1) != text(tiny, seed=-(2**63))
    greedy = text(tiny, temperature=0, seed=1)
    assert greedy == text(tiny, temperature=0, seed=2)
    assert greedy == text(tiny, top_k=1, seed=3) == text(tiny, top_p=0, seed=4)
    assert greedy == text(tiny, min_p=1, seed=5)
    assert greedy != text(tiny, seed=1)


def test_the_repetition_penalty_is_honoured(tiny):
    """A penalty of 100 makes every token that was there already about impossible."""

    def tokens(**parameters):
        asked = {"model": "tiny", "temperature": 0, "logprobs": True, "ignore_eos": True, "max_tokens": 60}
        return [token["token"] for token in ask(tiny, **asked, **parameters)["choices"][0]["logprobs"]["content"]]

    assert len(set(tokens(repetition_penalty=100))) == 60
    assert len(set(tokens(repetition_penalty=1))) < 55
    assert tokens(repetition_penalty=1) == tokens()


def test_defaults_come_from_the_model_directory(tiny):
    assert text(tiny, seed=5) == text(tiny, seed=5, temperature=1.3, top_p=0.9)
    assert text(tiny, seed=5) != text(tiny, seed=5, temperature=1.3, top_p=1)
    assert text(tiny, seed=5) != text(tiny, seed=5, temperature=1.9)


def test_reading_defaults(tmp_path):
    assert read_defaults(tmp_path) == SamplingParams(max_tokens=1024, temperature=1.0)
    file = tmp_path / "generation_config.json"
    for config, expected in (
        ({"temperature": 0.2, "top_p": 0.9, "top_k": 40, "eos_token_id": 2}, (0.2, 0.9, 40)),
        ({"do_sample": False, "temperature": 0.2}, (0.0, 1.0, 0)),
        ({"eos_token_id": [1, 2]}, (1.0, 1.0, 0)),
    ):
        file.write_text(json.dumps(config))
        got = read_defaults(tmp_path)
        assert (got.temperature, got.top_p, got.top_k) == expected
    for broken in ("{", "[]", '{"temperature": "hot"}', '{"top_p": 7}'):
        file.write_text(broken)
        with pytest.raises(ValueError, match="generation_config.json"):
            read_defaults(tmp_path)


def test_max_tokens_past_the_end_of_the_context(tiny):
    answer = ask(tiny, model="tiny", text="x" * 235, max_tokens=10**9, temperature=0)
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


# ---- readers


def test_who_does_not_read_holds_up_nobody(server):
    """The answer, of some 800 KB, is computed and kept; the place is free, and the connection is the reader's own."""
    much = {"n": 8, "max_tokens": 90, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    body = json.dumps(chat("a text of some length", stream=True, **much))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # the system could hold megabytes for the two
        server.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        assert slow.recv(1)
        until(lambda: not server.engine._requests)
        assert len(server.service.open) == 1  # it isn't all sent
        assert ask(server)["choices"][0]["message"]["content"] == ANSWER
        got = b""
        while b"[DONE]" not in got:
            got += slow.recv(2**20)
    assert got.count(b'"content":""') >= 8
    assert len(got) > 500_000
    until(lambda: not server.service.open)
