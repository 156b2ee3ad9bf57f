"""The two routers: which version of a model a request goes to, and which replica of an engine."""

import pytest

from shared.serving.cluster.prefix_router import PrefixRouter
from shared.serving.models.router import MAX_HISTORY, NothingToRollBack, Router, uniform

# router


def test_promote_and_roll_back():
    router = Router({"v1": 1.0})
    router.set_shares({"v1": 0.9, "v2": 0.1})
    router.set_shares({"v2": 0.1, "v1": 0.9})  # no change, so nothing to go back to
    router.promote("v2")
    assert router.shares == {"v2": 1.0}
    assert router.rollback() == {"v1": 0.9, "v2": 0.1}
    assert router.rollback() == router.shares == {"v1": 1.0}
    with pytest.raises(NothingToRollBack):
        router.rollback()


def test_what_rollback_returns_is_a_copy():
    router = Router({"v1": 1.0})
    router.promote("v2")
    router.rollback()["v1"] = 99
    assert router.shares == {"v1": 1.0}


def test_only_so_many_changes_are_kept():
    router = Router({"v1": 1.0})
    for k in range(2 * MAX_HISTORY):
        router.promote(f"v{k % 2}")
    assert len(router.history) == MAX_HISTORY
    assert router.rollback() == {"v0": 1.0}


def test_any_text_draws_a_number():
    assert 0 < uniform("\ud800", "v1") < 1


def test_what_is_unloaded_is_forgotten():
    router = Router({"v1": 1.0})
    router.set_shares({"v1": 0.5, "v2": 0.5})
    with pytest.raises(ValueError, match="'v2' has a share"):
        router.forget("v2")
    router.set_shares({"v1": 1.0, "v2": 0.0})
    router.forget("v2")
    assert router.shares == {"v1": 1.0}
    assert router.rollback() == {"v1": 1.0}  # not the shares that v2 had a part in
    with pytest.raises(NothingToRollBack):
        router.rollback()


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({}, "sum to 1"),
        ({"a": 0.5}, "sum to 0.5"),
        ({"a": 0.5, "b": 0.6}, "sum to 1.1"),
        ({"a": -0.5, "b": 1.5}, "'a' must be a number"),
        ({"a": float("nan")}, "'a' must be a number"),
        ({"a": float("inf")}, "'a' must be a number"),
        ({1: 1.0}, "name must be a text"),
        ({"a": True}, "'a' must be a number"),
        ({"a": "1"}, "'a' must be a number"),
    ],
)
def test_shares_that_are_none(shares, says):
    router = Router({"v1": 1.0})
    with pytest.raises(ValueError, match=says):
        router.set_shares(shares)
    assert router.shares == {"v1": 1.0}
    assert router.history == []


# prefix_router


def test_replicas_come_and_go():
    router = PrefixRouter("ab", block_size=2)
    prompt = [1, 2, 3, 4]
    assert router.pick(prompt, {"a": 1}) == "b"
    assert router.pick(prompt, {"b": 1}) == "b"
    router.add("b")  # started anew: it knows nothing any more
    assert router.pick(prompt, {"b": 1}) == "a"
    router.remove("a")
    router.remove("a")
    assert router.replicas == ["b"]
    assert router.pick(prompt, {}) == "b"
    router.remove("b")
    with pytest.raises(LookupError, match="no replica"):
        router.pick(prompt, {})


def test_only_so_many_blocks_are_remembered():
    router = PrefixRouter("ab", block_size=1, max_blocks=3)
    router.pick([1, 2], {"b": 1})
    router.pick([3, 4], {"b": 1})  # a has 3, 4 and the beginning of the first, whose end was used least recently
    assert router.pick([1, 9], {"a": 1}) == "a"
    assert router.pick([3, 4, 5, 6, 7], {"a": 8, "b": 0}) == "a"
    assert len(router._known["a"]) == 3


@pytest.mark.parametrize(
    "setting",
    [{"block_size": 0}, {"block_size": -4}, {"max_imbalance": -1}, {"max_imbalance": float("nan")}, {"max_blocks": -1}],
)
def test_settings_that_are_none(setting):
    with pytest.raises(ValueError, match="block_size must be"):
        PrefixRouter("ab", **setting)
