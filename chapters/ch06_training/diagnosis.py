# Yours to finish. Generated from shared/training/diagnosis.py (version 67916890d598).
"""Why a loss does not fall: from the signs a run leaves behind to the likely cause."""

from chapters import Todo
import math
from dataclasses import dataclass, field
from statistics import fmean, median

HIGH = "learning rate too high"
LOW = "learning rate too low"
VANISHING = "vanishing initialisation"
CLIPPED = "clipped to death"
LABELS = "labels off by one"
ORDER = "not shuffled"
GARBAGE = "garbage in the data"
HEALTHY = "healthy"


@dataclass
class Signs:
    """What a run shows. All losses are in nats a token.

    losses, grad_norms (before clipping): one a step. max_norm: what gradients were clipped to.
    ahead_losses: on text never trained on, at the end, for the token itself, the next, and the one after that, by code
    that shares nothing with the training's: the second is the validation loss.
    sample_losses: of single training windows, at the end.
    """

    vocab_size: int
    max_norm: float
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    ahead_losses: list[float] = field(default_factory=list)
    sample_losses: list[float] = field(default_factory=list)

    @property
    def ignorance(self) -> float:
        """The loss of a model that holds all tokens for equally likely: ln(vocab_size). Every run starts near it."""
        return math.log(self.vocab_size)

    @property
    def end(self) -> float:
        """Mean loss of the last tenth of the steps."""
        return fmean(self.losses[-max(1, len(self.losses) // 10) :])

    @property
    def rise(self) -> float:
        """How far the loss has climbed above its lowest, averaged over tens of steps: single steps are noise."""
        tens = [fmean(self.losses[i : i + 10]) for i in range(0, len(self.losses), 10)]
        return max((now - min(tens[: i + 1]) for i, now in enumerate(tens)), default=0.0)


def diagnose(signs: Signs) -> str:
    """The likely cause, one of the names above. The order matters: each sign means something once those before it are
    ruled out.

    HIGH       any of the losses is not a finite number, or is above twice ignorance
    then, if the run has learnt nothing (signs.end is not at least 0.5 below ignorance):
    VANISHING  the median gradient is shorter than 1e-3: nothing tells the weights where to go
    CLIPPED    the median gradient is more than 100 times max_norm: nearly nothing of it is left
    LOW        neither: the directions are there, and the steps are too small
    and if it has learnt something:
    LABELS     of ahead_losses the smallest is not that of the next token: it has learnt another task
    ORDER      signs.rise is more than 1: what it had learnt last was of no use for what came next
    GARBAGE    at least 1% of the sample_losses are above 0.95 of ignorance: there is nothing to learn in those
    HEALTHY    none of these
    """
    # exercise 6.10: go through the table from top to bottom and return the first that fits
    #   given: signs.ignorance, signs.end, signs.rise; median() and math.isfinite()
    raise Todo("6.10")
    # end
