"""Memory of processes, and of NVIDIA GPUs where there are any."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int | None:
    """The memory a process holds (resident set, shared pages counted), or None when there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES  # man 5 proc
    except (OSError, IndexError, ValueError):
        if Path("/proc/self/statm").exists():
            return None
    try:
        found = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, timeout=5).stdout
        return int(found) * 1024  # macOS, BSD
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


@dataclass(frozen=True)
class Gpu:
    """name: its index. utilization: the share of the last moments in which a kernel ran, 0 to 1. None: not told."""

    name: str
    used_bytes: int
    total_bytes: int
    utilization: float | None
    celsius: float | None


@cache
def _nvml() -> Any:
    """The NVML bindings, initialised once; None where there is no NVIDIA driver, or no package."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # NVMLError without a driver, ImportError without the package: both mean no GPU to ask
        return None
    return pynvml


def gpus() -> list[Gpu]:
    """What NVML says of each GPU; nothing where there is none. One that gives no answer (it is lost, or split into
    instances) is left out, or has None for what it doesn't tell."""
    if (nvml := _nvml()) is None:
        return []

    def ask(question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except nvml.NVMLError:
            return None

    found = []
    for index in range(ask(nvml.nvmlDeviceGetCount) or 0):
        if (handle := ask(nvml.nvmlDeviceGetHandleByIndex, index)) is None:
            continue
        if (memory := ask(nvml.nvmlDeviceGetMemoryInfo, handle)) is None:
            continue
        rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        celsius = ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        busy = None if rates is None else rates.gpu / 100
        found.append(Gpu(str(index), int(memory.used), int(memory.total), busy, celsius))
    return found
