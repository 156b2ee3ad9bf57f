"""A step of the engine: which tokens of which sequences go through the model together, and what is copied before."""

from dataclasses import dataclass, field

from shared.inference.sequence import Sequence


@dataclass
class Step:
    """What to compute: n tokens of each sequence, from its num_computed_tokens on, after copying blocks.

    scheduled: (sequence, n), those of `running` in their order, then the newly admitted. copies: (source, target)
    blocks, all before anything is written. preempted, admitted: who left and who came, for those who watch.
    """

    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
