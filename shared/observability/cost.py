"""What a request cost: its share of the machine's time, and of the machine's price."""

from collections.abc import Mapping

SECONDS_PER_HOUR = 3600


def share_step(seconds: float, tokens: Mapping[str, int]) -> dict[str, float]:
    """Divide one step's time between its requests, in proportion to the tokens each had computed in it.

    seconds: how long the step took. tokens: request id -> tokens in this step, at least 1 each. The shares add up to
    the step's time, so that over all steps and requests nothing is paid twice and nothing by nobody. Without requests
    there are no shares.

    >>> share_step(0.5, {"reads a prompt": 3, "writes": 1})
    {'reads a prompt': 0.375, 'writes': 0.125}
    """
    # exercise 13.11: each request's tokens out of all tokens of the step, times the step's seconds
    total = sum(tokens.values())
    return {request_id: seconds * n / total for request_id, n in tokens.items()}
    # end


def price(machine_s: float, cost_per_hour: float) -> float:
    """What so many seconds of the machine cost, in the money that the hour's price is in."""
    return machine_s * cost_per_hour / SECONDS_PER_HOUR
