"""What a new engine has to be asked for, after the one before it has died: so that no token is lost and none doubled.

A token's draw depends on the seed and its position alone, so whoever has the prompt and the tokens so far can go on as
if nothing had been. The API process has both: it sends the tokens on to the caller.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shared.inference.sampling import SamplingParams

R = TypeVar("R", bound="Open")

SUSPICIOUS, MAX_DEATHS = 2, 4  # in a row, without a token between them


@dataclass(eq=False)
class Open:
    """A request that was sent to an engine and isn't answered in full.

    outputs: for each of its n answers the tokens that have arrived; ended: the answers that are complete. deaths: how
    many engines died on it since its last token.
    """

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0
    outputs: list[list[int]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    deaths: int = 0

    def __post_init__(self) -> None:
        self.outputs = self.outputs or [[] for _ in range(self.params.n)]
        if len(self.outputs) != self.params.n:
            raise ValueError(
                f"outputs must have a list for each of the {self.params.n} answers, not {len(self.outputs)}"
            )

    def on_output(self, index: int, token_ids: Sequence[int], finished: bool) -> None:
        """Tokens of an answer have arrived."""
        self.outputs[index].extend(token_ids)
        self.deaths = 0
        if finished:
            self.ended.add(index)

    def on_death(self) -> None:
        """The engine that had this request has died."""
        self.deaths += 1


@dataclass(frozen=True)
class Resubmission:
    """One answer, to be gone on with behind output_ids. index: which of the request's answers it is."""

    request_id: str
    prompt_ids: list[int]
    output_ids: list[int]
    params: SamplingParams
    index: int
    priority: int


def resubmissions(request: Open) -> list[Resubmission]:
    """What a new engine is asked for: each answer that hasn't ended, on its own, in order of the indices.

    The prompt stays the prompt and what was made of the answer goes with it as output_ids: max_tokens counts those too,
    so it stays as it is. The k-th of n answers draws with seed + k. Its request id is that of the request, and behind
    it "/" and k. The lists are copies: they stay as they are when more tokens come.
    """
    # exercise 14.11: for each index that hasn't ended: the prompt, its outputs, and the params of one answer
    return [
        Resubmission(
            f"{request.request_id}/{index}",
            list(request.prompt_ids),
            list(output_ids),
            replace(request.params, n=1, seed=request.params.seed + index),
            index,
            request.priority,
        )
        for index, output_ids in enumerate(request.outputs)
        if index not in request.ended
    ]
    # end


def sort_out(requests: Iterable[R]) -> tuple[list[R], list[R], list[R]]:
    """After a death: which requests go to the new engine at once, which are held back, and which have failed.

    Some request may be what kills engines. Each one that an engine had when it died is under suspicion, more so with
    each death in a row; a token clears it. After SUSPICIOUS deaths it goes to the new engine alone, the most suspicious
    first, and the others are held until it has its next token or has failed. So a request that fails was alone with two
    engines that died: one may have been killed by something else in just that moment.

    What this doesn't catch: a request that gets a token from each engine before it kills it, as one does that grows
    until memory runs out. Its deaths never add up, so nobody is held back and nobody fails here; the engine is
    restarted until RestartPolicy gives up, and then all fail. Were deaths counted without the token between, a long
    answer would fail for engines that others killed. Limits on a request's length and memory are what stops it.
    """
    requests = list(requests)
    failed = [request for request in requests if request.deaths >= MAX_DEATHS]
    alive = [request for request in requests if request.deaths < MAX_DEATHS]
    suspect = max(alive, key=lambda request: request.deaths, default=None)
    if suspect is None or suspect.deaths < SUSPICIOUS:
        return alive, [], failed
    return [suspect], [request for request in alive if request is not suspect], failed
