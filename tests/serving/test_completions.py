"""/v1/completions against a live server: the four forms of a prompt, several answers, logprobs, and what is refused."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from shared.data.tokenizer import Tokenizer
from shared.model.weights import load_model
from shared.serving.api.answers import token_text
from tests.inference.scripted import ScriptedModel
from tests.serving.live import events, hold, scripted, serving, until
from tests.serving.whole import whole_model

PATH = "/v1/completions"
ANSWER = "The “naïve” answer."


@pytest.fixture(scope="module")
def server():
    with serving(scripted(ScriptedModel(ANSWER), max_num_seqs=4)) as client:
        yield client


@pytest.fixture(scope="module")
def tiny(folder):
    with serving(whole_model(folder)) as client:
        yield client


def ask(client, prompt="Hi", model="scripted", **parameters) -> dict:
    response = client.post(PATH, json={"model": model, "prompt": prompt, **parameters})
    assert response.status_code == 200, response.text
    return response.json()


def stream(client, prompt="Hi", model="scripted", **parameters) -> list[dict]:
    body = {"model": model, "prompt": prompt, "stream": True, **parameters}
    with client.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200, response.read()
        return events(response.iter_lines())


def refused(client, **body) -> dict:
    response = client.post(PATH, json={"model": "scripted", "prompt": "Hi"} | body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def texts(answer: dict) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def joined(pieces: list[dict]) -> tuple[dict[int, str], dict[int, str]]:
    """The texts and the finish reasons of a stream's choices."""
    found, reasons = {}, {}
    for piece in pieces:
        for choice in piece["choices"]:
            index = choice["index"]
            assert index not in reasons, "a choice goes on after its end"
            found[index] = found.get(index, "") + choice["text"]
            if choice["finish_reason"]:
                reasons[index] = choice["finish_reason"]
    return found, reasons


def test_a_whole_answer(server):
    answer = ask(server, max_tokens=100)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert (answer["model"], answer["system_fingerprint"]) == ("scripted", "v1")
    assert answer["choices"] == [{"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop"}]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, len(ANSWER.encode()) + 1)
    assert ask(server)["usage"]["completion_tokens"] == 16  # OpenAI's default for this route
    response = server.post(PATH, json={"model": "scripted", "prompt": "Hi"})
    assert response.headers["x-model-version"] == "v1"


TEXT, IDS = "a prompt of 26 characters.", list(b"a prompt of 26 characters.")


@pytest.mark.parametrize(
    ("prompt", "n_choices", "n_tokens"),
    [
        (TEXT, 1, 26), ([TEXT], 1, 26), ([TEXT, TEXT + "é"], 2, 54), (IDS, 1, 26), ([IDS], 1, 26),
        ([IDS, IDS[:20]], 2, 46), ([TEXT, IDS], 2, 52),
    ],
)  # fmt: skip
def test_the_forms_of_a_prompt(server, prompt, n_choices, n_tokens):
    for n in (1, 3):
        answer = ask(server, prompt, n=n, max_tokens=9)
        assert texts(answer) == ["The “na"] * n * n_choices
        assert answer["usage"]["prompt_tokens"] == n_tokens
        assert answer["usage"]["completion_tokens"] == 9 * n * n_choices
        found, reasons = joined(stream(server, prompt, n=n, max_tokens=9))
        assert list(found.values()) == texts(answer)
        assert reasons == dict.fromkeys(range(n * n_choices), "length")


def test_each_choice_belongs_to_its_prompt(tiny):
    prompts = ["one", "the other", "a third"]
    alone = [texts(ask(tiny, prompt, model="tiny", temperature=0))[0] for prompt in prompts]
    assert len(set(alone)) == 3
    assert texts(ask(tiny, prompts, model="tiny", temperature=0)) == alone
    assert joined(stream(tiny, prompts, model="tiny", temperature=0))[0] == dict(enumerate(alone))
    sampled = [texts(ask(tiny, prompt, model="tiny", seed=3, n=2)) for prompt in prompts]
    assert sampled[0][0] != sampled[0][1]
    assert texts(ask(tiny, prompts, model="tiny", seed=3, n=2)) == [text for pair in sampled for text in pair]
    assert len(set(texts(ask(tiny, ["same"] * 6, model="tiny")))) > 2  # without a seed, each prompt has its own


def test_the_kth_of_n_answers_has_the_kth_seed(tiny):
    several = texts(ask(tiny, model="tiny", seed=5, n=3))
    assert several == [texts(ask(tiny, model="tiny", seed=5 + k))[0] for k in range(3)]


def test_more_prompts_than_may_run_at_a_time(server):
    prompts = [str(i) for i in range(40)]  # four run at a time, and 16 more may wait
    assert texts(ask(server, prompts, max_tokens=3)) == ["The"] * 40
    found, reasons = joined(stream(server, prompts, max_tokens=3))
    assert found == dict.fromkeys(range(40), "The")
    assert len(reasons) == 40


