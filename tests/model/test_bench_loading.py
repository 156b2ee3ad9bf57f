"""Loading, watched from outside: the peak of a process, and what two processes share."""

from pathlib import Path

import pytest
import torch

from shared.model.bench_loading import peak_over_weights, shared_memory
from shared.model.config import ModelConfig
from shared.model.transformer import Transformer
from shared.model.weights import save_model

linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
CONFIG = ModelConfig(
    vocab_size=4096, hidden_size=512, intermediate_size=2048, num_hidden_layers=8,
    num_attention_heads=8, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of 140 MB in float32, random."""
    path = tmp_path_factory.mktemp("model")
    save_model(Transformer(CONFIG), path)
    return path


@linux
def test_the_naive_way_takes_the_weights_twice(folder):
    assert peak_over_weights("naive", folder)["peak_over_weights"] > 1.8


@linux
def test_converting_takes_one_tensor_more(tmp_path):
    save_model(Transformer(CONFIG).to(torch.bfloat16), tmp_path)
    largest = 4096 * 512 * 4 / (sum(p.numel() for p in Transformer(CONFIG).parameters()) * 4)
    assert peak_over_weights("mapped", tmp_path)["peak_over_weights"] < 1.05 + largest


@linux
def test_two_processes_share_what_they_map(folder):
    together = shared_memory("mapped", folder)
    assert together is not None
    assert 0.8 < together < 1.2


@linux
@pytest.mark.real
def test_the_target_on_the_real_model(model_dir):
    assert peak_over_weights("mapped", model_dir)["peak_over_weights"] <= 1.1
