"""What an answer of LLMEngine holds: each of n, log-probabilities, its end, and text in whole characters."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import GenerationError, RequestOutput
from shared.inference.sampler import logprobs_of
from shared.inference.sampling import SamplingParams
from tests.inference.scripted import EOS, SILENT, ByteTokenizer
from tests.inference.small_engine import MODEL, SMALL, alone, drain, tokens
from tests.tiny import TINY


def test_n_answers_share_the_prompt():
    engine = LLMEngine(MODEL, **SMALL | {"num_blocks": 40, "max_num_batched_tokens": 32})
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=5, n=4)
    prompt = list(range(14))
    engine.add_request("a", prompt, params)
    engine.step()
    assert engine.blocks.num_blocks - engine.blocks.num_free == 4, "four answers, and the blocks of one prompt"
    engine.step()
    assert engine.blocks.num_blocks - engine.blocks.num_free == 4 + 3, "each writes into its own copy of the last one"
    got = drain(engine)["a"]
    for k in range(4):
        mine = [output for output in got if output.index == k]
        assert tokens(mine) == alone(prompt, replace(params, seed=5 + k))[2:]
        assert [o.finish_reason for o in mine][-1] == "length"


def test_more_answers_than_places():
    engine = LLMEngine(MODEL, **SMALL | {"max_num_seqs": 2})
    params = SamplingParams(max_tokens=5, temperature=1.0, n=5)
    answers = engine.generate([[1, 2, 3, 4, 5]], params)
    assert [a.index for a in answers] == [0, 1, 2, 3, 4]
    assert [a.token_ids for a in answers] == [alone([1, 2, 3, 4, 5], replace(params, seed=k)) for k in range(5)]


@torch.inference_mode()
def test_logprobs_are_the_models_own():
    params = SamplingParams(max_tokens=5, temperature=2.0, seed=3, logprobs=4, repetition_penalty=1.2)
    [answer] = LLMEngine(MODEL, **SMALL).generate([[1, 2, 3]], params)
    ids = [1, 2, 3]
    for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        want = MODEL(torch.tensor([ids]))[0, -1].log_softmax(-1)
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(want[token].item())
        assert [id for id, _ in entry.top] == want.topk(4).indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(want.topk(4).values.tolist())
        ids.append(token)
    [plain] = LLMEngine(MODEL, **SMALL).generate([[1, 2, 3]], replace(params, logprobs=None))
    assert plain.logprobs is None
    assert plain.token_ids == answer.token_ids
    [bare] = LLMEngine(MODEL, **SMALL).generate([[1, 2, 3]], replace(params, logprobs=0))
    assert [entry.top for entry in bare.logprobs] == [[]] * 5


def test_logprobs_leave_out_what_cannot_come_and_are_exact_in_16_bits():
    logits = torch.tensor([0.0, -torch.inf, 2.0, -torch.inf], dtype=torch.bfloat16)
    got = logprobs_of(logits, 2, SamplingParams(logprobs=3))
    want = torch.tensor([0.0, 2.0], dtype=torch.float64).log_softmax(-1).tolist()
    assert [id for id, _ in got.top] == [2, 0]
    assert [value for _, value in got.top] == pytest.approx(want[::-1], rel=1e-5)
    assert got.logprob == pytest.approx(want[1], rel=1e-5)


def test_an_end_token_ends_the_answer_and_is_its_last():
    params = SamplingParams(max_tokens=20, temperature=1.0)
    whole = alone([1, 2, 3], params)
    end = frozenset({whole[4]})
    [answer] = LLMEngine(MODEL, **SMALL, eos_ids=end).generate([[1, 2, 3]], params)
    assert (answer.token_ids, answer.finish_reason) == (whole[: whole.index(whole[4]) + 1], "stop")
    [answer] = LLMEngine(MODEL, **SMALL, eos_ids=end).generate([[1, 2, 3]], replace(params, ignore_eos=True))
    assert (answer.token_ids, answer.finish_reason) == (whole, "length")


# Text. A model that spells: after a prompt's last token it says the script, byte by byte.


class Speller(nn.Module):
    def __init__(self, script: list[int]) -> None:
        super().__init__()
        self.config = replace(TINY, vocab_size=258, num_hidden_layers=1)
        self.script, self.n_prompt = script, 1

    def forward(self, ids, caches, positions, rows):
        nothing = torch.zeros(1, 2, ids.shape[1], 8)
        caches[0].attend(torch.zeros(1, 6, ids.shape[1], 8), nothing, nothing, 1.0)
        logits = torch.zeros(1, len(rows), 258)
        for k, row in enumerate(rows.tolist()):
            done = int(positions[row]) + 1 - self.n_prompt
            logits[0, k, self.script[done] if done < len(self.script) else EOS] = 9.0
        return logits


def spell(script: str | list[int], **params) -> list[RequestOutput]:
    ids = list(script.encode()) if isinstance(script, str) else script
    engine = LLMEngine(Speller(ids), ByteTokenizer(), num_blocks=16, attention="gather")
    engine.add_request("a", [65], SamplingParams(**params))
    return drain(engine)["a"]


def test_text_comes_in_whole_characters():
    outputs = spell("aé€!")
    assert [o.text for o in outputs] == ["a", "", "é", "", "", "€", "!", ""]
    assert outputs[-1].finish_reason == "stop"
    assert outputs[-1].token_ids == [EOS]


def test_a_stop_text_over_several_tokens():
    outputs = spell("one STOP two", stop=("STOP",), max_tokens=50)
    assert "".join(o.text for o in outputs) == "one "
    assert [o.finish_reason for o in outputs[-2:]] == [None, "stop"]
    assert tokens(outputs) == list(b"one STOP"), "it ends with the token that completes it"
    outputs = spell("one STO", stop=("STOP",))
    assert "".join(o.text for o in outputs) == "one STO", "what was held back is sent when it can't become one"


def test_special_tokens_have_no_text():
    outputs = spell([97, SILENT, 98])
    assert "".join(o.text for o in outputs) == "ab"
    assert tokens(outputs) == [97, SILENT, 98, EOS]


def test_cut_at_its_limit():
    outputs = spell("a€", max_tokens=3)
    assert ("".join(o.text for o in outputs), outputs[-1].finish_reason) == ("a", "length")


def test_a_tokenizer_that_fails_fails_one_request():
    class Partial(ByteTokenizer):
        def token_bytes(self, id: int) -> bytes:
            if id == 66:
                raise KeyError("no such token")
            return super().token_bytes(id)

    engine = LLMEngine(Speller([66]), Partial(), num_blocks=16, attention="gather")
    engine.add_request("a", [65], SamplingParams())
    [failure] = drain(engine)["a"]
    assert isinstance(failure, GenerationError)
    assert "no such token" in str(failure)
