"""Which version of a model answers a request: by shares, and always the same one for the same key."""

import math
from collections.abc import Mapping
from hashlib import blake2b

MAX_HISTORY = 100  # so many changes can be undone


class NothingToRollBack(ValueError):
    """There is no earlier state to go back to."""


def uniform(*parts: str) -> float:
    """A number above 0 and below 1 that is always the same for these texts, in every process, and looks random."""
    digest = blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64


class Router:
    """Shares of the traffic by version, and the shares there were before.

    Shares sum to 1: {"v1": 0.9, "v2": 0.1} sends a tenth to v2. A version with a share of 0 gets nothing.
    history: the shares before each of the last MAX_HISTORY changes, the latest last.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.shares = checked(shares)
        self.history: list[dict[str, float]] = []

    def pick(self, key: str) -> str:
        """The version for this key: each gets its share of all keys, and when shares move, few keys do.

        Weighted rendezvous hashing (Thaler and Ravishankar 1998, with the weights of Schindelhauer and Schomaker 2005):
        each version draws a number for the key, -share / ln(uniform(key, version)), and the greatest wins. When one
        share grows and the others shrink in proportion, as few keys as can be move, all of them to the one that grows.
        Otherwise some more do: those whose shares shrank less win keys from those whose shrank more.
        """
        # exercise 14.12: of the versions with a share above 0 the one that draws the greatest number
        return max(
            (version for version, share in self.shares.items() if share > 0),
            key=lambda version: -self.shares[version] / math.log(uniform(key, version)),
        )
        # end

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """Raises ValueError, and changes nothing, unless they are numbers from 0 on that sum to 1."""
        shares = checked(shares)
        if shares != self.shares:
            self.history = [*self.history, self.shares][-MAX_HISTORY:]
            self.shares = shares

    def promote(self, version: str) -> None:
        """All traffic to one version."""
        self.set_shares({version: 1.0})

    def rollback(self) -> dict[str, float]:
        """Back to the shares before the latest change. Raises NothingToRollBack."""
        if not self.history:
            raise NothingToRollBack("the shares have not been changed, so there is nothing to go back to")
        self.shares = self.history.pop()
        return dict(self.shares)

    def forget(self, version: str) -> None:
        """A version is unloaded: no way leads back to it. Raises ValueError while it has a share."""
        if self.shares.get(version, 0) > 0:
            raise ValueError(f"{version!r} has a share of the traffic; give it to others first")
        self.shares.pop(version, None)
        self.history = [shares for shares in self.history if shares.get(version, 0) == 0]


def checked(shares: Mapping[str, float]) -> dict[str, float]:
    """A copy. Raises ValueError that names the version."""
    for version, share in shares.items():
        if not isinstance(version, str):
            raise ValueError(f"a version's name must be a text, not {version!r}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < math.inf:
            raise ValueError(f"the share of {version!r} must be a number from 0 on, not {share!r}")
    if not math.isclose(total := sum(shares.values()), 1, abs_tol=1e-6):
        raise ValueError(f"the shares must sum to 1, and these sum to {total:g}")
    return dict(shares)
