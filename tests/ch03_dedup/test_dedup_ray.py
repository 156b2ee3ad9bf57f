"""On Ray Data the same documents are kept as in memory. Skipped where Ray isn't installed."""

import random

import pytest

from shared.data.duplicates import near_duplicates

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ray[data]'")
pytest.importorskip("ray.data", reason="needs Ray Data: pip install 'ray[data]'")


@pytest.fixture(scope="module")
def local_ray():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def test_the_same_documents_stay(local_ray):
    from shared.data.dedup_ray import deduplicate

    rng = random.Random(0)
    texts = ["", "one", "one ", " "]
    for _ in range(300):
        if rng.random() < 0.4:
            words = rng.choice(texts[4:] or ["a b c"]).split()
            words[-1:] = [] if rng.random() < 0.3 else [f"new{rng.randrange(9)}"]
            texts.append(" ".join(words))
        else:
            texts.append(" ".join(f"w{rng.randrange(5000)}" for _ in range(rng.randrange(6, 60))))
    documents = [{"id": i, "text": text} for i, text in enumerate(texts)]
    rng.shuffle(documents)
    stay = deduplicate(ray.data.from_items(documents).repartition(3), 0.8, shards=4)
    want = [i for i, kept in enumerate(near_duplicates(texts, 0.8).kept) if i == kept]
    assert sorted(row["id"] for row in stay.take_all()) == want
    assert 100 < len(want) < len(texts) - 20
    apart = ray.data.from_items([{"id": i, "text": f"{i} " * 9} for i in range(5)])
    assert sorted(row["id"] for row in deduplicate(apart, shards=2).take_all()) == [0, 1, 2, 3, 4]


def test_the_threshold_is_checked():
    from shared.data.dedup_ray import deduplicate

    with pytest.raises(ValueError, match="threshold"):
        deduplicate(None, 0)
