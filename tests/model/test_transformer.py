"""The model against a slow loop over heads and positions in NumPy, and against stored logits of its families."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shared.model import transformer
from shared.model.config import ModelConfig
from shared.model.linear import Embedding, Linear
from shared.model.transformer import Transformer
from tests.model import variants
from tests.tiny import TINY, tiny_model


class GrowingCache:
    """The plainest cache there can be: concatenate. It stands in for the real one, which has tests of its own."""

    def __init__(self) -> None:
        self.k = self.v = None

    @property
    def length(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def update(self, k, v):
        self.k = k if self.k is None else torch.cat((self.k, k), dim=2)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=2)
        return self.k, self.v


def loop_forward(state: dict[str, np.ndarray], config, ids: list[int]) -> np.ndarray:
    """Logits [length, vocab] of one sequence in float64: one head, one query position at a time."""

    def norm(x, name):
        return np.stack([row / math.sqrt((row @ row) / len(row) + config.rms_norm_eps) * state[name] for row in x])

    def turn(head):  # [length, head_dim] as complex numbers: pair i is x[i] + j x[i + half]
        half = config.head_dim // 2
        pairs = head[:, :half] + 1j * head[:, half:]
        for position in range(len(head)):
            for i in range(half):
                pairs[position, i] *= np.exp(1j * position * config.rope_theta ** (-2 * i / config.head_dim))
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    def attend(q, k, v):
        rows = []
        for t in range(len(q)):
            scores = np.array([q[t] @ k[s] / math.sqrt(config.head_dim) for s in range(t + 1)])
            weights = np.exp(scores - scores.max())
            rows.append(sum(w * v[s] for s, w in enumerate(weights / weights.sum())))
        return np.stack(rows)

    x = state["model.embed_tokens.weight"][ids]
    group = config.num_attention_heads // config.num_key_value_heads
    for layer in range(config.num_hidden_layers):
        p = f"model.layers.{layer}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (h @ state[f"{p}self_attn.{name}_proj.weight"].T for name in "qkv")
        heads = []
        for head in range(config.num_attention_heads):
            mine = slice(head * config.head_dim, (head + 1) * config.head_dim)
            theirs = slice(head // group * config.head_dim, (head // group + 1) * config.head_dim)
            heads.append(attend(turn(q[:, mine]), turn(k[:, theirs]), v[:, theirs]))
        x = x + np.concatenate(heads, axis=1) @ state[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = (h @ state[f"{p}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ state[p + "mlp.down_proj.weight"].T
    head = state.get("lm_head.weight", state["model.embed_tokens.weight"])
    return norm(x, "model.norm.weight") @ head.T


def random_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(TINY.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tied", [True, False])
def test_model_is_the_loop(tied):
    model = tiny_model(seed=3, config=dataclasses.replace(TINY, tie_word_embeddings=tied))
    state = {name: weight.numpy() for name, weight in model.state_dict().items()}
    assert ("lm_head.weight" in state) == (not tied)
    ids = random_ids(3, 17)
    got = model(ids)
    for row in range(3):
        np.testing.assert_allclose(got[row], loop_forward(state, model.config, ids[row].tolist()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunks", [[20], [1] * 20, [7, 1, 1, 11], [19, 1], [1, 19], [5, 5, 5, 5]])
def test_cached_is_uncached(chunks):
    model, ids = tiny_model(seed=1), random_ids(2, 20)
    want = model(ids)
    caches = [GrowingCache() for _ in range(TINY.num_hidden_layers)]
    got = torch.cat([model(part, caches) for part in ids.split(chunks, dim=1)], dim=1)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert caches[0].length == 20


def test_the_real_cache_after_a_rewind():
    from shared.inference.kv_cache import new_caches

    model, ids = tiny_model(seed=1), random_ids(2, 12)
    caches = new_caches(model.config, 16, batch=2, dtype=torch.float64)
    model(ids[:, :8], caches)
    for cache in caches:
        cache.rewind(5)
    torch.testing.assert_close(model(ids[:, 3:], caches), model(ids)[:, 3:], rtol=1e-10, atol=1e-10)


def test_last_only():
    model, ids = tiny_model(), random_ids(2, 9)
    got = model(ids, last_only=True)
    assert got.shape == (2, 1, TINY.vocab_size)
    torch.testing.assert_close(got, model(ids)[:, -1:], rtol=1e-12, atol=1e-12)


def test_a_later_token_changes_nothing_before_it():
    model, ids = tiny_model(), random_ids(1, 10)
    changed = ids.clone()
    changed[0, 6] = (changed[0, 6] + 1) % TINY.vocab_size
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=0)
    assert ((before - after)[:, 6:].abs().amax(-1) > 1e-6).all()


def test_the_tables_are_made_once_a_step(monkeypatch):
    calls = []
    real = transformer.rope_tables
    monkeypatch.setattr(transformer, "rope_tables", lambda *a: calls.append(1) or real(*a))
    tiny_model()(random_ids(1, 4))
    assert len(calls) == 1


def test_gradients_flow_to_every_weight():
    model = tiny_model().requires_grad_(True)
    F.cross_entropy(model(random_ids(2, 8)).flatten(0, 1), random_ids(2, 8, seed=1).flatten()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_new_weights_are_small_and_random():
    torch.manual_seed(0)
    model = transformer.Transformer(TINY)
    matrices = torch.cat([p.flatten() for p in model.parameters() if p.dim() == 2])
    assert abs(matrices.std().item() - 0.02) < 0.001
    assert abs(matrices.mean().item()) < 0.001
    assert (model.model.norm.weight == 1).all()


def test_a_tied_model_takes_a_state_dict_with_a_head():
    model = tiny_model(seed=5)
    state = dict(model.state_dict())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    other = tiny_model(seed=6)
    other.load_state_dict(state)
    assert torch.equal(other(random_ids(1, 4)), model(random_ids(1, 4)))
    assert "lm_head.weight" in state  # the caller's dictionary stays as it was


@pytest.mark.parametrize(
    ("ids", "caches", "message"),
    [
        (torch.zeros(4, dtype=torch.long), None, r"ids must be \[batch, length\].*\[4\]"),
        (torch.zeros(1, 0, dtype=torch.long), None, r"at least one token"),
        (torch.zeros(1, 4, dtype=torch.long), [GrowingCache()], "1 caches for 3 layers"),
        (torch.zeros(1, 257, dtype=torch.long), None, "257 tokens are more than the model's context of 256"),
    ],
)
def test_bad_input_is_named(ids, caches, message):
    with pytest.raises(ValueError, match=message):
        tiny_model()(ids, caches)


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_every_family_has_the_logits_of_transformers(name):
    """Biases, norms of queries and keys, shared heads, stretched rope: from the config alone."""
    model = variants.fill(Transformer(ModelConfig.from_hf(variants.VARIANTS[name])))
    want = variants.stored(name)
    assert want.std() > 1
    np.testing.assert_allclose(model(variants.ids()), want, rtol=0, atol=1e-4)  # theirs computes angles in float32


@pytest.mark.parametrize("name", ["llama, biases", "qwen2", "qwen3 tied, biases"])
def test_every_family_runs_on_caches(name):
    model = variants.fill(Transformer(ModelConfig.from_hf(variants.VARIANTS[name])))
    caches = [GrowingCache() for _ in model.model.layers]
    got = torch.cat([model(part, caches) for part in variants.ids().split([5, 1, 10], dim=1)], dim=1)
    torch.testing.assert_close(got, model(variants.ids()), rtol=1e-10, atol=1e-10)


class Packed(nn.Module):
    """A weight that multiplies by itself, as chapter 8's do; here it holds the plain numbers."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("numbers", weight.clone())

    def linear(self, x):
        return x @ self.numbers.T

    def rows(self, ids):
        return self.numbers[ids]


