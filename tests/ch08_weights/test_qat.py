"""Exercise 8.10: judged by gradients that can be told without computing, and by a parameter that must learn."""

import torch

from chapters.ch08_weights import qat
from chapters.judge import exercise, expect, expect_close


@exercise("8.10")
def test_the_value_is_the_quantised_one():
    x = torch.tensor([0.3, 2.0], requires_grad=True)
    got = qat.straight_through(x, torch.tensor([0.9, 6.0]))
    expect_close(
        got,
        [0.9, 6.0],
        because="that is x rounded to whole numbers; `quantized` is what must come out, whatever its steps are"
        if torch.is_tensor(got) and got.tolist() == [0.0, 2.0]
        else "forwards, the quantised value must come out: the network has to feel the rounding",
    )
    expect_close(
        x,
        [0.3, 2.0],
        because="x itself was overwritten (x.data, copy_): it must keep what it has learned between two levels",
    )


@exercise("8.10")
def test_the_gradient_passes():
    x = torch.tensor([0.4, 1.7, -3.2], requires_grad=True)
    y = qat.straight_through(x, x.round())
    expect(y.requires_grad, because="the result isn't part of the graph: something is detached that shouldn't be")
    (y * torch.tensor([10.0, 20.0, -1.0])).sum().backward()
    expect(
        x.grad is not None and bool((x.grad != 0).any()),
        because="the gradient is zero: round() has no slope, so nothing may flow back through it; x itself must be in "
        "the sum, undetached",
    )
    expect_close(
        x.grad,
        [10.0, 20.0, -1.0],
        because="backwards it must look as if nothing had been rounded: the gradient of x is that of the result, "
        "once and with its sign",
    )


@exercise("8.10")
def test_nothing_flows_through_the_quantiser():
    x = torch.tensor([0.3, 2.0], requires_grad=True)
    qat.straight_through(x, x * 3).sum().backward()
    expect_close(
        x.grad,
        [1.0, 1.0],
        because="whatever slope the quantiser has (its scale depends on x, too), it must not be added: detach the "
        "difference as a whole",
    )


@exercise("8.10")
def test_a_rounded_number_learns():
    x = torch.zeros(1, requires_grad=True)
    for _ in range(200):
        y = qat.straight_through(x, x.round())
        x.grad = None
        loss = (y - 3).square().sum()
        if not loss.requires_grad:
            break
        loss.backward()
        with torch.no_grad():
            x -= 0.05 * (x.grad if x.grad is not None else 0)
    expect(
        round(x.item()) == 3,
        because=f"a number that is rounded should learn to be 3 and is at {x.item():.2f}: its gradient got lost",
    )
