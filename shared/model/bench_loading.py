"""How much memory loading takes: each way in a process of its own, watched through the system's accounts.

Every process loads the model and then reads each of its weights, so that no page is left out of the count.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from shared.measure.memory import MB, current_memory_mb, peak_memory_mb, reset_peak
from shared.measure.progress import progress_bar
from shared.model.config import ModelConfig
from shared.model.tensor_file import check_layout, parse_header, tensor_view
from shared.model.transformer import Transformer
from shared.model.weights import load_model, save_model


def load_naively(path: Path) -> Transformer:
    """What a first loader does: the whole file in memory, and copied from there into a model that has memory, too."""
    data = bytearray((path / "model.safetensors").stat().st_size)
    with (path / "model.safetensors").open("rb") as file:
        file.readinto(data)
    header, start = parse_header(data)
    tensors = {name: tensor_view(data, start, e) for name, e in check_layout(header, len(data) - start).items()}
    return _copied(path, tensors)


def load_pickle(path: Path, mmap: bool = False) -> Transformer:
    """torch.load of a pickle that we made ourselves, and a copy into the model."""
    return _copied(path, torch.load(path / "model.pt", weights_only=True, mmap=mmap, map_location="cpu"))


def _copied(path: Path, tensors: dict[str, torch.Tensor]) -> Transformer:
    model = Transformer(ModelConfig.from_hf(json.loads((path / "config.json").read_text(encoding="utf-8"))))
    model.load_state_dict(tensors)
    return model


WAYS: dict[str, Callable[[Path], Transformer]] = {
    "mapped": load_model,
    "naive": load_naively,
    "torch.load": load_pickle,
    "torch.load, mmap=True": lambda path: load_pickle(path, mmap=True),
}


def peak_over_weights(way: str, path: Path) -> dict[str, float]:
    """Load the model in `path` in a process of its own. Returns its peak over the weights' bytes, and the seconds.

    The peak is counted from what the process held before: Python, torch and this code take some 250 MB by themselves.
    """
    command = [sys.executable, "-m", "shared.model.bench_loading", way, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        out, _ = child.communicate("\n\n")
    if child.returncode:
        raise RuntimeError(f"loading {path} ({way}) failed; its message stands above")
    return dict(json.loads(out.splitlines()[-1]))


def shared_memory(way: str, path: Path, processes: int = 2) -> float | None:
    """What several processes with the same model take together, over the weights' bytes; None without Linux's /proc.

    Each process's share is its PSS, where a page that n processes hold counts 1/n: before loading and after. They load
    a copy of the folder, for a third process that maps the same file, such as a server, would take its share too.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        return None
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        copy = shutil.copytree(path, Path(folder) / path.name)
        command = [sys.executable, "-m", "shared.model.bench_loading", way, str(copy)]
        children = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(processes)
        ]
        for child in children:
            _answer(child)  # all of them are up
        before = sum(_pss_mb(child.pid) for child in children)
        for child in children:
            _go_on(child)
        reports = [json.loads(_answer(child)) for child in children]  # all of them have loaded
        after = sum(_pss_mb(child.pid) for child in children)
        for child in children:
            _go_on(child)
    return (after - before) / float(reports[0]["weights_mb"])


def _answer(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    if not (line := child.stdout.readline()):
        raise RuntimeError("a process that was to load the model ended; its message stands above")
    return line


def _go_on(child: "subprocess.Popen[str]") -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def _pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024 / MB


def bench_loading(progress: bool = True) -> dict[str, Any]:
    """Peak memory of loading the default model, over the weights' size; the project's target for ours is 1.1.

    peak_over_weights: load_model. naive_: the whole file in memory first. converted_: a bf16 file as float32.
    two_processes_over_weights: both together, None where the system doesn't tell. load_seconds: load_model, touched.
    """
    from shared.model.fetch import ensure_model  # here, or each child process would load what fetching needs

    path = ensure_model()
    with progress_bar("loading", 4, progress) as step, tempfile.TemporaryDirectory() as folder:
        mapped = peak_over_weights("mapped", path)
        step()
        naive = peak_over_weights("naive", path)
        step()
        save_model(load_model(path, dtype=torch.bfloat16), Path(folder))
        converted = peak_over_weights("mapped", Path(folder))
        step()
        together = shared_memory("mapped", path)
        step()
    return {
        "peak_over_weights": round(mapped["peak_over_weights"], 3),
        "naive_peak_over_weights": round(naive["peak_over_weights"], 3),
        "converted_peak_over_weights": round(converted["peak_over_weights"], 3),
        "two_processes_over_weights": None if together is None else round(together, 3),
        "load_seconds": round(mapped["seconds"], 3),
        "weights_mb": round(mapped["weights_mb"], 1),
    }


def _child(way: str, path: Path) -> None:
    """Say hello, wait for a line, load, say how it went, and hold the model until another line comes."""
    torch.ones(8, 8).sum()  # what torch sets up at its first sum isn't the model's
    print("ready", flush=True)
    sys.stdin.readline()
    before = current_memory_mb()
    reset_peak()
    start = time.perf_counter()
    model = WAYS[way](path)
    for weight in model.parameters():
        weight.sum()
    seconds = time.perf_counter() - start
    weights_mb = sum(p.numel() * p.element_size() for p in model.parameters()) / MB
    report = {"peak_over_weights": (peak_memory_mb() - before) / weights_mb, "seconds": seconds}
    print(json.dumps(report | {"weights_mb": weights_mb}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]))
