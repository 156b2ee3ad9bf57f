"""Exercise 14.12: judged by counting, and by which keys move when shares do."""

import math
from collections import Counter
from collections.abc import Mapping

import pytest

from chapters.ch14_service import router
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from tests.ch14_service.scenes import survives

KEYS = [f"request-{k}" for k in range(2000)]


def picks(shares: Mapping[str, float], keys: list[str] = KEYS) -> dict[str, str]:
    which = router.Router(shares)
    with survives("every key gets a version, as long as one has a share"):
        got = {key: which.pick(key) for key in keys}
    expect(None not in got.values(), because=NO_RESULT)
    expect(
        set(got.values()) <= set(shares),
        because="pick returns a version's name, one of those that have shares",
    )
    return got


@exercise("14.12")
def test_no_hash_of_the_process(monkeypatch: pytest.MonkeyPatch):
    def hash_of_a_text(_):
        expect(
            False,
            because="hash() of a text is another number in every process: two servers would disagree, and after a "
            "restart all keys move. uniform(key, version) is the same everywhere",
        )

    monkeypatch.setattr(router, "hash", hash_of_a_text, raising=False)
    router.Router({"v1": 0.5, "v2": 0.5}).pick("a key")


@exercise("14.12")
def test_the_same_key_gets_the_same_version():
    expect_equal(
        picks({"v1": 0.5, "v2": 0.5}),
        picks({"v1": 0.5, "v2": 0.5}),
        because="asked twice, the same key got two versions: no dice here, uniform(key, version) is always the same",
    )
    expect_equal(
        picks({"v1": 0.5, "v2": 0.5}),
        picks({"v2": 0.5, "v1": 0.5}),
        because="the same shares in another order gave a key another version: the order must not matter",
    )


@exercise("14.12")
def test_a_share_of_nothing_gets_nothing():
    got = Counter(picks({"v1": 1.0, "v2": 0.0}).values())
    expect_equal(got["v2"], 0, because="v2 has a share of 0 and got requests: it may not even be loaded yet")
    expect_equal(set(picks({"v1": 1.0}).values()), {"v1"}, because="the only version gets everything")


@exercise("14.12")
def test_everybody_gets_its_share():
    for shares in ({"v1": 0.9, "v2": 0.1}, {"v1": 0.25, "v2": 0.75}, {"v1": 0.6, "v2": 0.3, "v3": 0.1}):
        got = Counter(picks(shares).values())
        for version, share in shares.items():
            part = got[version] / len(KEYS)
            because = (
                f"of {len(KEYS)} keys {version} got {part:.0%}, and its share is {share:.0%}. The number a version "
                "draws is -share / ln(uniform): share * uniform, say, gives the large ones too much"
            )
            if math.isclose(part, 1 / len(shares), abs_tol=0.03):
                because = f"{version} got {part:.0%}, as if all shares were the same: the share is part of the number"
            if math.isclose(part, 1 - share, abs_tol=0.02) and len(shares) == 2:
                because = (
                    f"{version} got {part:.0%}, and its share is {share:.0%}: the greatest number wins, not the least; "
                    "and the logarithm is divided by the share, which as a power of uniform is 1 / share"
                )
            expect(abs(part - share) < 0.04, because=because)


@exercise("14.12")
def test_few_move_when_shares_move():
    for before, after in (
        ({"v1": 0.9, "v2": 0.1}, {"v1": 0.7, "v2": 0.3}),
        ({"v1": 0.5, "v2": 0.3, "v3": 0.2}, {"v1": 0.6, "v2": 0.24, "v3": 0.16}),
        ({"v1": 0.5, "v2": 0.5, "v3": 0.0}, {"v1": 0.25, "v2": 0.25, "v3": 0.5}),
    ):
        old, new = picks(before), picks(after)
        grown = {version for version in after if after[version] > before[version]}
        moved = [key for key in KEYS if old[key] != new[key]]
        gained = sum(after[version] - before[version] for version in grown)
        expect(
            len(moved) < (gained + 0.04) * len(KEYS),
            because=f"from {before} to {after}: {gained:.0%} of the traffic has to move, and "
            f"{len(moved) / len(KEYS):.0%} of the keys did. Draw a number for each version apart, so that a share that "
            "grows, while the others shrink in proportion, only wins keys",
        )
        strayed = sum(new[key] not in grown for key in moved)
        expect(
            strayed == 0,
            because=f"from {before} to {after}: {strayed} keys moved to a version whose share hadn't grown. Put one "
            "behind the other on a line from 0 to 1, every version is pushed along when the first grows",
        )


@exercise("14.12")
def test_new_shares_count_at_once():
    which = router.Router({"v1": 0.9, "v2": 0.1, "v3": 0.0})
    keys = KEYS[:300]
    with survives("every key gets a version, as long as one has a share"):
        [which.pick(key) for key in keys]
        expect_equal(which.shares, {"v1": 0.9, "v2": 0.1, "v3": 0.0}, because="picking changes no share")
        which.set_shares({"v1": 0.1, "v2": 0.9})
        got = [which.pick(key) for key in keys]
    expect_equal(
        got,
        list(picks({"v1": 0.1, "v2": 0.9}, keys).values()),
        because="the shares were changed, and keys still go where they went before: nothing is to be remembered, the "
        "same shares give the same version anyway",
    )


@exercise("14.12")
def test_versions_draw_for_themselves():
    """By the formula of the docstring, written out here once more with the module's own uniform numbers."""
    shares = {"v1": 0.2, "v2": 0.5, "v3": 0.3}
    want = {
        key: min((-math.log(router.uniform(key, version)) / share, version) for version, share in shares.items())[1]
        for key in KEYS[:300]
    }
    expect_equal(
        list(picks(shares, KEYS[:300]).values()),
        list(want.values()),
        because="the version should be the one with the greatest -share / ln(uniform(key, version)), key first, and "
        "another won",
    )
