"""The benchmark does equal work on both sides, and refuses to report when it doesn't."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shared.model import mlp
from shared.training.bench_mlp import bench_mlp, held_to, torch_mlp


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_report(optimizer: str):
    report = bench_mlp(samples=600, repeats=1, optimizer=optimizer)
    assert report["ratio"] == pytest.approx(report["numpy_s"] / report["torch_s"])
    assert report["numpy_loss"] == pytest.approx(report["torch_loss"], rel=1e-4)
    assert (report["sizes"], report["batch_size"], report["samples"], report["threads"]) == ([784, 128, 10], 64, 600, 1)


def test_unequal_work_is_refused():
    def lazy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, dlogits = mlp.softmax_cross_entropy(logits, labels)
        return loss, 0 * dlogits

    lazy_mlp = SimpleNamespace(MLP=mlp.MLP, softmax_cross_entropy=lazy)
    with pytest.raises(RuntimeError, match="not the same work"):
        bench_mlp(samples=6000, repeats=1, mlp=lazy_mlp)


@pytest.mark.parametrize("wrong", [{"optimizer": "lion"}, {"torch_variant": "fast"}])
def test_unknown_settings_are_refused(wrong: dict):
    with pytest.raises(ValueError, match="docstring"):
        bench_mlp(samples=64, **wrong)
    with pytest.raises(ValueError, match="repeats"):
        bench_mlp(samples=64, repeats=0)


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with held_to(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_the_torch_net_is_the_same_net():
    model = mlp.MLP((5, 4, 3), np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    assert torch_mlp(model.params)(torch.from_numpy(x)).detach().numpy() == pytest.approx(model.forward(x)[0], abs=1e-6)
