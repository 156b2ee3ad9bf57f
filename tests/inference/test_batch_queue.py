"""The batcher's queue and its policy: wrong fields are named, windows are a bucket's own, who leaves is gone."""

import pytest

from shared.inference.batch_queue import BatchPolicy, BatchQueue
from tests.inference.batcher_scenes import POLICY


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch_size": 0},
        {"max_batch_size": 2.5},
        {"max_waiting": 0},
        {"max_wait_s": -1},
        {"max_wait_s": float("nan")},
        {"max_wait_s": None},
        {"max_wait_s": "1"},
        {"max_wait_s": True},
        {"adaptive": "no"},
        {"edges": None},
        {"edges": 5},
        {"edges": [8, 16]},
        {"edges": ("a", "b")},
        {"edges": (1.5,)},
        {"edges": (-3, 4)},
        {"long_from": None},
        {"long_from": "x"},
        {"edges": (8, 8)},
        {"edges": (9, 8)},
        {"long_from": 0},
    ],
)
def test_a_policy_names_the_wrong_field(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BatchPolicy(**wrong)


def test_an_adaptive_window_looks_at_its_own_bucket():
    """Eight alone in eight buckets, batches of eight: nobody's batch has begun to fill, and all windows are whole."""
    queue = BatchQueue(BatchPolicy(8, 1.0, adaptive=True, edges=(1, 2, 3, 4, 5, 6, 7)))

    class One:
        def __init__(self, length):
            self.arrived, self.length = 0.0, length

    for length in range(1, 9):
        queue.add(One(length))
    assert queue.due_at() == 1.0
    queue.add(One(3))
    assert queue.due_at() == pytest.approx(6 / 7)


def test_discarding_from_the_queue():
    queue = BatchQueue(POLICY)

    class One:
        arrived, length = 0.0, 1

    one, other = One(), One()
    queue.add(one)
    assert not queue.discard(other)
    assert queue.discard(one)
    assert not queue.discard(one)
    assert queue.due_at() is None
    queue.add(one)
    assert queue.clear() == [one]
    assert len(queue) == 0
