"""Scenes set by hand: a scheduler of the reader's in exactly the state a test speaks of."""

from collections.abc import Iterator
from contextlib import contextmanager

from chapters import Todo
from chapters.ch12_engine import scheduler as own
from chapters.judge import Rejected, expect
from shared.inference.block_manager import BlockManager
from shared.inference.sampling import SamplingParams
from shared.inference.sequence import Sequence, SequenceStatus

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING
FINISHED, ABORTED = SequenceStatus.FINISHED, SequenceStatus.ABORTED


def new_sequence(name: str, tokens: int | list[int] = 3, arrived: float = 0.0, priority: int = 0) -> Sequence:
    """tokens: the prompt, or how long a prompt of its own is to be."""
    ids = [ord(name) * 100 + i for i in range(tokens)] if isinstance(tokens, int) else list(tokens)
    return Sequence(name, ids, SamplingParams(max_tokens=8), arrived=arrived, priority=priority)


def new_scheduler(num_blocks: int = 20, block_size: int = 4, **settings) -> own.Scheduler:
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 16} | settings
    return own.Scheduler(BlockManager(num_blocks, block_size), **settings)


def run(
    scheduler: own.Scheduler, sequence: Sequence, computed: int | None = None, n_blocks: int | None = None
) -> Sequence:
    """It runs: the last in order, with so many tokens computed (all but one), and blocks for all its tokens."""
    tokens = len(sequence.token_ids)
    sequence.num_computed_tokens = tokens - 1 if computed is None else computed
    sequence.block_table = scheduler.blocks.take(scheduler.blocks.blocks_for(tokens) if n_blocks is None else n_blocks)
    sequence.status = RUNNING
    scheduler.running.append(sequence)
    return sequence


def wait(scheduler: own.Scheduler, sequence: Sequence) -> Sequence:
    """It waits, in the heap."""
    scheduler.num_waiting += 1
    scheduler._enqueue(sequence)
    return sequence


def names(sequences: list) -> list[str]:
    for each in sequences:
        expect(isinstance(each, Sequence), because=f"sequences themselves belong there, and this is {each!r}")
    return [sequence.request_id for sequence in sequences]


def queued(scheduler: own.Scheduler) -> list[str]:
    """Who stands in the queue and waits, in the order in which they would come up. Rejects a heap that is none."""
    entries = [entry[:2] for entry in scheduler._heap]
    expect(
        all(entries[(place - 1) // 2] <= entries[place] for place in range(1, len(entries))),
        because="the heap isn't one any more: whoever comes up next isn't the most urgent. `heapq` keeps it in order, "
        "with heappush (`_enqueue`) and heappop; a list's append, pop and remove don't",
    )
    return names([entry[2] for entry in sorted(scheduler._heap, key=lambda e: e[:2]) if entry[2].status is WAITING])


def given(step: own.Step) -> list[tuple[str, int]]:
    """What a step hands out, by name."""
    return [(sequence.request_id, n) for sequence, n in step.scheduled]


@contextmanager
def survives(because: str) -> Iterator[None]:
    """Reject what raises in the block: the right answer doesn't."""
    try:
        yield
    except (Todo, Rejected):
        raise
    except Exception as error:
        raise Rejected(f"it raised {type(error).__name__}: {error}", because) from error
