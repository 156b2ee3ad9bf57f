"""What one key may use in a minute, and the headers that say how much of it is left."""

import math
from collections.abc import Sequence
from dataclasses import replace

from shared.inference.sampling import SamplingParams
from shared.serving.errors import ApiError, bad_value, retry_after
from shared.serving.guard.keys import Key
from shared.serving.guard.token_bucket import TokenBucket


class KeyLimits:
    """A key's two buckets, each None where the key has no such limit. A minute's worth may be used at once."""

    def __init__(self, key: Key, now: float) -> None:
        self.requests = _bucket(key.requests_per_minute, now)
        self.tokens = _bucket(key.tokens_per_minute, now)

    def take_request(self, now: float) -> ApiError | None:
        """Count a request, or say why it is refused."""
        wait = self.requests.take(1, now) if self.requests is not None else 0.0
        return _too_many("requests", wait) if wait else None

    def take_tokens(self, n: int, now: float) -> ApiError | None:
        """Charge n tokens, prompt and answer, or say why they are refused."""
        wait = self.tokens.take(n, now) if self.tokens is not None else 0.0
        if wait == math.inf and self.tokens is not None:
            message = f"prompt and answer may take {n} tokens, and this key has {self.tokens.burst:.0f} a minute"
            return bad_value("max_tokens", f"{message}; ask for less", code="request_too_large")
        return _too_many("tokens", wait) if wait else None

    def shortened(self, params: Sequence[SamplingParams], num_prompt: int) -> list[SamplingParams]:
        """The parameters with answers no longer than a minute's tokens allow, beside num_prompt tokens of prompts."""
        if self.tokens is None:
            return [*params]
        room = max(int(self.tokens.burst - num_prompt) // sum(one.n for one in params), 1)
        return [replace(one, max_tokens=min(one.max_tokens, room)) for one in params]

    def give_back(self, n: int) -> None:
        """n tokens were charged and not used."""
        if self.tokens is not None and n > 0:
            self.tokens.give_back(n)

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's headers: the limit for a minute, what is left of it, and when nothing will be missing."""
        headers = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                left = bucket.remaining(now)
                headers[f"x-ratelimit-limit-{name}"] = str(int(bucket.burst))
                headers[f"x-ratelimit-remaining-{name}"] = str(int(left))
                headers[f"x-ratelimit-reset-{name}"] = duration((bucket.burst - left) / bucket.rate)
        return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it.

    >>> duration(0.02), duration(0.9999), duration(1.5), duration(66), duration(119.95), duration(119.9999)
    ('20ms', '1s', '1.5s', '1m6s', '1m59.95s', '2m0s')
    """
    ms = math.ceil(seconds * 1000)
    minutes, rest = divmod(ms, 60_000)
    if ms < 1000:
        return f"{ms}ms"
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"


def _bucket(per_minute: float | None, now: float) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute / 60, max(1.0, per_minute), now)


def _too_many(what: str, wait: float) -> ApiError:
    headers = {"Retry-After": retry_after(wait)}
    message = f"This key has used up its {what} for now; try again in about {math.ceil(wait)} s."
    return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)
