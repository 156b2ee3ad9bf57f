"""The real model: the numbers of transformers, the right answer, and text it finds likely."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shared.data.chat import ChatTemplate, encode_chat
from tests.model.make_oracle import COLUMNS, LOGITS, POSITIONS, TEXT

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def logits(real_model, tokenizer):
    with torch.inference_mode():
        return real_model(torch.tensor([tokenizer.encode(TEXT)[:POSITIONS]]))[0]  # [positions, vocab]


def test_logits_are_those_of_transformers(logits, tokenizer):
    """Stored for 128 positions: the eight largest, 32 columns, and the log-sum-exp, which no wrong logit can escape."""
    stored = np.load(LOGITS)
    assert stored["ids"].tolist() == tokenizer.encode(TEXT)[:POSITIONS]
    assert len(logits) == POSITIONS == 128
    top = logits.gather(-1, torch.from_numpy(stored["top_ids"]).long())
    assert np.abs(top.numpy() - stored["top"]).max() < 1e-3
    assert np.abs(logits.amax(-1).numpy() - stored["top"][:, 0]).max() < 1e-3
    assert np.abs(logits[:, list(COLUMNS)].numpy() - stored["columns"]).max() < 1e-3
    assert np.abs(logits.logsumexp(-1).numpy() - stored["logsumexp"]).max() < 1e-3


def test_all_logits_against_transformers_live(logits, model_dir, tokenizer):
    transformers = pytest.importorskip("transformers", reason="needs the [dev] extra")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        want = theirs(torch.tensor([tokenizer.encode(TEXT)[:POSITIONS]])).logits[0]
    assert (logits - want).abs().max() < 1e-3


def test_the_capital_of_france(real_model, model_dir, tokenizer):
    """Greedy, by the plainest loop: all of it again for every token."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = encode_chat(tokenizer, ChatTemplate.load(model_dir), question)
    answer: list[int] = []
    with torch.inference_mode():
        while len(answer) < 16 and not tokenizer.eos_ids & set(answer):
            answer.append(int(real_model(torch.tensor([ids + answer]), last_only=True)[0, -1].argmax()))
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] in tokenizer.eos_ids  # and then it stops


def test_english_is_likely(logits, tokenizer):
    """Transformers read the same files, so it can't tell whether they were converted rightly; English can."""
    ids = torch.tensor(tokenizer.encode(TEXT)[:POSITIONS])
    perplexity = F.cross_entropy(logits[:-1], ids[1:]).exp().item()
    assert perplexity < 60  # 49152 for a model that knows nothing


def test_q_and_k_that_were_not_put_in_order_would_show(real_model, tokenizer):
    """The same weights with the rows of k as a GGUF file has them: the text becomes much less likely."""
    ids = torch.tensor(tokenizer.encode(TEXT)[:POSITIONS])
    kept = {}
    for layer in real_model.model.layers:
        weight = layer.self_attn.k_proj.weight
        kept[layer] = weight.data
        heads = weight.data.unflatten(0, (-1, 2, real_model.config.head_dim // 2))  # [kv_heads, 2, half, dim]
        weight.data = heads.transpose(1, 2).flatten(0, 2)
    try:
        with torch.inference_mode():
            spoiled = F.cross_entropy(real_model(ids[None])[0, :-1], ids[1:]).exp().item()
    finally:
        for layer, weight in kept.items():
            layer.self_attn.k_proj.weight.data = weight
    assert spoiled > 200


def test_the_recommended_sampling_is_there(model_dir):
    settings = json.loads((model_dir / "generation_config.json").read_text())
    assert (settings["do_sample"], settings["eos_token_id"]) == (False, 2)
