"""The scheduler under storms, its refusals, its fairness, and what a step costs with ten thousand in the queue."""

import sys
import time
from collections import Counter
from itertools import count

import pytest

from shared.inference.block_manager import BlockManager
from shared.inference.outputs import QueueFull
from shared.inference.sampling import SamplingParams
from shared.inference.scheduler import NeverFits, Scheduler
from shared.inference.sequence import Sequence, SequenceStatus
from tests.inference.storms import storm

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING


def new_scheduler(num_blocks=100, block_size=4, **settings) -> Scheduler:
    return Scheduler(
        BlockManager(num_blocks, block_size), **({"max_num_seqs": 4, "max_num_batched_tokens": 16} | settings)
    )


def new_sequence(n_prompt=4, max_tokens=4, arrived=0.0, priority=0, first=0) -> Sequence:
    prompt = list(range(first, first + n_prompt))
    return Sequence("r", prompt, SamplingParams(max_tokens=max_tokens), arrived=arrived, priority=priority)


def step(scheduler: Scheduler) -> list[tuple[Sequence, int]]:
    """Schedule, pretend to compute, update, and end whoever is done."""
    handed = scheduler.schedule()
    sampled = {s: 1 for s, n in handed.scheduled if n == s.num_missing for s in (s, *s.siblings)}
    scheduler.update(handed, sampled)
    for sequence in sampled:
        if sequence.status is RUNNING and sequence.num_output_tokens == sequence.params.max_tokens:
            scheduler.finish(sequence)
    return handed.scheduled


def test_storms():
    seen = Counter()
    for seed in range(600):
        try:
            seen += storm(seed)
        except AssertionError as error:
            error.add_note(f"storm {seed}")
            raise
    least = {"finished": 3000, "aborted": 1000, "preempted": 500, "resumed": 500, "hits": 1000, "copies": 100}
    assert all(seen[what] >= n for what, n in (least | {"chunks": 500}).items()), seen  # else they test nothing


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens", "words"),
    [
        (30, 20, "30 prompt tokens and max_tokens 20 make 50; max_model_len is 40"),
        (20, 14, "take 9 blocks of 4 tokens, and the pool has 8"),
    ],
)
def test_what_can_never_run_is_refused(n_prompt, max_tokens, words):
    scheduler = new_scheduler(num_blocks=8, max_model_len=40)
    with pytest.raises(NeverFits, match=words):
        scheduler.add(new_sequence(n_prompt, max_tokens))
    assert scheduler.num_waiting == 0


def test_what_just_fits_is_served():
    scheduler = new_scheduler(num_blocks=8, max_model_len=40)
    sequence = new_sequence(20, 13)  # 33 tokens, of which the last is never computed: 32 in 8 blocks of 4
    scheduler.add(sequence)
    for _ in range(40):
        step(scheduler)
    assert sequence.status is SequenceStatus.FINISHED
    assert sequence.num_output_tokens == 13


def test_more_answers_than_places_for_ever_are_refused():
    scheduler = new_scheduler(max_num_seqs=2, max_waiting=1)
    sequence = new_sequence()
    sequence.siblings = [new_sequence() for _ in range(3)]
    with pytest.raises(NeverFits, match="n: 4 answers"):
        scheduler.add(sequence)


def test_the_queue_has_a_bound():
    scheduler = new_scheduler(max_num_seqs=2, max_waiting=3)
    for _ in range(5):  # two have a free place, three wait
        scheduler.add(new_sequence())
    with pytest.raises(QueueFull):
        scheduler.add(new_sequence())
    step(scheduler)
    assert (len(scheduler.running), scheduler.num_waiting) == (2, 3)
    with pytest.raises(QueueFull):
        scheduler.add(new_sequence())
    assert scheduler.num_waiting == 3


def test_settings_that_make_no_sense():
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(3\) must be at least max_num_seqs \(4\)"):
        new_scheduler(max_num_batched_tokens=3)
    with pytest.raises(ValueError, match="at least 1"):
        new_scheduler(max_num_seqs=0)
    for settings in ({"max_waiting": -1}, {"ageing_s": -1.0}, {"ageing_s": float("inf")}, {"ageing_s": float("nan")}):
        with pytest.raises(ValueError, match="max_waiting and ageing_s"):
            new_scheduler(**settings)


def test_a_long_prompt_starves_no_stream():
    scheduler = new_scheduler(num_blocks=200, max_num_batched_tokens=8)
    streams = [new_sequence(2, 60, arrived=5.0, first=100 * k) for k in range(3)]
    for stream in streams:
        scheduler.add(stream)
    step(scheduler)
    scheduler.add(new_sequence(200, 1, arrived=0.0, priority=-5, first=1000))  # more urgent than all of them
    for _ in range(40):
        before = [stream.num_output_tokens for stream in streams]
        scheduled = dict(step(scheduler))
        assert all(scheduled[stream] == 1 for stream in streams)
        assert [s.num_output_tokens for s in streams] == [n + 1 for n in before]


def test_nobody_waits_for_ever():
    """One place, and a more urgent request with every step: whoever waits long enough has his turn."""
    scheduler = new_scheduler(max_num_seqs=1, ageing_s=10.0, max_waiting=10_000)
    patient = new_sequence(2, 1, arrived=0.0, priority=1)
    scheduler.add(patient)
    for now in count(1):
        scheduler.add(new_sequence(2, 1, arrived=float(now), first=10 * now))
        step(scheduler)
        if patient.status is SequenceStatus.FINISHED:
            break
        assert now < 20
    assert now >= 9  # and not before: one unit of priority is worth ten seconds


