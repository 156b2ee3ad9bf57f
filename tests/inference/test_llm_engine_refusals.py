"""What LLMEngine refuses, and when: requests, settings and prompts that it can't serve are told so at once."""

import pytest
import torch

from shared.inference.engine_settings import free_bytes
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import QueueFull
from shared.inference.sampling import SamplingParams
from shared.inference.scheduler import NeverFits
from tests.inference.small_engine import MODEL, SMALL, Hooked, alone, check_idle, drain, tokens


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "the prompt is empty"),
        ([97], {}, "outside 0 to 96"),
        ([1] * 40, {}, "40 tokens"),
        ([1], {"stop": ("x",)}, "stop: this engine has no tokenizer"),
        ([1], {"n": 2000}, "n: 2000 answers"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(prompt, params, words):
    engine = LLMEngine(MODEL, **SMALL, max_model_len=40)
    with pytest.raises(ValueError, match=words):
        engine.add_request("a", prompt, SamplingParams(**params))
    assert not engine.has_unfinished


def test_a_request_larger_than_the_pool():
    engine = LLMEngine(MODEL, **SMALL, max_model_len=200)  # the pool holds 64
    with pytest.raises(NeverFits, match="the pool has 16"):
        engine.add_request("a", [1] * 70, SamplingParams(max_tokens=50))
    [answer] = engine.generate([[1] * 30], SamplingParams(max_tokens=50))
    assert (len(answer.token_ids), answer.finish_reason) == (34, "length"), "it ends with the pool"


@pytest.mark.parametrize("priority", ["high", None, 1.5, float("nan"), 10**400, True])
def test_a_priority_is_a_whole_number(priority):
    engine = LLMEngine(MODEL, **SMALL)
    with pytest.raises(ValueError, match="priority must be a whole number"):
        engine.add_request("a", [1], SamplingParams(), priority=priority)
    check_idle(engine)


def test_parameters_that_are_none():
    with pytest.raises(ValueError, match="params must be SamplingParams, not None"):
        LLMEngine(MODEL, **SMALL).add_request("a", [1], None)


def test_max_tokens_ends_with_the_context():
    engine = LLMEngine(MODEL, **SMALL, max_model_len=12)
    [answer] = engine.generate([[1] * 9], SamplingParams(max_tokens=1000))
    assert (answer.token_ids, answer.finish_reason) == (alone([1] * 9, SamplingParams(max_tokens=3)), "length")
    whole = LLMEngine(MODEL, attention="gather")  # the model's own context of 256
    [answer] = whole.generate([[1] * 250], SamplingParams(max_tokens=1000))
    assert len(answer.token_ids) == 6


def test_the_queue_is_full():
    engine = LLMEngine(MODEL, **SMALL, max_waiting=1)
    for k in range(5):
        engine.add_request(str(k), [1, 2], SamplingParams(max_tokens=2))
    with pytest.raises(QueueFull):
        engine.add_request("5", [1, 2], SamplingParams(max_tokens=2))
    assert set(drain(engine)) == {"0", "1", "2", "3", "4"}
    answers = engine.generate([[k] for k in range(12)], SamplingParams(max_tokens=2))  # more than may wait: in turn
    assert [a.token_ids for a in answers] == [alone([k], SamplingParams(max_tokens=2)) for k in range(12)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 1000}, "max_model_len must be from 2 to the model's context of 256, not 1000"),
        ({"max_model_len": "8"}, "max_model_len must be a whole number of at least 1, not '8'"),
        ({"num_blocks": 4, "kv_bytes": 1000}, "give one of them"),
        ({"kv_bytes": 10}, "10 bytes hold no block of 16 tokens, which takes"),
        ({"block_size": 0}, "block_size must be a whole number of at least 1, not 0"),
        ({"max_num_seqs": 2.5}, "max_num_seqs must be a whole number of at least 1, not 2.5"),
        ({"max_num_batched_tokens": True}, "max_num_batched_tokens must be a whole number"),
        ({"max_waiting": None}, "max_waiting must be a whole number of at least 0, not None"),
        ({"num_blocks": 1, "block_size": 1}, "no room for a prompt and an answer"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(ValueError, match=words):
        LLMEngine(MODEL, **settings)


def test_a_gpu_keeps_some_memory_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert free_bytes(torch.device("cuda")) == 900


def test_generate_refuses_what_it_would_lose():
    engine = LLMEngine(MODEL, **SMALL)
    with pytest.raises(ValueError, match="2 params for 1 prompts"):
        engine.generate([[1]], [SamplingParams()] * 2)
    with pytest.raises(ValueError, match="the prompt is empty"):
        engine.generate([[1], []], SamplingParams())
    assert not engine.has_unfinished
    engine.add_request("a", [1], SamplingParams(max_tokens=2))
    with pytest.raises(RuntimeError, match="other requests"):
        engine.generate([[1]], SamplingParams())


def test_generate_has_the_engine_to_itself():
    refused = []

    def come(ids):
        with pytest.raises(RuntimeError) as error:
            engine.add_request("foo", [1], SamplingParams(max_tokens=2))
        refused.append(str(error.value))
        with pytest.raises(RuntimeError, match="other requests"):
            engine.generate([[1]], SamplingParams(max_tokens=2))

    engine = LLMEngine(Hooked(come), **SMALL)
    [answer] = engine.generate([[1]], SamplingParams(max_tokens=2))
    assert answer.token_ids == alone([1], SamplingParams(max_tokens=2))
    assert refused == ["generate is answering other prompts; add requests when it has ended"] * 2
    engine.model.before = engine.runner.model.before = lambda ids: None
    engine.add_request("foo", [1], SamplingParams(max_tokens=2))
    assert tokens(drain(engine)["foo"]) == answer.token_ids
