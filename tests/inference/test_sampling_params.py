"""SamplingParams that make no sense are refused, and the field is named."""

import math

import pytest
import torch

from shared.inference.filters import probabilities
from shared.inference.sampling import SamplingParams, sample


def test_infinite_temperature_is_refused_by_params_and_its_limit_is_known():
    """The filters know the limit; a request can't ask for it, since JSON has no infinity."""
    with pytest.raises(ValueError, match="temperature must"):
        SamplingParams(temperature=math.inf)
    uniform_over_two = probabilities(torch.tensor([1.0, -math.inf, 3.0]), math.inf)
    assert uniform_over_two.tolist() == [0.5, 0, 0.5]
    near = probabilities(torch.tensor([1.0, -math.inf, 3.0]), 1e300)
    assert near.tolist() == pytest.approx([0.5, 0, 0.5])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("top_k", -1),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("min_p", 1.01),
        ("min_p", -0.01),
        ("min_p", None),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.nan),
        ("repetition_penalty", 1000.0),
        ("temperature", 10**400),
        pytest.param("temperature", 10**5000, id="huge temperature"),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        pytest.param("seed", 10**5000, id="huge seed"),
        pytest.param("n", 10**5000, id="huge n"),
        pytest.param("logprobs", -(10**5000), id="huge logprobs"),
        ("n", 0),
        ("n", 1.0),
        ("logprobs", -1),
        ("logprobs", True),
        ("logprobs", 2.0),
        ("seed", 0.5),
        ("stop", "text"),
        ("stop", ("",)),
        ("stop", (1,)),
    ],
)
def test_bad_params_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field} must"):
        SamplingParams(**{field: value})


def test_the_largest_and_the_smallest_seed_draw():
    for seed in (2**63 - 1, -(2**63)):
        assert 0 <= sample(torch.zeros(9), SamplingParams(temperature=1.0, seed=seed), 0) < 9