def test_the_more_urgent_goes_first():
    scheduler = new_scheduler(max_num_seqs=1)
    late, soon = new_sequence(priority=1), new_sequence(arrived=3.0, first=50)
    scheduler.add(late)
    scheduler.add(soon)
    assert [s for s, _ in step(scheduler)] == [soon]


def test_equally_urgent_ones_go_in_their_order():
    scheduler = new_scheduler(max_num_seqs=1)
    sequences = [new_sequence(2, 1, first=10 * k) for k in range(5)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert [step(scheduler)[0][0] for _ in sequences] == sequences


def test_the_head_of_the_queue_is_not_overtaken():
    """A prompt too long for the blocks that are free is not passed by short ones, or it would wait for ever."""
    scheduler = new_scheduler(num_blocks=10, max_num_batched_tokens=64)
    scheduler.add(new_sequence(16, 8))
    step(scheduler)
    long, short = new_sequence(28, 1, arrived=1.0, first=100), new_sequence(2, 1, arrived=2.0, first=200)
    scheduler.add(long)
    scheduler.add(short)
    while long.status is WAITING:
        assert short.status is WAITING
        step(scheduler)


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_prompt_that_is_cached_to_its_last_block(length):
    """A multiple of the block size, known to the last token: one token at least is computed."""
    scheduler = new_scheduler()
    for _ in range(2):
        scheduler.add(new_sequence(length, 2))
        first = step(scheduler)
        step(scheduler)
    [(sequence, n)] = first
    assert (sequence.cached_tokens, n) == (length - 4, 4)
    assert sequence.status is SequenceStatus.FINISHED


def test_a_preempted_sequence_finds_its_own_blocks_again():
    scheduler = new_scheduler(num_blocks=6, max_num_seqs=2)
    a, b = new_sequence(7, 12), new_sequence(7, 12, arrived=1.0, first=50)
    scheduler.add(a)
    scheduler.add(b)
    for _ in range(60):
        step(scheduler)
    assert b.preemptions >= 1
    assert b.cached_tokens > 0, "its first blocks were free, and nobody had needed them"
    assert (a.num_output_tokens, b.num_output_tokens) == (12, 12)
    assert a.preemptions == 0, "the more urgent one goes on"


# What a step costs. Calls are counted, which is exact; times are compared by wide ratios.


def decoding(n_running: int, n_waiting: int, n_finished: int = 0) -> Scheduler:
    blocks = BlockManager(40 * (n_running + 1), 16)
    scheduler = Scheduler(blocks, n_running, max(256, n_running), max_waiting=20_000)
    for k in range(n_finished):
        scheduler.add(new_sequence(2, 1, first=10_000 + 10 * k))
        step(scheduler)
    for k in range(n_running + n_waiting):
        scheduler.add(new_sequence(3, 500, arrived=1.0 + k, first=10 * k))
    for _ in range(3):
        step(scheduler)
    assert len(scheduler.running) == n_running
    assert scheduler.num_waiting == n_waiting
    return scheduler


def calls(scheduler: Scheduler) -> int:
    """How many functions, Python's and C's, one decode step calls."""
    made = 0

    def watch(frame, event, arg):
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        step(scheduler)
    finally:
        sys.setprofile(None)
    return made


def seconds(scheduler: Scheduler) -> float:
    best = float("inf")
    for _ in range(30):
        start = time.process_time()
        for _ in range(3):
            step(scheduler)
        best = min(best, time.process_time() - start)
    return best


def test_ten_thousand_who_wait_cost_nothing():
    few, many = decoding(8, 10), decoding(8, 10_000)
    assert calls(many) == calls(few)
    assert seconds(many) < 3 * seconds(few)


def test_ten_thousand_who_are_finished_cost_nothing():
    new, old = decoding(8, 0), decoding(8, 0, n_finished=2000)
    assert calls(old) == calls(new)
    assert seconds(old) < 3 * seconds(new)


def test_a_step_is_linear_in_those_who_run():
    small, large = calls(decoding(16, 0)), calls(decoding(64, 0))
    assert large < 4.2 * small, "four times as many run"


def test_a_step_does_not_look_at_old_tokens():
    """The hundredth token of a long answer costs what the first did: nothing is copied, hashed or counted anew."""
    scheduler = decoding(8, 0)
    early = min(calls(scheduler) for _ in range(16))
    for _ in range(400):
        step(scheduler)
    assert min(calls(scheduler) for _ in range(16)) == early


def test_leaving_the_queue_is_cheap():
    scheduler = new_scheduler(max_waiting=20_000)
    waiting = [new_sequence(arrived=float(k), first=10 * k) for k in range(10_000)]
    for sequence in waiting:
        scheduler.add(sequence)
    start = time.process_time()
    for sequence in reversed(waiting):
        scheduler.finish(sequence, SequenceStatus.ABORTED)
    assert time.process_time() - start < 1.0  # a search of the queue for each would take half a minute
    assert scheduler.num_waiting == 0
    assert not scheduler.schedule().scheduled


def test_those_who_left_the_queue_are_forgotten():
    """Somebody more urgent always waits, so they never come up; and a request is long."""
    scheduler = new_scheduler(max_num_seqs=1, max_waiting=10)
    for k in range(3):
        scheduler.add(new_sequence(2, 300, first=10 * k))
    step(scheduler)
    for _ in range(300):
        late = new_sequence(100, priority=5)
        scheduler.add(late)
        scheduler.finish(late, SequenceStatus.ABORTED)
        assert len(scheduler._heap) <= 2 * (scheduler.num_waiting + 1) + 1
    assert scheduler.num_waiting == 2
