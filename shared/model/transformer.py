"""The Llama family in plain torch: pure functions for the layers, and a model that strings them together.

Tensors of heads have the layout [batch, heads, length, head_dim]. Nothing here keeps state between two calls: what a
request remembers lives in the caches that the caller hands in.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.config import ModelConfig, RopeScaling


def linear(x: Tensor, w: Tensor) -> Tensor:
    """Multiply by a weight stored as [out, in], the way torch and every checkpoint store it.

    x: [..., in]; w: [out, in]. Returns [..., out]. Every product of activations and weights comes here.
    """
    return F.linear(x, w)


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector to unit root-mean-square, then by `weight` (Zhang & Sennrich 2019, section 3).

    x: [..., dim], any float dtype; weight: [dim]. Returns x's shape and dtype; the mean is taken in float32 at least.

    >>> rmsnorm(torch.tensor([3.0, 4.0]), torch.ones(2), eps=0.0)  # rms = sqrt((9 + 16) / 2) = 3.5355
    tensor([0.8485, 1.1314])
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # bf16 keeps three digits of a sum; float64 stays float64
    mean_square = wide.pow(2).mean(dim=-1, keepdim=True)  # [..., 1]
    return (wide * torch.rsqrt(mean_square + eps)).to(x.dtype) * weight


def swiglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """The feed-forward block: a gate decides, number by number, how much of `up` passes (Shazeer 2020, section 2).

    x: [..., dim]; w_gate, w_up: [hidden, dim]; w_down: [dim, hidden]. Returns [..., dim].
    """
    return linear(F.silu(linear(x, w_gate)) * linear(x, w_up), w_down)


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """How fast each pair of a head turns, in radians per position (Su et al. 2021, section 3.2.2).

    Returns [head_dim / 2], float64: 1 for the first pair, falling to nearly 1 / theta for the last. With `scaling`,
    pairs that turn less than `low_freq_factor` times in the original context turn `factor` times slower, pairs that
    turn more than `high_freq_factor` times keep their speed, and those between are blended (Llama 3.1).

    >>> inverse_frequencies(4, theta=100.0)
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    speed = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)  # [head_dim / 2]
    if scaling is None:
        return speed
    turns = scaling.original_max_position_embeddings * speed / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(speed / scaling.factor, speed, keep.clamp(0, 1))


def rope_tables(positions: Tensor, speed: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle, each [..., length, head_dim / 2]: computed once a step, used by every layer.

    positions: [length] or [batch, length]; the angles are float32 at least, for in bf16 position 257 is 256.
    """
    wide = torch.promote_types(dtype, torch.float32)
    angle = positions[..., None].to(wide) * speed.to(wide).to(positions.device)
    return angle.cos(), angle.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pair i of each head, the numbers at i and i + head_dim / 2 (the "half-split" layout), by its angle.

    x: [..., length, head_dim]; cos, sin: broadcastable to [..., length, head_dim / 2]. Returns x's shape and dtype.
    """
    first, second = x.chunk(2, dim=-1)  # [..., length, head_dim / 2]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary position embedding: after it, q . k depends on how far apart two tokens are (Su et al. 2021).

    x: [..., length, head_dim]; positions: [length], or [batch, length] with x [batch, heads, length, head_dim].

    >>> rope(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), theta=10000.0)  # one pair, turned by one radian
    tensor([[0.5403, 0.8415]])
    """
    cos, sin = rope_tables(positions, inverse_frequencies(x.shape[-1], theta), x.dtype)
    if positions.dim() == 2:
        cos, sin = cos[:, None], sin[:, None]  # [batch, 1, length, head_dim / 2]: the same for every head
    return apply_rope(x, cos, sin)


def causal_mask(L: int, S: int, device: torch.device | str | None = None) -> Tensor:
    """Which of S tokens each of the last L of them may attend to: itself and what came before. [L, S], True = may.

    >>> causal_mask(2, 3).int()  # one token is already in the cache
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(L, S, dtype=torch.bool, device=device).tril(diagonal=S - L)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(q k^T * scale) v, with grouped queries (Vaswani et al. 2017, section 3.2.1; Ainslie et al. 2023).

    q: [batch, heads, L, head_dim]; k, v: [batch, kv_heads, S, head_dim], heads a multiple of kv_heads: query head h
    reads key head h // (heads / kv_heads). mask: bool, broadcastable to [batch, heads, L, S], True = may attend.
    Returns [batch, heads, L, head_dim].
    """
    batch, heads, L, head_dim = q.shape
    kv_heads, S = k.shape[1], k.shape[2]
    q = (q * scale).reshape(batch, kv_heads, -1, head_dim)  # a group's queries in one matrix
    scores = (q @ k.transpose(-1, -2)).view(batch, kv_heads, -1, L, S)  # [batch, kv_heads, group, L, S]
    if mask is not None:
        scores.masked_fill_((~mask).expand(batch, heads, L, S).view(scores.shape), -math.inf)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(v.dtype)
    return (weights.view(batch, kv_heads, -1, S) @ v).view(batch, heads, L, head_dim)


class Cache(Protocol):
    """What a layer remembers of the tokens before: `update` stores k and v of n new tokens and returns all of them."""

    length: int

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]: ...  # [batch, kv_heads, n, head_dim]


class Linear(nn.Module):
    """A weight [out, in] with no numbers in it yet."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


