"""Which attention backend is taken, and what is said of one that can't run or is asked for what makes no sense."""

import sys

import pytest
import torch

from shared.inference import attention
from shared.inference.attention import BackendUnavailable, Chunk, make_backend
from shared.inference.paged_kv_cache import KVPool
from tests.inference.attention_steps import backend
from tests.tiny import TINY


def test_auto_takes_the_first_that_runs(monkeypatch, caplog):
    monkeypatch.setitem(attention.AUTO, "cpu", ("varlen", "gather"))
    with caplog.at_level("INFO", logger="shared.inference.attention"):
        assert make_backend("auto", TINY, 4, torch.float32).name == "gather"
    assert "varlen can't run here" in caplog.text
    assert "attention: gather" in caplog.text
    assert make_backend("auto", TINY, 4, torch.float32, torch.device("meta")).name == "gather"


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(ValueError, match="'flash'; there are reference, gather, "):
        make_backend("flash", TINY, 4, torch.float32)
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        make_backend("gather", TINY, 0, torch.float32)


def test_what_cannot_run_says_why(monkeypatch):
    with pytest.raises(BackendUnavailable, match="needs a CUDA device"):
        make_backend("varlen", TINY, 4, torch.bfloat16, "cpu")

    def no_compiler(function, **settings):
        def fail(*tensors):
            raise RuntimeError("no C++ compiler found\nand much more")

        return fail

    monkeypatch.setattr(torch, "compile", no_compiler)
    with pytest.raises(BackendUnavailable, match="torch.compile failed: no C\\+\\+ compiler found$"):
        make_backend("fused", TINY, 4, torch.float32)


def test_backends_are_imported_only_when_asked_for():
    assert all(len(entry) == 2 for entry in attention.BACKENDS.values())
    name = "shared.inference.attention_varlen"
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, name, raising=False)
        make_backend("gather", TINY, 4, torch.float32)
        assert name not in sys.modules


def test_a_step_needs_tokens():
    pool, paged = KVPool(TINY, 2, 4), backend("gather", 4)
    for chunks in ([], [Chunk(0, 0, [0])]):
        with pytest.raises(ValueError, match="at least one token"):
            paged.begin(pool, chunks)
    for chunk in (Chunk(-1, 1, [0]), Chunk(3, 2, [0]), Chunk(0, 1, [])):
        with pytest.raises(ValueError, match="aren't in a table of"):
            paged.begin(pool, [chunk])
