"""The Llama family in plain torch: pure functions for the layers, and a model that strings them together.

Tensors of heads have the layout [batch, heads, length, head_dim]. Nothing here keeps state between two calls: what a
request remembers lives in the caches that the caller hands in.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.caches import AttendingCache, Caches, LayerCache
from shared.model.config import ModelConfig
from shared.model.linear import Embedding, Linear, Weight, linear
from shared.model.rope import apply_rope as apply_rope  # "as": to be had from here too
from shared.model.rope import inverse_frequencies as inverse_frequencies
from shared.model.rope import rope as rope
from shared.model.rope import rope_tables as rope_tables


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector to unit root-mean-square, then by `weight` (Zhang & Sennrich 2019, section 3).

    x: [..., dim], any float dtype; weight: [dim], of the same dtype. Returns x's shape and dtype; the mean is taken in
    float32 at least: bfloat16 and float16 are widened for it, and float64 stays float64.

    >>> rmsnorm(torch.tensor([3.0, 4.0]), torch.ones(2), eps=0.0)  # rms = sqrt((9 + 16) / 2) = 3.5355
    tensor([0.8485, 1.1314])
    """
    # exercise 5.1: divide by the root of the mean square (eps goes under the root), in float32 at least, then scale
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # bf16 keeps three digits of a sum; float64 stays float64
    mean_square = (wide * wide).mean(dim=-1, keepdim=True)  # [..., 1]
    return (wide * torch.rsqrt(mean_square + eps)).to(x.dtype) * weight
    # end


def causal_mask(L: int, S: int, device: torch.device | str | None = None) -> Tensor:
    """Which of S tokens each of the last L of them may attend to: itself and what came before. [L, S], True = may.

    >>> causal_mask(2, 3).int()  # one token is already in the cache
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    # exercise 5.4: where do the last L of S tokens stand, where do all S, and which of those are no later?
    queries = torch.arange(S - L, S, device=device)[:, None]  # [L, 1]
    return torch.arange(S, device=device) <= queries  # [L, S]
    # end


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(q k^T * scale) v, with grouped queries (Vaswani et al. 2017, section 3.2.1; Ainslie et al. 2023).

    q: [batch, heads, L, head_dim]; k, v: [batch, kv_heads, S, head_dim], heads a multiple of kv_heads: query head h
    reads key head h // (heads / kv_heads). mask: bool, broadcastable to [batch, heads, L, S], True = may attend.
    Returns [batch, heads, L, head_dim]; the softmax is taken in float32 at least.
    """
    # exercise 5.5: scores, minus infinity where the mask is False, softmax over the keys, and the mean of the values
    #   k and v have fewer heads than q: repeat each, or put the queries of a group together, which copies nothing
    batch, heads, L, head_dim = q.shape
    kv_heads, S = k.shape[1], k.shape[2]
    q = (q * scale).reshape(batch, kv_heads, -1, head_dim)  # a group's queries in one matrix
    scores = (q @ k.transpose(-1, -2)).view(batch, kv_heads, -1, L, S)  # [batch, kv_heads, group, L, S]
    if mask is not None:
        scores.masked_fill_((~mask).expand(batch, heads, L, S).view(scores.shape), -math.inf)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(v.dtype)
    return (weights.view(batch, kv_heads, -1, S) @ v).view(batch, heads, L, head_dim)
    # end


def swiglu(x: Tensor, w_gate: Weight, w_up: Weight, w_down: Weight) -> Tensor:
    """The feed-forward block: a gate decides, number by number, how much of `up` passes (Shazeer 2020, section 2).

    x: [..., dim]; w_gate, w_up: [hidden, dim]; w_down: [dim, hidden]. Returns [..., dim]. silu(z) = z * sigmoid(z).

    >>> swiglu(torch.tensor([2.0]), torch.tensor([[1.0]]), torch.tensor([[3.0]]), torch.tensor([[1.0]]))  # silu(2) * 6
    tensor([10.5696])
    """
    # exercise 5.6: silu of the gate times up, and then down; every product of weights by `linear`
    gate, up = F.silu(linear(x, w_gate)), linear(x, w_up)  # [..., hidden]
    return linear(gate * up, w_down)  # [..., dim]
    # end


class RMSNorm(nn.Module):
    """`rmsnorm` with its weight [dim], which begins as ones."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., dim]. Returns the same shape and dtype."""
        return rmsnorm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Projections, rope, the cache, `attention`: all that lets one token look at others."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim, self.head_dim = config.hidden_size, config.head_dim
        width, kv_width = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = Linear(dim, width, config.attention_bias)
        self.k_proj = Linear(dim, kv_width, config.attention_bias)
        self.v_proj = Linear(dim, kv_width, config.attention_bias)
        self.o_proj = Linear(width, dim, config.attention_output_bias)
        # Qwen3 norms each head's queries and keys, so that no score can grow without bound.
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: LayerCache | None) -> Tensor:
        """x: [batch, length, dim]; cos, sin: as `apply_rope` takes them; mask, cache: for this layer, or None.
        Returns [batch, length, dim].
        """
        q, k, v = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        scale = self.head_dim**-0.5
        if isinstance(cache, AttendingCache):
            out = cache.attend(q, k, v, scale)  # [batch, heads, length, head_dim]
        else:
            k, v = (k, v) if cache is None else cache.update(k, v)  # [batch, kv_heads, everything so far, head_dim]
            out = attention(q, k, v, mask, scale)  # [batch, heads, length, head_dim]
        return self.o_proj(out.transpose(1, 2).flatten(2))  # [batch, length, dim]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)  # [batch, heads, length, head_dim]


