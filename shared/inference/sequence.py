"""One answer in the making: its tokens, how many of them are computed, and the blocks that hold those."""

from dataclasses import dataclass, field
from enum import Enum

from shared.inference.answer_text import AnswerText
from shared.inference.sampling import SamplingParams


class SequenceStatus(Enum):
    """Where a sequence is. One that was preempted is WAITING again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(eq=False)
class Sequence:
    """One answer in the making. token_ids: the prompt, then what was sampled.

    num_computed_tokens: the keys and values of so many of them, from the first on, are in the pool; sampled tokens
    are not, until the step after. arrived: in seconds. priority: lower goes first. siblings: other answers to the same
    prompt that have not begun; they will share its blocks. cached_tokens: how many the prefix cache spared it when it
    was last admitted; after a preemption those are mostly its own.
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    index: int = 0  # of the request's n answers
    arrived: float = 0.0
    priority: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    block_names: list[bytes] = field(default_factory=list)  # of its full blocks, as the prefix cache knows them
    siblings: list["Sequence"] = field(default_factory=list)
    cached_tokens: int = 0
    preemptions: int = 0
    text: AnswerText | None = None  # the engine gives it one

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_missing(self) -> int:
        """Tokens that are known and not computed. A sequence that lacks one is decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far, whether they are computed or not."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        """A copy of what was sampled so far."""
        return self.token_ids[self.num_prompt_tokens :]
