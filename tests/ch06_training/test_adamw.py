"""Exercise 6.1: judged by torch.optim.AdamW, by numbers worked out by hand, and by what state_dict must hold."""

import copy

import torch

from chapters.ch06_training import adamw
from chapters.judge import exercise, expect, expect_close, expect_equal


def one_step(p: float, grad: float, steps: int = 1, **settings) -> float:
    """Where steps with one and the same gradient lead."""
    weight = torch.nn.Parameter(torch.tensor([p], dtype=torch.float64))
    optimizer = adamw.AdamW([weight], **settings)
    for _ in range(steps):
        weight.grad = torch.tensor([grad], dtype=torch.float64)
        optimizer.step()
    return weight.item()


def run(optimizer_class, steps: int, dtype=torch.float64, **settings):
    """A small net under one optimiser: some steps on fixed random gradients, of very different sizes."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((5, 3), (3,), (2, 2))]
    groups = [{"params": params[:1], "weight_decay": 0.3, "lr": 0.02}, {"params": params[1:], "eps": 1e-3}]
    optimizer = optimizer_class(groups, **settings)
    for step in range(steps):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, dtype=dtype) * 10.0 ** (i - 1)
            if i == 2 and step % 2:
                p.grad = None  # an expert that no token went to
        optimizer.step()
    return params, optimizer


WRONG_FIRST_STEPS = {
    0.0: "p is where it was. `p = p - …` makes a new tensor, and the parameter keeps its old one; change p in place",
    0.1: "the step goes up the gradient; it is taken off p, so mind the minus",
    -0.1 * 0.1 * 2 / (0.001 * 4) ** 0.5: "the means start at zero, and their bias must be corrected by 1 - beta**step",
    -0.1 * 2 / 2**0.5: "that is what comes out when exp_avg_sq is the mean of the gradient and not of its square",
    -0.1 * 20 / 4000**0.5: "the means begin with the gradient here; they begin with zeros, and the correction by "
    "1 - beta**step is made for that",
    -0.1 * 2.038 / 203.8**0.5: "exp_avg and exp_avg_sq seem to be one and the same tensor; make zeros for each",
    -0.1 * 2 / (0.001 * 4) ** 0.5: "only exp_avg is corrected for its bias; exp_avg_sq started at zero, too",
    -0.1 * 0.9 / 0.1: "exp_avg keeps beta1 of what it was and takes 1 - beta1 of the gradient; not the other way round",
    -0.1 * 0.1 * 2 / 2: "only exp_avg_sq is corrected for its bias; exp_avg started at zero, too",
}


@exercise("6.1")
def test_the_first_step_by_hand():
    got = one_step(0.0, 2.0, lr=0.1, weight_decay=0.0)
    near = [cause for value, cause in WRONG_FIRST_STEPS.items() if abs(got - value) < 1e-5]
    rule = "without decay the first step is lr, whatever the gradient"
    expect_close(
        got, -0.1, because=f"{rule}: {near[0]}" if near else f"{rule}. Look at both means and their correction"
    )


@exercise("6.1")
def test_decay_by_hand():
    expect_close(
        one_step(10.0, 0.0, lr=0.1, weight_decay=0.5),
        9.5,
        because="with a gradient of zero only the decay is left: 10 - 0.1 * 0.5 * 10. If it is 9.9, the decay went "
        "into "
        "the gradient (L2) and was divided by sqrt(v) like any gradient: that is Adam with L2, not AdamW. If it is "
        "5, it "
        "isn't times lr",
    )
    expect_close(
        one_step(10.0, 2.0, lr=0.1, weight_decay=0.5),
        9.4,
        because="the decay is lr * weight_decay * p = 0.5 and Adam's step 0.1. 9.405 means that the decay came after "
        "the "
        "step, when p was smaller already; it comes first",
    )


@exercise("6.1")
def test_eps_is_outside_the_root():
    expect_close(
        one_step(0.0, 1e-6, lr=1.0, eps=1e-3, weight_decay=0.0),
        -1e-6 / (1e-6 + 1e-3),
        because="eps is added to the root of v_hat, not to v_hat: with eps under the root a small gradient's step is "
        "smaller by far",
    )


@exercise("6.1")
def test_settings_are_the_groups():
    weights = [torch.nn.Parameter(torch.tensor([10.0])) for _ in range(3)]
    for weight in weights:
        weight.grad = torch.tensor([1.0])
    settings = [{"lr": 0.1, "weight_decay": 0.5, "betas": (0.5, 0.5), "eps": 1.0}, {}, {"lr_scale": 4.0}]
    optimizer = adamw.AdamW(
        [{"params": [w], **s} for w, s in zip(weights, settings, strict=True)], lr=0.01, weight_decay=0.0
    )
    optimizer.step()
    expect_close(
        torch.stack([w.detach() for w in weights[:2]]),
        torch.tensor([[10 - 0.5 - 0.1 / 2], [10 - 0.01]]),
        because="lr, betas, eps and weight_decay are those of the parameter's group, not the optimiser's defaults",
    )
    expect_close(
        weights[2],
        torch.tensor([10 - 0.01]),
        because="lr_scale was applied here: it is train_step's business (6.6), which puts lr times lr_scale into the "
        "group. Applied here, too, it counts twice",
    )


@exercise("6.1")
def test_the_means_are_kept():
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = adamw.AdamW([weight], lr=0.1)
    weight.grad = torch.tensor([2.0, -4.0], dtype=torch.float64)
    optimizer.step()
    state = optimizer.state[weight]
    expect(
        {"step", "exp_avg", "exp_avg_sq"} <= set(state),
        because="state_dict can only save what is in self.state[p]: step, exp_avg and exp_avg_sq, by these names",
    )
    expect_close(
        state["exp_avg"], torch.tensor([0.2, -0.4]), because="exp_avg is (1 - beta1) * grad after one step; the bias "
              "is "
        "corrected for the step's use only, and not stored",
    )  # fmt: skip
    expect_close(
        state["exp_avg_sq"], torch.tensor([0.004, 0.016]), because="exp_avg_sq is (1 - beta2) * grad**2 after one "
              "step, "
        "uncorrected",
    )  # fmt: skip


@exercise("6.1")
def test_the_second_step_by_hand():
    expect_close(
        one_step(0.0, 2.0, steps=2, lr=0.1, weight_decay=0.0),
        -0.2,
        because="two steps with the same gradient are two steps of lr. After the second the means lack less, and the "
        "correction is by 1 - beta**step with step = 2: is it beta**step, and is the step counted?",
    )


@exercise("6.1")
def test_each_parameter_counts_its_own_steps():
    params, optimizer = run(adamw.AdamW, steps=6)
    counts = [int(optimizer.state[p]["step"]) for p in params]
    expect_equal(
        counts,
        [6, 6, 3],
        because="a parameter's step counts its own updates: the third had a gradient only every other time",
    )


@exercise("6.1")
def test_the_gradient_is_left_alone():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    adamw.AdamW([weight], weight_decay=0.5).step()
    expect_equal(
        weight.grad.tolist(),
        [1.0, 2.0, 3.0],
        because="the gradient belongs to the caller, who may look at it after the step; write into p and the means "
        "only",
    )


@exercise("6.1")
def test_equal_to_torch():
    for betas in ((0.9, 0.999), (0.8, 0.95)):
        mine, _ = run(adamw.AdamW, 300, lr=0.01, betas=betas)
        torchs, _ = run(torch.optim.AdamW, 300, lr=0.01, betas=betas)
        for a, b in zip(mine, torchs, strict=True):
            expect_close(
                a,
                b,
                rtol=1e-5,
                atol=1e-5,  # the step may be counted in a float32 tensor
                because="after 300 steps with three parameters in two groups the weights are not those of "
                "torch.optim.AdamW; are betas, eps and weight_decay the group's, and is eps outside the root?",
            )


@exercise("6.1")
def test_state_dict_goes_on_where_it_was():
    torch.manual_seed(3)
    weight = torch.nn.Parameter(torch.randn(4))
    optimizer = adamw.AdamW([weight], lr=0.1)
    for _ in range(3):
        weight.grad = torch.randn(4)
        optimizer.step()
    twin = torch.nn.Parameter(weight.detach().clone())
    other = adamw.AdamW([twin], lr=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    weight.grad = twin.grad = torch.randn(4)
    optimizer.step()
    other.step()
    expect_equal(
        twin, weight.detach(), because="an optimiser that has loaded the state must go on like the one that saved it"
    )