@pytest.mark.parametrize("name", ["llama", "qwen2 tied"])
def test_packed_weights_stand_in_for_tensors(name):
    model = variants.fill(Transformer(ModelConfig.from_hf(variants.VARIANTS[name])))
    want = model(variants.ids())
    owners = [m for m in model.modules() if isinstance(m, Linear | Embedding)]
    for owner in owners:
        packed = Packed(owner.weight)
        del owner.weight  # torch lets no module take a parameter's place
        owner.weight = packed
    assert not any(p.dim() == 2 for p in model.parameters())  # nothing is left that could multiply by itself
    assert model.model.layers[0].mlp.gate_proj.weight in set(model.modules())
    torch.testing.assert_close(model(variants.ids()), want, rtol=1e-10, atol=1e-10)


def test_training_under_autocast():
    model = variants.fill(Transformer(ModelConfig.from_hf(variants.VARIANTS["qwen3"]))).float().requires_grad_(True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(variants.ids())
    F.cross_entropy(logits.float().flatten(0, 1), variants.ids().flatten()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    assert np.abs(logits.detach().float().numpy() - variants.stored("qwen3")).mean() < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-3), (torch.bfloat16, 0.15), (torch.float16, 0.05)])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_on_a_gpu(name, dtype, off):
    """All at once and chunk by chunk on the device's caches; tables and masks must be made there."""
    from shared.inference.kv_cache import new_caches

    model = variants.fill(Transformer(ModelConfig.from_hf(variants.VARIANTS[name]))).to("cuda", dtype)
    ids = variants.ids().cuda()
    caches = new_caches(model.config, 16, batch=2, dtype=dtype, device="cuda")
    chunked = torch.cat([model(part, caches) for part in ids.split([5, 1, 10], dim=1)], dim=1)
    for logits in (model(ids), chunked):
        assert logits.dtype == dtype
        assert np.abs(logits.double().cpu().numpy() - variants.stored(name)).mean() < off
