# Yours to finish. Generated from shared/inference/scheduler.py (version c3451ed7972b).
"""Continuous batching: which tokens of which sequences are computed in the next step.

One rule instead of two phases (after Orca, Yu et al. 2022, and vLLM's scheduler): a sequence is its tokens and how many
of them are computed, and each step hands out `min(what is missing, what is left of the budget)`. Decoding is the case
where one token is missing. Long prompts in pieces, prefix hits, and coming back after a preemption follow from it.
"""

from chapters import Todo
import bisect
import heapq
import math
from collections.abc import Mapping
from itertools import count

from shared.inference.block_manager import BlockManager
from shared.inference.outputs import QueueFull
from shared.inference.sequence import Sequence, SequenceStatus
from shared.inference.step import Step

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING


class NeverFits(ValueError):
    """The request needs more than there is even when it has the machine to itself; waiting wouldn't help."""


class Scheduler:
    """Who runs and who waits. Every method is called between steps; nothing here computes.

    max_num_seqs: at most so many run at once. max_num_batched_tokens: the budget of tokens a step. max_model_len: the
    most tokens of prompt and answer together. max_waiting: so many may wait beyond those there is a free place for.
    ageing_s: one unit of priority weighs as much as so many seconds of waiting.
    """

    def __init__(
        self,
        blocks: BlockManager,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 256,
        max_model_len: int = 2048,
        max_waiting: int = 1024,
        ageing_s: float = 10.0,
    ) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}), "
                "and that at least 1: every running sequence needs a token of each step"
            )
        if max_waiting < 0 or not 0 <= ageing_s < math.inf:  # infinity times a priority of 0 is no number
            raise ValueError(f"max_waiting and ageing_s must be finite, at least 0, not {max_waiting} and {ageing_s}")
        self.blocks, self.max_num_seqs, self.max_num_batched_tokens = blocks, max_num_seqs, max_num_batched_tokens
        self.max_model_len, self.max_waiting, self.ageing_s = max_model_len, max_waiting, ageing_s
        self.running: list[Sequence] = []  # the most urgent first
        self.num_waiting = 0
        self._heap: list[tuple[float, int, Sequence]] = []  # who waits; some who left stay until they come up
        self._ticket = count()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence and its siblings. Raises NeverFits, and QueueFull; nothing is queued then."""
        n = 1 + len(sequence.siblings)
        self.check_fits(sequence.num_prompt_tokens, sequence.params.max_tokens, n)
        if self.num_waiting + n > self.max_waiting + self.max_num_seqs - len(self.running):
            raise QueueFull
        self._enqueue(sequence)
        self.num_waiting += n

    def anew(self) -> "Scheduler":
        """Another with the same limits and as many blocks: nobody runs or waits, and nothing is cached."""
        limits = self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len, self.max_waiting, self.ageing_s
        blocks = BlockManager(self.blocks.num_blocks, self.blocks.block_size, "", self.blocks.prefix_caching)
        blocks.root = self.blocks.root
        return type(self)(blocks, *limits)

    def check_fits(self, n_prompt: int, max_tokens: int, n: int = 1) -> None:
        """Raise NeverFits, with the numbers, for what couldn't run even if it had everything to itself."""
        most, blocks, what = self.max_waiting + self.max_num_seqs, self.blocks, "prompt tokens and max_tokens"
        if n > most:
            raise NeverFits(f"n: {n} answers to one prompt, and at most {most} may run and wait together")
        total = n_prompt + max_tokens
        if total > self.max_model_len:
            raise NeverFits(f"{n_prompt} {what} {max_tokens} make {total}; max_model_len is {self.max_model_len}")
        need = blocks.blocks_for(total - 1)  # the last token is sampled and never computed
        if need > blocks.num_blocks:
            raise NeverFits(
                f"{n_prompt} {what} {max_tokens} take {need} blocks of {blocks.block_size} tokens, and the pool has "
                f"{blocks.num_blocks}; ask for fewer, or give the engine more memory for keys and values"
            )

    def urgency(self, sequence: Sequence) -> float:
        """Lower is sooner: when it arrived, and `ageing_s` later for each unit of its priority.

        Whoever waits gains on all who come later, so nobody waits for ever; and as all who wait age alike, their order
        never changes, and a heap can hold them. It doesn't depend on what time it is.

        >>> Scheduler(blocks, ageing_s=10).urgency(Sequence("a", [5], params, arrived=100.0, priority=2))
        120.0
        """
        # exercise 12.1: in seconds: the arrival, and what the priority weighs
        raise Todo("12.1")
        # end

    def schedule(self) -> Step:
        """Hand out the budget: to the running, then to those who can be admitted with what is left."""
        step = Step()
        budget = self._schedule_running(step)
        if not step.preempted:  # whoever came in now would take the place of one who was just sent away
            self._schedule_waiting(step, budget)
        return step

    def _schedule_running(self, step: Step) -> int:
        """Give each running sequence, the most urgent first, what it misses, and return what is left of the budget.

        One token is kept back for each that is still to come, so that no prompt, however long and urgent, makes a
        stream stand still. A sequence for which no room can be made is preempted, and gets nothing.
        """
        # exercise 12.2: for each: n, the smaller of what it misses and what it may have; room; an entry in the step
        #   self._make_room(sequence, n, step) says whether it may go on; it may shorten self.running, at its end
        raise Todo("12.2")
        # end

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        """Admit those who wait, in order, as long as there is a place, a budget, and blocks for the first of them."""
        while budget and len(self.running) < self.max_num_seqs:
            sequence = self._first_waiting()
            if sequence is None or not self._admit(sequence):
                return  # nobody overtakes the first: a long prompt would wait for ever
            n = min(sequence.num_missing, budget)
            step.scheduled.append((sequence, n))
            step.admitted.append(sequence)
            budget -= n

    def _admit(self, sequence: Sequence) -> bool:
        """Start the first who waits, if there are blocks for all the tokens it has. False, and nothing taken, if not.

        Its table begins with the blocks of the longest known beginning, shared, and goes on with new ones; what those
        shared blocks hold is computed already. It leaves the heap and joins the running (`_run`).
        """
        blocks = self.blocks
        # exercise 12.3: match; count the blocks it needs and those it takes from the free list; share, take, enter all
        #   in a sequence: block_table, block_names, num_computed_tokens, cached_tokens; and one fewer waits
        raise Todo("12.3")
        # end

    def _preempt(self, victim: Sequence) -> None:
        """Take a running sequence's blocks and queue it again. It keeps its tokens, those it sampled too: on its return
        it is a sequence with all of them missing, and they are computed anew, or found in the prefix cache."""
        # exercise 12.4: out of running; blocks released; nothing computed, no names; WAITING, counted, enqueued
        raise Todo("12.4")
        # end

    def _make_room(self, sequence: Sequence, n: int, step: Step) -> bool:
        """See that n more tokens have blocks. While there are too few, the least urgent of the running is preempted
        and entered in step.preempted; if that is this sequence itself, it can't go on now, and the answer is False."""
        # exercise 12.5: as long as self._grow(sequence, n, step) fails: preempt the last of self.running
        raise Todo("12.5")
        # end

    def _grow(self, sequence: Sequence, n: int, step: Step) -> bool:
        """Take the blocks for n more tokens. False, and nothing taken, when there are too few."""
        blocks, table = self.blocks, sequence.block_table
        first = sequence.num_computed_tokens // blocks.block_size  # the block that is written first; others are new
        shared = first < len(table) and blocks.ref_counts[table[first]] > 1
        more = max(blocks.blocks_for(sequence.num_computed_tokens + n) - len(table), 0)
        if shared + more > blocks.num_free:
            return False
        if shared and (copy := blocks.writable(table, first)) is not None:
            step.copies.append(copy)
        if more:
            table += blocks.take(more)
        return True

    def _start_siblings(self, parent: Sequence) -> list[Sequence]:
        """The parent's prompt is computed: its other answers start from there. Returns those that do.

        A sibling shares all of the parent's blocks, the last one too, though it's half empty: whoever writes first
        gets a copy (`_grow`). Without a free place it waits in the queue like others; ended ones are left out.
        """
        # exercise 12.6: for each sibling that WAITS: a place among the running, or the queue; then the parent has none
        #   a place: the table, shared; the names, a list of its own; as much computed as the parent; one fewer waits
        raise Todo("12.6")
        # end

    def update(self, step: Step, sampled: Mapping[Sequence, int]) -> None:
        """Enter what a step computed: its tokens count as computed; where none is missing any more, full blocks are
        published and the sampled token is appended, for siblings that start there too.

        sampled: the next token of each sequence that has none missing now, and of its siblings. A sequence that ended
        while the step ran is passed over: its blocks are somebody else's by now. Blocks of an unfinished prompt are
        not published yet: only logits show that what was computed before them is sound.
        """
        # exercise 12.7: for each (sequence, n) that is still RUNNING: computed; and if none is missing, the rest
        raise Todo("12.7")
        # end

    def finish(self, sequence: Sequence, status: SequenceStatus = SequenceStatus.FINISHED) -> None:
        """End a sequence, running or waiting; a second time nothing happens. What it held is free at once.

        One that waits stays in the heap, where a search for it would take long, until it comes up (`_first_waiting`) or
        many have left (`_enqueue`). Siblings that wait for its prompt are queued: nobody computes it for them any more.
        """
        # exercise 12.8: RUNNING or WAITING, or else nothing; its status; its siblings
        raise Todo("12.8")
        # end

    def _run(self, sequence: Sequence) -> None:
        """Put it among the running, behind all that are as urgent."""
        sequence.status = RUNNING
        bisect.insort(self.running, sequence, key=self.urgency)

    def _enqueue(self, sequence: Sequence) -> None:
        if len(self._heap) > 2 * self.num_waiting:  # more than half have left; those may have been long, and many
            self._heap = [entry for entry in self._heap if entry[2].status is WAITING]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (self.urgency(sequence), next(self._ticket), sequence))

    def _first_waiting(self) -> Sequence | None:
        while self._heap and self._heap[0][2].status is not WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None