class MLP(nn.Module):
    """`swiglu` with its three weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., dim]. Returns the same shape."""
        return swiglu(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)


class Layer(nn.Module):
    """One block: attention and the feed-forward block, each on a normed copy, each added to what was there."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm, self.self_attn = RMSNorm(dim, eps), Attention(config)
        self.post_attention_layernorm, self.mlp = RMSNorm(dim, eps), MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: LayerCache | None) -> Tensor:
        """x: [batch, length, dim]; the rest as Attention.forward takes it. Returns [batch, length, dim]."""
        # exercise 5.7: x plus what attention makes of the normed x; then the same with the second norm and the mlp
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, cache)  # [batch, length, dim]
        fed: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + fed
        # end


class Decoder(nn.Module):
    """Everything under the prefix `model.` of a checkpoint's keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


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

    def forward(
        self,
        ids: Tensor,
        caches: Caches | None = None,
        last_only: bool = False,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """The next token's logits at every position.

        ids: [batch, length], whole numbers below vocab_size. caches: one per layer, or None; their `length` is the
        position of the first id, and they grow by `length`. positions: [length] or [batch, length], where the tokens
        stand if they don't follow one another from there; whoever gives them gives the mask too. mask: bool, for given
        positions only, broadcastable to [batch, heads, length, everything so far], True = may attend; None = all may.
        Returns [batch, length, vocab], or [batch, 1, vocab] with `last_only`, or [batch, n, vocab] with rows: [n],
        indices into length. Either spares the head, the largest product of all, at positions nobody asked about.
        """
        start = self._first_position(ids, caches, positions, mask)
        # exercise 5.8: embed, positions (from `start` on), tables and mask, the layers, the final norm, the head
        #   tables and mask are made once for all layers; layer i gets cache i, or None; the head is `self.lm_head`, or
        #   the embedding when that is None
        #   where positions are given (a batch padded on the left, an engine's step), they and the mask are taken as is
        if positions is None:
            end = start + ids.shape[1]
            positions = torch.arange(start, end, device=ids.device)
            mask = causal_mask(end - start, end, ids.device) if end - start > 1 else None  # one token may see them all
        x = self.model.embed_tokens(ids)  # [batch, length, dim]
        config = self.config
        speed = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling, ids.device)
        cos, sin = rope_tables(positions, speed, x.dtype)  # [length, head_dim / 2]
        if positions.dim() == 2:
            cos, sin = cos[:, None], sin[:, None]  # [batch, 1, length, head_dim / 2]: the same for every head
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, mask, caches[i] if caches else None)  # [batch, length, dim]
        x = x[:, -1:] if last_only else x if rows is None else x[:, rows]
        return linear(self.model.norm(x), (self.lm_head or self.model.embed_tokens).weight)  # [batch, …, vocab]
        # end

    def _first_position(self, ids: Tensor, caches: Caches | None, given: Tensor | None, mask: Tensor | None) -> int:
        """Where the first id stands, as the caches say. Raises ValueError for a call that can't be answered."""
        if ids.dim() != 2 or ids.shape[1] == 0:
            raise ValueError(f"ids must be [batch, length] with at least one token, not {list(ids.shape)}")
        if caches is not None and len(caches) != len(self.model.layers):
            raise ValueError(f"{len(caches)} caches for {len(self.model.layers)} layers; there must be one for each")
        if given is not None:  # how far they reach isn't asked: on a GPU that would wait for all that is computed
            if given.shape not in (ids.shape, ids.shape[1:]):
                raise ValueError(f"positions must be [length] or [batch, length], as the ids, not {list(given.shape)}")
            return 0
        if mask is not None:
            raise ValueError("a mask needs positions beside it; without them the model makes its own, causal one")
        starts = [getattr(cache, "length", 0) for cache in caches or ()] or [0]
        if len(set(starts)) > 1:
            raise ValueError(f"the layers' caches are out of step: they hold {min(starts)} to {max(starts)} tokens")
        if (end := starts[0] + ids.shape[1]) > (context := self.config.max_position_embeddings):
            raise ValueError(f"{end} tokens are more than the model's context of {context}")
        return starts[0]


def _drop_head(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    state.pop(f"{prefix}lm_head.weight", None)
