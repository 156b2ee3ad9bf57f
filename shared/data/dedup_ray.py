"""The same deduplication on Ray Data, for a corpus beyond one machine: the same functions, in other hands.

Texts and signatures stay spread over the cluster, and meet only those they share a band or a cluster with. What comes
together in one place are numbers: two for each pair that is worth comparing, one for each document that goes.
Needs Ray: pip install 'ray[data]'
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from ray.data import Dataset

from shared.data.duplicates import THRESHOLD, fingerprint, likely
from shared.data.lsh import band_keys, bucket_pairs, check_threshold, choose_bands, join, roots, verify
from shared.data.minhash import NUM_PERM, signatures
from shared.data.shingles import NGRAM, Array, shingles

SHARDS = 64  # parts into which texts are dealt out so that those that have to meet are in the same part
Batch = dict[str, Any]


def deduplicate(
    documents: Dataset, threshold: float = THRESHOLD, num_perm: int = NUM_PERM, ngram: int = NGRAM, shards: int = SHARDS
) -> Dataset:
    """The documents without duplicates of earlier ones, the same that shared.data.dedup keeps.

    documents: a column "text", and a column "id" of whole numbers that differ; the smaller is the earlier.  shards: a
    few for each processor.  Raises ValueError unless 0 < threshold <= 1.

    >>> documents = ray.data.from_items([{"id": 0, "text": "a b"}, {"id": 1, "text": "c"}, {"id": 2, "text": "a b "}])
    >>> sorted(row["id"] for row in deduplicate(documents, shards=2).take_all())
    [0, 1]
    """
    check_threshold(threshold)
    bands, rows = choose_bands(threshold, num_perm)

    def digests(batch: Batch) -> Batch:
        found = np.frombuffer(b"".join(fingerprint(str(text)) for text in batch["text"]), "<i8").reshape(-1, 4)
        return {"id": batch["id"], "high": found[:, 0], "low": found[:, 1], "shard": found[:, 2] % shards}

    def repeats(shard: Batch) -> Batch:
        order = np.lexsort((shard["id"], shard["high"], shard["low"]))
        same = [shard[half][order][1:] == shard[half][order][:-1] for half in ("high", "low")]
        return {"id": shard["id"][order][1:][same[0] & same[1]]}

    def keys(batch: Batch) -> Batch:
        found = signatures([str(text) for text in batch["text"]], num_perm, ngram)
        key = band_keys(found, bands, rows) + np.arange(bands, dtype=np.uint64)  # a bucket belongs to one band
        return {"id": np.repeat(batch["id"], bands), "key": key.reshape(-1),
                "shard": (key % np.uint64(shards)).astype(np.int64).reshape(-1),
                "signature": np.repeat(found, bands, axis=0)}  # fmt: skip

    def pairs_in(shard: Batch) -> Batch:
        order = np.argsort(shard["id"], kind="stable")
        ids, found = shard["id"][order], np.stack(shard["signature"])[order]
        pairs = np.concatenate([np.zeros((0, 2), np.int64), *bucket_pairs(shard["key"][order])])
        pairs = pairs[likely(found[pairs[:, 0]], found[pairs[:, 1]], threshold)]
        return {"i": ids[pairs[:, 0]], "j": ids[pairs[:, 1]]}

    def meet(rows: Dataset, function: Callable[[Batch], Batch]) -> Dataset:
        grouped = rows.groupby("shard", num_partitions=shards).map_groups(function, batch_format="numpy")
        return grouped.materialize()

    gone = column(meet(documents.map_batches(digests), repeats), "id")
    distinct = documents.map_batches(lambda batch: select(batch, ~np.isin(batch["id"], gone)))
    near = meet(distinct.map_batches(keys), pairs_in)
    candidates = np.unique(np.stack([column(near, "i"), column(near, "j")], axis=1), axis=0)
    if not len(candidates):
        return distinct
    members, place = np.unique(candidates, return_inverse=True)
    together = np.arange(len(members))
    join(together, ((i, j, 0.0) for i, j in place.reshape(-1, 2).tolist()))
    group = roots(together, np.arange(len(members)))  # who may be in one cluster, and so has to meet

    def to_meet(batch: Batch) -> Batch:
        batch = select(batch, np.isin(batch["id"], members))
        return batch | {"shard": group[np.searchsorted(members, batch["id"])] % shards}

    def compare(shard: Batch) -> Batch:
        texts = dict(zip(shard["id"].tolist(), shard["text"], strict=True))
        mine = candidates[np.isin(candidates[:, 0], shard["id"])].tolist()
        links = verify(mine, lambda i: shingles(str(texts[i]), ngram), threshold)
        return {"i": np.array([i for i, _, _ in links], np.int64), "j": np.array([j for _, j, _ in links], np.int64)}

    links = meet(distinct.map_batches(to_meet), compare)
    parent = np.arange(len(members))
    ends = np.searchsorted(members, np.stack([column(links, "i"), column(links, "j")], axis=1))
    join(parent, ((i, j, 1.0) for i, j in ends.tolist()))
    removed = members[roots(parent, np.arange(len(members))) != np.arange(len(members))]
    return distinct.map_batches(lambda batch: select(batch, ~np.isin(batch["id"], removed)))


def select(batch: Batch, chosen: Array) -> Batch:
    """The chosen rows of a batch."""
    return {name: values[chosen] for name, values in batch.items()}


def column(rows: Dataset, name: str) -> Array:
    """A column of whole numbers, brought together."""
    parts = [batch[name] for batch in rows.iter_batches(batch_format="numpy") if name in batch]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
