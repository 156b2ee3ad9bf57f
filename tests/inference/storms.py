"""Storms: random requests on tiny pools, built to hit every edge of a scheduler, checked after every step.

The model is a hash: the next token depends on every token before it and on the answer's seed. The pool remembers, slot
by slot, which tokens the keys and values there were computed from, so that a stale, shared or overwritten block is seen
at once. Prompts come from an alphabet of two blocks, so that the same block stands after different beginnings.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from shared.inference.block_manager import BlockManager, block_name
from shared.inference.outputs import QueueFull
from shared.inference.sampling import SamplingParams
from shared.inference.scheduler import Scheduler
from shared.inference.sequence import Sequence, SequenceStatus

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING
VOCAB = 3


def next_token(token_ids: list[int], seed: int) -> int:
    return hash((*token_ids, seed)) % VOCAB


def answer(prompt: list[int], seed: int, n: int) -> list[int]:
    """The oracle: one token after the other, with nothing remembered."""
    token_ids = list(prompt)
    for _ in range(n):
        token_ids.append(next_token(token_ids, seed))
    return token_ids[len(prompt) :]


def names_of_full(token_ids: list[int], blocks: BlockManager, n: int) -> list[bytes]:
    """The names of the blocks that the first n tokens fill."""
    names, size = [blocks.root], blocks.block_size
    for start in range(0, n - size + 1, size):
        names.append(block_name(names[-1], token_ids[start : start + size]))
    return names[1:]


class Pool:
    """What was written where: in place of a token's keys and values, the tokens they depend on."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.slots: list[list[Any]] = [[None] * block_size for _ in range(num_blocks)]
        self.block_size = block_size

    def run(self, scheduled: list[tuple[Sequence, int]], copies: list[tuple[int, int]]) -> dict[Sequence, int]:
        """Compute a step: copy, write all, and only then read, as a layer does."""
        for source, target in copies:
            self.slots[target] = list(self.slots[source])
        written: dict[tuple[int, int], Sequence] = {}
        for sequence, n in scheduled:
            for p in range(sequence.num_computed_tokens, sequence.num_computed_tokens + n):
                block, offset = sequence.block_table[p // self.block_size], p % self.block_size
                assert (block, offset) not in written, "two sequences write into one slot"
                written[block, offset] = sequence
                self.slots[block][offset] = tuple(sequence.token_ids[: p + 1])
        sampled = {}
        for sequence, n in scheduled:
            end = sequence.num_computed_tokens + n
            for p in range(end):
                content = self.slots[sequence.block_table[p // self.block_size]][p % self.block_size]
                assert content == tuple(sequence.token_ids[: p + 1]), f"token {p} is attended to, and isn't there"
            if end == len(sequence.token_ids):
                for each in (sequence, *sequence.siblings):
                    sampled[each] = next_token(each.token_ids, each.params.seed)
        return sampled


def draw_prompt(rng: random.Random, block_size: int, before: list[Sequence]) -> list[int]:
    """Whole blocks of an alphabet of two, then a few tokens: often none, so that lengths lie at a block's edge."""
    kind = rng.random() if before else 1.0
    if kind < 0.2:  # an exact duplicate
        earlier = rng.choice(before)
        return earlier.token_ids[: earlier.num_prompt_tokens]
    if kind < 0.4:  # the next turn of a chat: an answer so far, and a token more
        return [*rng.choice(before).token_ids, rng.randrange(VOCAB)]
    blocks = [[0] * block_size, [1] * block_size]
    prompt = [token for _ in range(rng.randint(0, 3)) for token in rng.choice(blocks)]
    tail = [rng.randrange(VOCAB) for _ in range(rng.choice([0, 0, 1, rng.randint(1, 2 * block_size)]))]
    return prompt + tail or [0]


def storm(
    seed: int, scheduler_of: Callable[..., Any] = Scheduler, blocks_of: Callable[..., Any] = BlockManager
) -> Counter:
    """One storm, to its end. Raises AssertionError for anything that is off; returns what happened, counted."""
    rng = random.Random(seed)
    block_size, num_blocks = rng.choice([1, 2, 4]), rng.randint(5, 16)
    max_num_seqs = rng.randint(1, 5)
    budget = rng.randint(max_num_seqs, max_num_seqs + 6)
    blocks = blocks_of(num_blocks, block_size, prefix_caching=rng.random() < 0.85)
    max_waiting, ageing_s = rng.choice([3, 100]), rng.choice([0.0, 2.5])
    scheduler = scheduler_of(
        blocks, max_num_seqs, budget, max_model_len=10_000, max_waiting=max_waiting, ageing_s=ageing_s
    )
    pool, count, clock = Pool(num_blocks, block_size), Counter[str](), 0.0
    vouched: set[bytes] = set()  # the blocks behind which logits were seen
    turn: dict[Sequence, float] = {}  # what its urgency must be, from first to last
    prompts: dict[Sequence, list[int]] = {}
    everyone: list[Sequence] = []
    todo = rng.randint(3, 10)
    while todo or scheduler.running or scheduler.num_waiting:
        clock += rng.choice([0.0, 0.25, 1.0])
        count["steps"] += 1
        assert count["steps"] < 2000, "no progress"
        while todo and rng.random() < 0.6:
            todo -= 1
            prompt, n, most = draw_prompt(rng, block_size, everyone), rng.choice([1, 1, 1, 2, 4]), rng.randint(1, 9)
            if blocks.blocks_for(len(prompt) + most - 1) > num_blocks:
                continue
            priority = rng.choice([-2, 0, 0, 0, 1])
            first, *rest = [
                Sequence("", list(prompt), SamplingParams(max_tokens=most, seed=k), k, clock, priority)
                for k in range(n)
            ]
            first.siblings = rest
            full = scheduler.num_waiting + n > max_waiting + max_num_seqs - len(scheduler.running)
            try:
                scheduler.add(first)
            except QueueFull:
                assert full, "refused, and there was a place in the queue"
                count["refused"] += 1
                continue
            assert not full, "more are queued than max_waiting"
            everyone += [first, *rest]
            prompts |= dict.fromkeys([first, *rest], prompt)
            turn |= dict.fromkeys([first, *rest], clock + priority * ageing_s)
        before = list(scheduler.running)
        step = scheduler.schedule()
        check_step(scheduler, step, before, budget, turn)
        sampled = pool.run(step.scheduled, step.copies)
        live = [s for s in everyone if s.status in (RUNNING, WAITING)]
        if live and rng.random() < 0.15:  # while the step is in flight
            live.remove(gone := rng.choice(live))
            scheduler.finish(gone, SequenceStatus.ABORTED)
            assert gone.status is SequenceStatus.ABORTED, "aborted, and its status says something else"
        for sequence in sampled:
            vouched |= set(names_of_full(sequence.token_ids, blocks, len(sequence.token_ids)))
        scheduler.update(step, sampled)
        assert all(s.status in (RUNNING, WAITING) for s in live), "a sequence was ended, and nobody called finish"
        assert set(blocks._cached) <= vouched, "a block was published, and no logits vouch for what is in it"
        for sequence in sampled:
            if sequence.status is RUNNING and sequence.num_output_tokens == sequence.params.max_tokens:
                scheduler.finish(sequence)
                scheduler.finish(sequence)  # a second time nothing happens
        for sequence, prompt in prompts.items():
            assert sequence.token_ids[: sequence.num_prompt_tokens] == prompt, "its prompt isn't what it was"
        check_books(scheduler, blocks, everyone)
        assert blocks.hit_tokens <= blocks.asked_tokens, "more tokens were hit than asked for"
        count["copies"] += len(step.copies)
        count["preempted"] += len(step.preempted)
        count["hits"] += sum(sequence.cached_tokens > 0 for sequence in step.admitted)
        count["chunks"] += sum(n > 1 and sequence not in sampled for sequence, n in step.scheduled)
    assert blocks.num_free == num_blocks, "blocks leaked"
    for sequence in everyone:
        want = answer(prompts[sequence], sequence.params.seed, sequence.params.max_tokens)
        got = sequence.output_ids
        if sequence.status is SequenceStatus.FINISHED:
            assert got == want, f"storm {seed}: a wrong answer"
        else:
            assert sequence.status is SequenceStatus.ABORTED, f"storm {seed}: a sequence without an end"
            assert got == want[: len(got)], f"storm {seed}: a wrong answer, before it was aborted"
        count[sequence.status.value] += 1
        count["resumed"] += sequence.preemptions > 0
    return count


def check_step(scheduler: Any, step: Any, before: list[Sequence], budget: int, turn: dict[Sequence, float]) -> None:
    """What must hold of every step that is handed out."""
    scheduled = [sequence for sequence, _ in step.scheduled]
    assert scheduled or not (scheduler.running or scheduler.num_waiting), "there is work, and nothing is scheduled"
    assert len(set(scheduled)) == len(scheduled), "scheduled twice in one step"
    assert set(scheduled) == set(scheduler.running), "someone runs and gets no token, or gets some and doesn't run"
    assert sum(n for _, n in step.scheduled) <= budget, "more tokens than the budget"
    assert len(scheduled) <= scheduler.max_num_seqs, "more sequences than max_num_seqs"
    for sequence, n in step.scheduled:
        assert 1 <= n <= sequence.num_missing, "no token, or more than are missing"
    keys = [turn[sequence] for sequence in scheduler.running]
    assert keys == sorted(keys), "the running are not in order of urgency"
    assert not (step.preempted and step.admitted), "someone came in by another's place"
    for gone in step.preempted:
        assert gone in before, "someone was preempted who didn't run"
        assert gone.status is WAITING, "preempted, and doesn't wait"
        assert all(turn[s] <= turn[gone] for s in scheduler.running), "the wrong one was sent away"
    if not step.preempted and sum(n for _, n in step.scheduled) < budget:
        short = [s for s, n in step.scheduled if n < s.num_missing]
        assert not short, "there was budget left, and someone was short of tokens"
    if step.admitted:
        unborn = {sibling for sequence in turn for sibling in sequence.siblings}
        waiting = [key for s, key in turn.items() if s.status is WAITING and s not in unborn]
        assert all(turn[s] <= key for s in step.admitted for key in waiting), "someone was overtaken"


def check_books(scheduler: Any, blocks: BlockManager, everyone: list[Sequence]) -> None:
    """What must hold between steps: every block and every sequence is where the books say."""
    blocks.check([sequence.block_table for sequence in everyone])
    for sequence in everyone:
        running = sequence.status is RUNNING
        assert running == (sequence in scheduler.running), "its status and the list of the running don't agree"
        assert running or not sequence.block_table, "holds blocks and doesn't run"
        if running:
            assert sequence.num_missing >= 1, "runs and misses nothing"
            assert len(set(sequence.block_table)) == len(sequence.block_table), "a block twice in one table"
            need = blocks.blocks_for(sequence.num_computed_tokens)
            assert len(sequence.block_table) >= need, "fewer blocks than its computed tokens take"
            full = names_of_full(sequence.token_ids, blocks, sequence.num_computed_tokens)
            assert sequence.block_names == full[: len(sequence.block_names)], "the names are not its blocks'"
        assert sequence.cached_tokens < len(sequence.token_ids), "all of it was found, and nothing is left to compute"
    queued = Counter(sequence for *_, sequence in scheduler._heap if sequence.status is WAITING)
    unborn = {s for parent in everyone for s in parent.siblings}
    for sequence in everyone:
        if sequence.status is WAITING:
            want = 0 if sequence in unborn else 1
            assert queued[sequence] == want, f"it waits, {queued[sequence]} times in the queue in place of {want}"
    assert scheduler.num_waiting == sum(sequence.status is WAITING for sequence in everyone), (
        "the queue's length is off"
    )
