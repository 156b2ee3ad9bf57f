"""Every backend against attention over keys and values in one piece, and whole models against the uncached one."""

import random
from dataclasses import replace

import pytest
import torch

from shared.inference import attention_fused
from shared.inference.attention import BackendUnavailable, Chunk, make_backend
from shared.inference.attention_gather import GROUP_ROWS, in_groups, pool_rows
from shared.inference.llm_engine import LLMEngine
from shared.inference.paged_kv_cache import KVPool
from shared.inference.sampling import SamplingParams
from tests.inference.attention_steps import DIM, HEADS, KV_HEADS, backend, random_chunks, want
from tests.tiny import TINY, tiny_model


@pytest.mark.parametrize("name", ["reference", "gather", "fused"])
def test_against_attention_in_one_piece(name):
    for seed in range(12):
        block_size = (1, 2, 4, 16)[seed % 4]
        pool = KVPool(TINY, 64, block_size, torch.float64)
        pool.keys.normal_(generator=torch.Generator().manual_seed(seed))
        pool.values.normal_(generator=torch.Generator().manual_seed(seed + 1))
        chunks = random_chunks(seed, block_size, 64)
        step = backend(name, block_size).begin(pool, chunks)
        tokens = sum(chunk.n for chunk in chunks)
        q = torch.randn(1, tokens, HEADS, DIM, dtype=torch.float64).transpose(1, 2)
        k, v = (torch.randn(1, tokens, KV_HEADS, DIM, dtype=torch.float64).transpose(1, 2) for _ in range(2))
        got = step.layers[1].attend(q, k, v, 0.3)
        assert got.shape == q.shape
        assert torch.allclose(got, want(pool, 1, chunks, q, 0.3), rtol=1e-9, atol=1e-12)
        positions = [p for chunk in chunks for p in range(chunk.start, chunk.start + chunk.n)]
        assert step.positions.tolist() == positions
        for row, (block, offset) in enumerate(
            (chunk.block_table[p // block_size], p % block_size)
            for chunk in chunks
            for p in range(chunk.start, chunk.start + chunk.n)
        ):  # what was given is in its slot
            assert torch.equal(pool.keys[1, block, :, offset], k[0, :, row])
            assert torch.equal(pool.values[1, block, :, offset], v[0, :, row])


@pytest.mark.parametrize("name", ["reference", "gather", "fused"])
def test_a_model_that_runs_in_steps(name):
    """Sequences that start, wait and go on in any order give the logits of a model without any cache."""
    model, rng = tiny_model(), random.Random(3)
    pool = KVPool(TINY, 60, 4, torch.float64)
    paged = backend(name, 4)
    free = rng.sample(range(60), 60)
    sequences = [
        {"ids": [rng.randrange(97) for _ in range(rng.choice([1, 4, 8, 19]))], "table": [], "done": 0} for _ in "abcdef"
    ]
    plain = [model(torch.tensor([s["ids"]]))[0] for s in sequences]
    while any(s["done"] < len(s["ids"]) for s in sequences):
        turns = [s for s in sequences if s["done"] < len(s["ids"]) and rng.random() < 0.8]
        chunks = []
        for s in turns:
            n = min(len(s["ids"]) - s["done"], rng.choice([1, 1, 3, 9]))
            while len(s["table"]) * 4 < s["done"] + n:
                s["table"].append(free.pop())
            chunks.append(Chunk(s["done"], n, list(s["table"])))
        if not turns:
            continue
        ids = [i for s, c in zip(turns, chunks, strict=True) for i in s["ids"][c.start : c.end]]
        step = paged.begin(pool, chunks)
        logits = model(torch.tensor([ids]), caches=step.layers, positions=step.positions)[0].split(
            [c.n for c in chunks]
        )
        for s, c, got in zip(turns, chunks, logits, strict=True):
            assert torch.allclose(got, plain[sequences.index(s)][c.start : c.end], rtol=1e-9, atol=1e-11)
            s["done"] = c.end


def test_answers_that_share_a_prompt():
    """Two tables with the same first blocks, written from there on apart."""
    model, pool = tiny_model(), KVPool(TINY, 10, 4, torch.float64)
    prompt, paged = list(range(8)), backend("gather", 4)
    step = paged.begin(pool, [Chunk(0, 8, [5, 2])])
    model(torch.tensor([prompt]), caches=step.layers, positions=step.positions)
    tables = [[5, 2, 7], [5, 2, 1]]
    step = paged.begin(pool, [Chunk(8, 1, tables[0]), Chunk(8, 1, tables[1])])
    got = model(torch.tensor([[11, 50]]), caches=step.layers, positions=step.positions)[0]
    for row, token in enumerate((11, 50)):
        assert torch.allclose(got[row], model(torch.tensor([[*prompt, token]]))[0, -1], rtol=1e-9)


def test_stale_numbers_behind_the_end_change_nothing():
    for name in ("reference", "gather", "fused"):
        pool = KVPool(TINY, 6, 4, torch.float64)
        pool.keys.normal_()
        pool.values.normal_()
        chunks = [Chunk(5, 1, [3, 1]), Chunk(2, 1, [4]), Chunk(0, 3, [0])]
        q = torch.randn(1, HEADS, 5, DIM, dtype=torch.float64)
        k, v = torch.randn(2, 1, KV_HEADS, 5, DIM, dtype=torch.float64)
        first = backend(name, 4).begin(pool, chunks).layers[0].attend(q, k, v, 0.3)
        for kv in (pool.keys, pool.values):
            kv[:, 1, :, 2:] = 1e6
            kv[:, [4, 0], :, 3:] = -1e6
            kv[:, [2, 5]] = 1e6
        assert torch.allclose(backend(name, 4).begin(pool, chunks).layers[0].attend(q, k, v, 0.3), first, atol=1e-12)


@pytest.mark.parametrize("name", ["reference", "gather", "fused", "native"])
@pytest.mark.parametrize("stray", [float("nan"), float("inf")])
def test_nan_that_others_left_changes_nothing(name, stray):
    """In blocks that nobody holds, in a neighbour's, and in the rest of those that are begun."""
    dtype = torch.float32 if name == "native" else torch.float64
    try:
        paged = backend(name, 4, dtype)
    except BackendUnavailable as why:
        pytest.skip(str(why))
    outs = []
    for left in (0.0, stray):
        torch.manual_seed(0)
        pool = KVPool(TINY, 12, 4, dtype)
        pool.keys.fill_(left)
        pool.values.fill_(left)
        parts = []
        for chunks in (
            [Chunk(0, 1, [3, 2]), Chunk(0, 6, [4, 1]), Chunk(0, 4, [5]), Chunk(0, 2, [6, 7, 8, 9])],
            [Chunk(1, 1, [3, 2]), Chunk(6, 2, [4, 1]), Chunk(4, 1, [5, 10]), Chunk(2, 5, [6, 7, 8, 9])],
            [Chunk(2, 1, [3, 2]), Chunk(8, 1, [4, 1, 11]), Chunk(5, 1, [5, 10]), Chunk(7, 1, [6, 7, 8, 9])],
        ):
            tokens = sum(chunk.n for chunk in chunks)
            q, k = torch.randn(1, HEADS, tokens, DIM, dtype=dtype), torch.randn(1, KV_HEADS, tokens, DIM, dtype=dtype)
            parts.append(paged.begin(pool, chunks).layers[0].attend(q, k, k, 0.3))
        outs.append(torch.cat(parts, dim=2))
    assert bool(outs[0].isfinite().all())
    assert torch.equal(outs[1], outs[0])


@pytest.mark.parametrize("name", ["gather", "native"])
def test_what_an_aborted_request_leaves_hurts_nobody(name):
    """A prompt with a token that makes NaN is aborted half read; others get its blocks, one at a time."""
    model = tiny_model(dtype=torch.float32, config=replace(TINY, tie_word_embeddings=False))
    with torch.no_grad():
        model.model.embed_tokens.weight[5] = torch.nan
        model.lm_head.weight[5] = 0.0  # and it never says it itself
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    try:
        engine = LLMEngine(model, num_blocks=12, block_size=4, attention=name, max_num_seqs=4, max_num_batched_tokens=5)
    except BackendUnavailable as why:
        pytest.skip(str(why))
    [want] = engine.generate([[7, 8]], params)
    engine.add_request("sick", [5, *range(20, 38)], params)
    engine.step()
    engine.step()
    engine.abort("sick")
    assert not bool(engine.pool.keys.isfinite().all())
    for _ in range(6):
        [got] = engine.generate([[7, 8]], params)
        assert got.token_ids == want.token_ids


def test_a_pool_of_bfloat16():
    pool = KVPool(TINY, 8, 4, torch.bfloat16)
    pool.keys.normal_()
    pool.values.normal_()
    chunks = [Chunk(6, 1, [3, 1]), Chunk(0, 3, [4])]
    q = torch.randn(1, HEADS, 4, DIM)
    k, v = torch.randn(2, 1, KV_HEADS, 4, DIM)
    got = make_backend("gather", TINY, 4, torch.bfloat16).begin(pool, chunks).layers[0].attend(q, k, v, 0.3)
    reference = make_backend("reference", TINY, 4, torch.bfloat16).begin(pool, chunks).layers[0].attend(q, k, v, 0.3)
    assert got.dtype == torch.float32
    assert torch.allclose(got, reference, atol=0.05)


def test_a_steady_step_allocates_nothing_large():
    """The room for gathered rows is made once; after that a layer takes only what is as small as its queries."""
    pool = KVPool(TINY, 600, 16)
    paged = make_backend("gather", TINY, 16, torch.float32)
    chunks = [Chunk(299 + i, 1, [(20 * i + j) % 600 for j in range(20)]) for i in range(16)]
    q, k, v = torch.randn(1, HEADS, 16, DIM), torch.randn(1, KV_HEADS, 16, DIM), torch.randn(1, KV_HEADS, 16, DIM)
    first = paged.begin(pool, chunks)
    first.layers[0].attend(q, k, v, 0.3)
    step = paged.begin(pool, chunks)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for layer in step.layers:
            layer.attend(q, k, v, 0.3)
    gathered = max(len(group.rows) for group in step.groups) * 16 * DIM * 4
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert gathered > 5 * largest > 0, (gathered, largest)


def test_rows_of_the_pool():
    pool = torch.arange(4 * 3 * 2 * 5).view(4, 3, 2, 5)  # [num_blocks, kv_heads, block_size, head_dim]
    tables = torch.tensor([[3, 0], [1, 1]])
    rows = pool.view(-1, 10)[pool_rows(tables, 3)].view(2, 3, 4, 5)  # [n, kv_heads, length, head_dim]
    for i, table in enumerate(tables.tolist()):
        for head in range(3):
            assert torch.equal(rows[i, head], torch.cat([pool[block, head] for block in table]))


def test_groups_hold_each_token_once_and_little_padding():
    rng, pool = random.Random(0), KVPool(TINY, 2, 16)
    chunks = [Chunk(rng.randint(0, 3000), rng.choice([1, 1, 1, 5]), [0]) for _ in range(60)]
    starts = [sum(c.n for c in chunks[:i]) for i in range(60)]
    seen = []
    for group in in_groups(chunks, pool):
        assert len({c.n for _, c in group}) == 1
        assert group[0][1].n == 1 or len(group) == 1
        blocks = max(-(-c.end // 16) for _, c in group)
        assert len(group) == 1 or len(group) * blocks * KV_HEADS <= GROUP_ROWS
        assert all(chunks[starts.index(first)] is c for first, c in group)
        seen += [first for first, _ in group]
    assert sorted(seen) == starts
    singles = [c.end for group in in_groups(chunks, pool) for _, c in group if c.n == 1]
    assert singles == sorted(singles, reverse=True)


def test_single_sequences_are_not_compiled_anew(monkeypatch):
    """A size of 1 would be a new program to the compiler; those go the other way, and give the same numbers."""
    calls = []

    def counting(function, **settings):
        return lambda *tensors: calls.append(tensors[0].shape[0]) or function(*tensors)

    monkeypatch.setattr(attention_fused.torch, "compile", counting)
    paged, pool = make_backend("fused", TINY, 4, torch.float64), KVPool(TINY, 9, 4, torch.float64)
    calls.clear()
    for chunks, compiled in (
        ([Chunk(5, 1, [0, 1])], []),
        ([Chunk(1, 1, [0]), Chunk(2, 1, [1])], []),
        ([Chunk(1, 1, [0]), Chunk(5, 1, [1, 2]), Chunk(0, 2, [3])], [2]),
    ):
        tokens = sum(c.n for c in chunks)
        q, k = torch.randn(1, HEADS, tokens, DIM).double(), torch.randn(1, KV_HEADS, tokens, DIM).double()
        got = paged.begin(pool, chunks).layers[0].attend(q, k, k, 0.3)
        assert torch.allclose(got, want(pool, 0, chunks, q, 0.3), atol=1e-12)
        assert calls == compiled
        calls.clear()


@pytest.mark.gpu
def test_gather_on_cuda():
    pool = KVPool(TINY, 64, 16, torch.float32, "cuda")
    for seed in range(8):
        chunks = random_chunks(seed, 16, 64)
        tokens = sum(c.n for c in chunks)
        q = torch.randn(1, HEADS, tokens, DIM, device="cuda")
        k, v = torch.randn(2, 1, KV_HEADS, tokens, DIM, device="cuda")
        got = make_backend("gather", TINY, 16, torch.float32, "cuda").begin(pool, chunks).layers[0].attend(q, k, v, 0.3)
        reference = make_backend("reference", TINY, 16, torch.float32, "cuda").begin(pool, chunks)
        assert torch.allclose(got, reference.attend(0, q, 0.3), atol=1e-3)