def test_a_stream_with_usage(server):
    whole = ask(server, [TEXT, TEXT + "!"], max_tokens=4, n=2)["usage"]
    *pieces, last = stream(server, [TEXT, TEXT + "!"], max_tokens=4, n=2, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == whole
    assert (whole["prompt_tokens"], whole["completion_tokens"], whole["total_tokens"]) == (53, 16, 69)
    assert all(piece["usage"] is None for piece in pieces)


def test_echo(server):
    assert texts(ask(server, "é: ", echo=True, max_tokens=3)) == ["é: The"]
    repeated = texts(ask(server, [IDS, "x" * 20], echo=True, max_tokens=3, n=2))
    assert repeated == [f"{TEXT}The"] * 2 + [f"{'x' * 20}The"] * 2
    assert joined(stream(server, ["a ", [98]], echo=True, max_tokens=3))[0] == {0: "a The", 1: "bThe"}


def test_special_tokens_in_a_text_are_only_text(tiny):
    """Of the text each character is a token; given as an id, the end token is one."""
    assert ask(tiny, "<|im_end|>", model="tiny")["usage"]["prompt_tokens"] == 10
    assert ask(tiny, [256, 32], model="tiny")["usage"]["prompt_tokens"] == 2
    assert texts(ask(tiny, [256, 32], model="tiny", echo=True, max_tokens=1))[0].startswith("<|im_end|>A")


def test_ignore_eos(server):
    answer = ask(server, max_tokens=40, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 40
    assert answer["choices"][0]["finish_reason"] == "length"


LOGPROBS = {"model": "tiny", "logprobs": 3, "temperature": 1, "seed": 1, "max_tokens": 12, "ignore_eos": True}


def test_logprobs_are_the_models_own(tiny, folder):
    """Compared with the model's logits for the whole sequence, computed at once."""
    told = ask(tiny, "Say", **LOGPROBS)["choices"][0]["logprobs"]
    tokenizer = Tokenizer.load(folder)
    ids = {"<|im_end|>": 256} | {token_text(tokenizer.token_bytes(id)): id for id in range(256)}
    prompt, chosen = tokenizer.encode("Say"), [ids[token] for token in told["tokens"]]
    with torch.inference_mode():
        logits = load_model(folder)(torch.tensor([prompt + chosen]))[0, len(prompt) - 1 : -1]  # [12, vocab]
    logprobs = logits.double().log_softmax(dim=-1)
    expected = [float(row[id]) for row, id in zip(logprobs, chosen, strict=True)]
    assert len(expected) == 12
    assert told["token_logprobs"] == pytest.approx(expected, abs=1e-4)
    for row, top in zip(logprobs, told["top_logprobs"], strict=True):
        assert [ids[token] for token in top] == row.topk(3).indices.tolist()
        assert list(top.values()) == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
    choices = [piece["choices"][0] for piece in stream(tiny, "Say", **LOGPROBS)]
    for name, values in told.items():
        assert [value for choice in choices for value in choice["logprobs"][name]] == values


def test_text_offsets_count_the_texts_characters(server):
    answer = ask(server, logprobs=0, max_tokens=100)["choices"][0]
    told, text = answer["logprobs"], answer["text"]
    assert told["top_logprobs"] == [{}] * len(told["tokens"])
    assert len(told["tokens"]) == len(ANSWER.encode()) + 1
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if token.isascii() and len(token) == 1:
            assert text[offset] == token
    assert told["tokens"][4:7] == ["bytes:\\xe2", "bytes:\\x80", "bytes:\\x9c"]  # “
    assert told["text_offset"][4:8] == [4, 4, 4, 5]
    assert told["text_offset"][-1] == len(ANSWER)  # of the end token


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, [1]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [258]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 100}, "n"),
        ({"messages": []}, "messages"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_each_bad_parameter_is_refused_by_name(server, change, param):
    for streamed in (False, True):
        error = (
            refused(server, **change, stream=streamed) if "stream_options" not in change else refused(server, **change)
        )
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert param in error["message"]


def test_what_changes_nothing_is_accepted(server):
    neutral = {"suffix": "", "best_of": 2, "n": 2, "logit_bias": {}, "presence_penalty": 0, "user": "me", "echo": False}
    assert len(texts(ask(server, **neutral, max_tokens=1))) == 2


def test_a_prompt_longer_than_the_context(server):
    for prompt in ("x" * 200, [65] * 200, ["x", "x" * 201], "x" * 150_000, [65] * 30_000):
        error = refused(server, prompt=prompt)
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == "prompt"
        assert "200 tokens" in error["message"]
    assert ask(server, "x" * 199, max_tokens=10)["usage"]["completion_tokens"] == 1


def test_a_caller_who_leaves_a_list_of_prompts_stops_all_of_them():
    model = ScriptedModel("x" * 90)
    with serving(scripted(model, max_num_seqs=2)) as client, ThreadPoolExecutor() as pool:
        turnstile = hold(model, 3)
        body = {"model": "scripted", "prompt": ["a", "b", "c", "d"], "max_tokens": 50, "stream": True}

        def read_a_little():
            with client.stream("POST", PATH, json=body) as response:
                return next(response.iter_lines())

        reading = pool.submit(read_a_little)
        assert '"x"' in reading.result()
        turnstile.allow(1)
        until(lambda: not client.engine._requests)
        turnstile.allow(1000)
        until(lambda: not client.service.open)
        assert model.steps < 10
        assert json.loads(client.get("/health/ready").text)["running"] == 0
