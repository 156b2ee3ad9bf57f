"""Exercises 5.6 and 5.7: judged by numbers worked out by hand, and blocks made of parts that are easy to follow."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chapters.ch05_transformer import transformer
from chapters.ch05_transformer.transformer import swiglu
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal
from tests.ch05_transformer.oracle import likely, normal
from tests.tiny import TINY

# 5.6 swiglu


GATED = [-1.129554]
GATES = {  # what usual mistakes make of a gate of -1, an up of 6 and a down of 0.7
    "silu was put on the product; it belongs to the gate": [-0.010385],
    "silu was put on up; it belongs to the gate": [-4.189614],
    "silu was put on both; it belongs to the gate alone": [-1.126760],
    "silu came after down, at the very end; it belongs to the gate": [-0.062046],
    "the gate is a plain sigmoid; silu(z) is z * sigmoid(z)": [1.129554],
    "there is no activation: the gate goes through silu": [-4.2],
    "the gate went through relu; here it is silu": [0.0],
    "the gate went through gelu; here it is silu": [-0.666353],
    "down is missing: the product of gate and up goes through w_down": [-1.613649],
    "up is missing: the gate multiplies x w_up, number by number": [-0.188259],
    "gate and up were added; they are multiplied": [4.011741],
}


@exercise("5.6")
def test_by_hand():
    got = swiglu(torch.tensor([2.0]), torch.tensor([[-0.5]]), torch.tensor([[3.0]]), torch.tensor([[0.7]]))
    expect_close(
        got,
        GATED,
        because=likely(got, GATES)
        + "gate = -1 and up = 6, so it is silu(-1) * 6 * 0.7 = -1.1296, with silu(-1) = -1 * sigmoid(-1) = -0.2689",
    )


@exercise("5.6")
def test_a_closed_gate_lets_nothing_pass():
    got = swiglu(torch.tensor([1.0]), torch.tensor([[-50.0]]), torch.tensor([[1000.0]]), torch.tensor([[1.0]]))
    expect_close(
        got,
        [0.0],
        atol=1e-6,
        because="silu belongs to the gate: a gate of -50 is closed, however large up is",
    )
    got = swiglu(torch.tensor([1.0]), torch.tensor([[50.0]]), torch.tensor([[-2.0]]), torch.tensor([[1.0]]))
    expect_close(
        got,
        [-100.0],
        because="up may be negative and passes as it is: 50 * -2. 0 means silu was put on up, or on the product",
    )


@exercise("5.6")
def test_equal_to_torch():
    x, gate, up, down = normal(2, 5, 6), normal(10, 6, seed=1), normal(10, 6, seed=2), normal(6, 10, seed=3)
    want = (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
    with crash_means(
        "weights are stored as [out, in], so x [..., dim] times w_gate [hidden, dim] is linear(x, w_gate): x first"
    ):
        got = swiglu(x, gate, up, down)
    expect_close(got, want, atol=1e-6, because="not silu(x gate^T) * (x up^T), times down^T, of torch")


class Packed:
    """A weight that isn't a tensor."""

    def __init__(self, w: Tensor) -> None:
        self.numbers = w

    def linear(self, x: Tensor) -> Tensor:
        return x @ self.numbers.T


@exercise("5.6")
def test_weights_that_multiply_by_themselves():
    x, *weights = normal(3, 4), normal(6, 4, seed=1), normal(6, 4, seed=2), normal(4, 6, seed=3)
    want = swiglu(x, *weights)
    with crash_means(
        "a weight may be an object that isn't a tensor (chapter 8 packs them into int8): multiply by the function "
        "`linear` above, not by F.linear, or @ and .T",
        TypeError,
        AttributeError,
        RuntimeError,
        ValueError,
    ):
        got = swiglu(x, *map(Packed, weights))
    expect_close(got, want, because="a packed weight must give what the plain one gives")


# 5.7 Layer.forward


GIVEN = ("cos", "sin", "mask", "cache")  # what attention takes besides x, in this order


