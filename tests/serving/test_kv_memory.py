"""How large the server's pool is, worked out by hand."""

from dataclasses import replace

import pytest
import torch

from shared.serving.engines import kv_memory
from shared.serving.engines.kv_memory import available_memory, pool_size
from shared.serving.settings import SettingError
from tests.tiny import TINY

CPU = torch.device("cpu")
# 3 layers, 2 key heads of 8, keys and values, 16 tokens, 4 bytes
BLOCK = 3 * 2 * 8 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("free", "max_num_seqs", "blocks"),
    [
        (None, 4, 128),  # 4 times 512 tokens; nobody knows how much is free
        (10**12, 4, 128),
        (4 * 100 * BLOCK, 4, 100),  # a quarter of what is free
        (4 * 100 * BLOCK - 1, 4, 99),
        (10**12, 1, 63),  # one request of the full context: 1,000 tokens in 62.5 blocks
        (4 * 40 * BLOCK, 4, 63),
        (4 * 30 * BLOCK, 4, 60),  # … or half of what is free
        (0, 4, 1),
    ],
)
def test_the_default_on_a_cpu(monkeypatch, free, max_num_seqs, blocks):
    monkeypatch.setattr(kv_memory, "available_memory", lambda: free)
    config = replace(TINY, max_position_embeddings=1000)
    assert pool_size(config, torch.float32, CPU, max_num_seqs) == blocks


def test_a_given_size(monkeypatch):
    monkeypatch.setattr(kv_memory, "available_memory", lambda: 5_000_000)
    assert pool_size(TINY, torch.float32, CPU, 4, kv_memory=1) == 1_000_000 // BLOCK
    assert pool_size(TINY, torch.float64, CPU, 4, kv_memory=1) == 1_000_000 // (2 * BLOCK)
    with pytest.raises(SettingError, match=r"--kv-memory 6: only 5 MB"):
        pool_size(TINY, torch.float32, CPU, 4, kv_memory=6)


def test_too_little_for_a_chat(monkeypatch):
    """256 tokens: 16 blocks of 7.68 MB."""
    monkeypatch.setattr(kv_memory, "available_memory", lambda: 10**9)
    wide = replace(TINY, head_dim=10**4)
    with pytest.raises(SettingError, match=r"--kv-memory 122: .* 256 tokens takes 122\.9 MB, so give at least 123"):
        pool_size(wide, torch.float32, CPU, 4, kv_memory=122)
    assert pool_size(wide, torch.float32, CPU, 4, kv_memory=123) == 16
    short = replace(wide, max_position_embeddings=40)
    assert pool_size(short, torch.float32, CPU, 4, kv_memory=24) == 3
    with pytest.raises(SettingError, match="give at least 24"):
        pool_size(short, torch.float32, CPU, 4, kv_memory=23)


def test_the_default_on_a_gpu(monkeypatch):
    """Most of what is free; no more than requests can fill."""
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 * 2 * BLOCK, 10**12))
    assert pool_size(TINY, torch.float64, gpu, 1000) == 850
    assert pool_size(TINY, torch.float64, gpu, 4) == 4 * 256 // 16


def test_available_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(kv_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(kv_memory, "CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 3000 kB\nMemFree: 100 kB\nMemAvailable:   2000 kB\n")
    assert available_memory() == 2000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("500\n")
    assert available_memory() == 2000 * 1024
    (tmp_path / "memory.max").write_text("2500\n")
    assert available_memory() == 2000
    (tmp_path / "memory.stat").write_text("anon 100\nfile 400\ninactive_file 300\nactive_file 100\n")
    assert available_memory() == 2300
    (tmp_path / "memory.stat").unlink()
    (tmp_path / "memory.current").write_text("9000\n")
    assert available_memory() == 0
