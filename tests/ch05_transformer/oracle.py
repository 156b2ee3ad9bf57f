"""The model once more, made of torch's own functions and complex numbers; and models that are wrong in known ways."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.model.config import ModelConfig


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def likely(got: object, causes: dict[str, object]) -> str:
    """The cause whose numbers `got` has, and a full stop; nothing when there is none."""
    for cause, numbers in causes.items():
        want = torch.as_tensor(numbers, dtype=torch.float64)
        if isinstance(got, Tensor) and got.shape == want.shape and torch.allclose(got.double(), want, rtol=1e-4):
            return f"likely: {cause}. "
    return ""


def turned(x: Tensor, positions: list[int], theta: float) -> Tensor:
    """Rotary embedding by multiplication with complex numbers.  x: [..., length, head_dim], float64."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    speeds = [theta ** (-2 * i / x.shape[-1]) for i in range(half)]
    angles = torch.tensor([[position * speed for speed in speeds] for position in positions], dtype=torch.float64)
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def logits(
    state: dict[str, Tensor],
    config: ModelConfig,
    ids: Tensor,
    positions: list[int] | None = None,
    causal: bool = True,
    final_norm: bool = True,
    layers: int | None = None,
) -> Tensor:
    """The logits [batch, length, vocab] in float64, without caches; plain rope, no biases.

    positions, causal, final_norm and layers make the wrong models that a reader's forward is compared with.
    """
    state = {name: weight.double() for name, weight in state.items()}
    positions = list(range(ids.shape[1])) if positions is None else positions

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (config.hidden_size,), state[name], config.rms_norm_eps)

    def heads(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[name]).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)

    x = F.embedding(ids, state["model.embed_tokens.weight"])
    for i in range(config.num_hidden_layers if layers is None else layers):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (heads(h, f"{p}self_attn.{name}_proj.weight") for name in "qkv")
        q, k = turned(q, positions, config.rope_theta), turned(k, positions, config.rope_theta)
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=1 / math.sqrt(config.head_dim), enable_gqa=True
        )
        x = x + F.linear(out.transpose(1, 2).flatten(2), state[p + "self_attn.o_proj.weight"])
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = (F.linear(h, state[f"{p}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, state[p + "mlp.down_proj.weight"])
    head = state.get("lm_head.weight", state["model.embed_tokens.weight"])
    return F.linear(norm(x, "model.norm.weight") if final_norm else x, head)


class GrowingCache:
    """The plainest cache there can be: concatenate."""

    def __init__(self) -> None:
        self.k = self.v = None

    @property
    def length(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k = k if self.k is None else torch.cat((self.k, k), dim=2)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=2)
        return self.k, self.v