class Part(nn.Module):
    """Stands in for a norm, attention or the mlp; remembers what it was given."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.seen: list[tuple] = []

    def forward(self, x: Tensor, *rest: object, **named: object) -> Tensor:
        given = dict(zip(GIVEN, rest, strict=False)) | named
        self.seen.append((x.clone(), *(given[name] for name in GIVEN if name in given)))
        return self.function(x)


def layer(norm1=3.0, attn=100.0, norm2=7.0, mlp=1000.0) -> transformer.Layer:
    """A block whose norms multiply and whose sublayers add, so that the way through can be read off the result."""
    built = transformer.Layer(TINY)
    built.input_layernorm, built.post_attention_layernorm = Part(lambda x: x * norm1), Part(lambda x: x * norm2)
    built.self_attn, built.mlp = Part(lambda x: x + attn), Part(lambda x: x + mlp)
    return built


THROUGH = [[[1832.0]]]
WAYS = {  # what usual mistakes make of 1
    "both residuals are missing: what a sublayer gives is added to x": [[[1721.0]]],
    "the residual around attention is missing: x + attention, not attention alone": [[[1824.0]]],
    "the residual around the mlp is missing: x + mlp, not the mlp alone": [[[1728.0]]],
    "the mlp's result was added to the layer's input; it is added to x with attention's in it": [[[1729.0]]],
    "the mlp read the layer's input; it reads x after attention has been added to it": [[[1111.0]]],
    "the norm's result was kept as the residual; add to x itself, the norm is for the sublayer alone": [[[2484.0]]],
    "the norms stand behind the sums (post-norm); here each stands before its sublayer": [[[11284.0]]],
    "the norms stand behind the sublayers; here each stands before": [[[9432.0]]],
    "the two norms are swapped: input_layernorm goes with attention": [[[1432.0]]],
    "input_layernorm is missing: attention reads the normed x": [[[1816.0]]],
    "post_attention_layernorm is missing: the mlp reads the normed x": [[[1208.0]]],
    "both norms are missing: attention and mlp read the normed x": [[[1204.0]]],
    "input_layernorm was used twice; the mlp has a norm of its own, post_attention_layernorm": [[[1416.0]]],
    "post_attention_layernorm was used twice; attention's norm is input_layernorm": [[[1864.0]]],
    "the mlp came first; attention is the first of the two": [[[4132.0]]],
    "the mlp came first, and the norms with it; attention is the first of the two": [[[8132.0]]],
    "the mlp is missing": [[[104.0]]],
    "attention is missing": [[[1008.0]]],
}


@exercise("5.7")
def test_the_way_through():
    got = layer()(torch.ones(1, 1, 1), None, None, None, None)
    expect_close(
        got,
        THROUGH,
        because=likely(got, WAYS) + "With norms that multiply by 3 and 7, attention that adds 100 and an mlp that adds "
        "1000, 1 becomes 1 + (3 * 1 + 100) = 104, and then 104 + (7 * 104 + 1000) = 1832",
    )
    got = layer()(torch.tensor([[[1.0]], [[2.0]]]), None, None, None, None)  # [batch 2, length 1, dim 1]
    expect_close(
        got,
        [[[1832.0]], [[1864.0]]],
        because="the batch's second row was given what belongs to the first: attention and mlp return the tensor "
        "itself, not a tuple, so [0] takes the first row",
    )


@exercise("5.7")
def test_the_residual_goes_straight_through():
    silent = layer()
    silent.self_attn, silent.mlp = Part(torch.zeros_like), Part(torch.zeros_like)
    x = normal(2, 3, 4)
    expect_close(
        silent(x, None, None, None, None),
        x,
        because="when attention and mlp say nothing (all zeros), x must come out as it went in: each is added to x, "
        "and the sum is not normed. If the result is x times a norm, the residual was taken after the norm",
    )


@exercise("5.7")
def test_norms_come_before():
    built, x = layer(), torch.ones(1, 1, 1)
    built(x, None, None, None, None)
    expect_equal(
        [float(built.self_attn.seen[0][0]), float(built.mlp.seen[0][0])],
        [3.0, 728.0],
        because="attention reads input_layernorm(x), the mlp reads post_attention_layernorm(x + attention); a norm "
        "applied to the sum, after the sublayer, is the first transformer's way and not Llama's",
    )


@exercise("5.7")
def test_attention_gets_what_it_needs():
    built = layer()
    given = cos, sin, mask, cache = torch.zeros(1), torch.ones(1), torch.ones(1, 1).bool(), object()
    built(torch.ones(1, 1, 1), cos, sin, mask, cache)
    expect(
        len(built.self_attn.seen[0]) == 5
        and all(a is b for a, b in zip(built.self_attn.seen[0][1:], given, strict=True)),
        because="attention takes (x, cos, sin, mask, cache), in this order; without its cache it forgets the prompt, "
        "without the mask it reads the future",
    )
    expect_equal(
        [len(built.self_attn.seen), len(built.mlp.seen)],
        [1, 1],
        because="each sublayer is called once: a cache stores what it is given every time",
    )


@exercise("5.7")
def test_x_is_left_as_it_was():
    x = torch.ones(1, 2, 1)
    layer()(x, None, None, None, None)
    expect(
        bool((x == 1).all()),
        because="x was changed in place: x = x + ..., not x += ..., or training can't find its way back through it",
    )


@exercise("5.7")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_stays(dtype):
    got = layer()(torch.ones(1, 1, 1, dtype=dtype), None, None, None, None)
    expect_equal(got.dtype, dtype, because=f"{dtype} goes in and {dtype} comes out")
