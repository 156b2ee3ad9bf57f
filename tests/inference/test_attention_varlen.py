"""The varlen backend hands torch's kernel what its documentation asks for; a GPU gives the reference's numbers."""

import pytest
import torch
import torch.nn.functional as F

from shared.inference.attention import BackendUnavailable, make_backend
from shared.inference.attention_varlen import VarlenStep
from shared.inference.paged_kv_cache import KVPool
from tests.inference.attention_steps import DIM, HEADS, KV_HEADS, random_chunks, want
from tests.tiny import TINY


def varlen_by_hand(q, keys, values, borders, no_borders, most, longest, **rest):
    """torch's varlen_attn with a block table, as its documentation has it. keys: [pages, page_size, kv_heads, dim]."""
    assert no_borders is None
    assert rest["window_size"] == (-1, 0)
    assert rest["enable_gqa"]
    assert {t.dtype for t in (borders, rest["seqused_k"], rest["block_table"])} == {torch.int32}
    out, lengths = torch.zeros_like(q), rest["seqused_k"].tolist()
    assert longest == max(lengths)
    assert most == int(borders.diff().max())
    for i, length in enumerate(lengths):
        rows = slice(int(borders[i]), int(borders[i + 1]))
        k, v = (kv[rest["block_table"][i].long()].flatten(0, 1)[:length].transpose(0, 1) for kv in (keys, values))
        n = rows.stop - rows.start
        mask = torch.ones(n, length, dtype=torch.bool).tril(length - n)
        queries = q[rows].transpose(0, 1)
        out[rows] = F.scaled_dot_product_attention(
            queries, k, v, attn_mask=mask, scale=rest["scale"], enable_gqa=True
        ).transpose(0, 1)
    return out


def test_varlen_is_given_what_it_wants(monkeypatch):
    """Not the kernel, which needs a GPU, but what is handed to it."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_by_hand)
    for seed in range(8):
        pool = KVPool(TINY, 64, 4, torch.float64)
        pool.keys.normal_()
        pool.values.normal_()
        chunks = random_chunks(seed, 4, 64)
        tokens = sum(c.n for c in chunks)
        q, k = torch.randn(1, HEADS, tokens, DIM).double(), torch.randn(1, KV_HEADS, tokens, DIM).double()
        got = VarlenStep(pool, chunks).layers[2].attend(q, k, k, 0.3)
        assert torch.allclose(got, want(pool, 2, chunks, q, 0.3), atol=1e-12)


@pytest.mark.gpu
def test_varlen_against_the_reference():
    try:
        paged = make_backend("varlen", TINY, 16, torch.bfloat16, "cuda")
    except BackendUnavailable as why:
        pytest.skip(str(why))
    pool = KVPool(TINY, 64, 16, torch.bfloat16, "cuda")
    pool.keys.normal_()
    pool.values.normal_()
    for seed in range(8):
        chunks = random_chunks(seed, 16, 64)
        tokens = sum(c.n for c in chunks)
        q = torch.randn(1, HEADS, tokens, DIM, dtype=torch.bfloat16, device="cuda")
        k, v = torch.randn(2, 1, KV_HEADS, tokens, DIM, dtype=torch.bfloat16, device="cuda")
        got = paged.begin(pool, chunks).layers[0].attend(q, k, v, DIM**-0.5)
        reference = make_backend("reference", TINY, 16, torch.bfloat16, "cuda").begin(pool, chunks)
        assert torch.allclose(got, reference.attend(0, q, DIM**-0.5), atol=0.05)