class Embedding(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.weight = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return rmsnorm(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        dim = config.hidden_size
        width, kv_width = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj = Linear(dim, width), Linear(dim, kv_width), Linear(dim, kv_width)
        self.o_proj = Linear(width, dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        q, k, v = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        if cache is not None:
            k, v = cache.update(k, v)  # [batch, kv_heads, everything so far, head_dim]
        out = attention(q, k, v, mask, self.head_dim**-0.5)  # [batch, heads, length, head_dim]
        mixed: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))  # [batch, length, dim]
        return mixed

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)  # [batch, heads, length, head_dim]


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return swiglu(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(config), Attention(config)
        self.post_attention_layernorm, self.mlp = RMSNorm(config), MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, cache)
        fed: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + fed


class Decoder(nn.Module):
    """Everything under the prefix `model.` of a checkpoint's keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config)


class Transformer(nn.Module):
    """A decoder-only model with Hugging Face's parameter names; new weights are random (normal, 0.02)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        # A tied model has no head of its own: the embedding is the head. Some files carry a copy of it anyway.
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        if self.lm_head is None:
            self.register_load_state_dict_pre_hook(_drop_head)  # type: ignore[no-untyped-call]
        for weight in self.parameters():
            if weight.dim() == 2 and not weight.is_meta:  # "meta" has nothing to fill; trying takes a second
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids: Tensor, caches: Sequence[Cache] | None = None, last_only: bool = False) -> Tensor:
        """The next token's logits at every position.

        ids: [batch, length], whole numbers below vocab_size. caches: one per layer, or None; their `length` is the
        position of the first id, and they grow by `length`. Returns [batch, length, vocab], or [batch, 1, vocab] with
        `last_only`, which spares the head, the largest product of all, at positions nobody asked about.
        """
        if ids.dim() != 2 or ids.shape[1] == 0:
            raise ValueError(f"ids must be [batch, length] with at least one token, not {list(ids.shape)}")
        if caches is not None and len(caches) != len(self.model.layers):
            raise ValueError(f"{len(caches)} caches for {len(self.model.layers)} layers; there must be one for each")
        start = caches[0].length if caches else 0
        end = start + ids.shape[1]
        if end > self.config.max_position_embeddings:
            raise ValueError(f"{end} tokens are more than the model's context of {self.config.max_position_embeddings}")
        x = self.model.embed_tokens(ids)  # [batch, length, dim]
        speed = inverse_frequencies(self.config.head_dim, self.config.rope_theta, self.config.rope_scaling)
        cos, sin = rope_tables(torch.arange(start, end, device=ids.device), speed, x.dtype)  # [length, head_dim / 2]
        mask = causal_mask(end - start, end, ids.device) if end - start > 1 else None  # one token may see them all
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, mask, caches[i] if caches else None)
        x = self.model.norm(x[:, -1:] if last_only else x)
        return linear(x, (self.lm_head or self.model.embed_tokens).weight)


def _drop_head(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    state.pop(f"{prefix}lm_head.weight", None)
