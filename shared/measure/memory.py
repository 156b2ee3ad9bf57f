"""Resident memory of this process, now and at its highest, and a way to hold less."""

import ctypes
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

MB = 1_000_000  # bytes, as in "7B parameters take 28 GB"
STATUS = Path("/proc/self/status")  # Linux


def peak_memory_mb() -> float:
    """The most memory this process has held at once (resident set, shared pages counted), in MB of 10^6 bytes."""
    # Linux's own high-water mark is read first: getrusage's starts at the size of whoever forked this process.
    if (kib := _status_kib("VmHWM")) is not None:
        return kib * 1024 / MB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / MB  # macOS counts bytes, Linux and BSD KiB


def reset_peak() -> bool:
    """Start the peak anew from what is held now. True where the system can do it (Linux), False elsewhere."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # man 5 proc: 5 resets the peak to the current value
    except OSError:
        return False
    return True


def current_memory_mb() -> float:
    """The memory this process holds now (resident set), in MB of 10^6 bytes."""
    if (kib := _status_kib("VmRSS")) is not None:
        return kib * 1024 / MB
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, check=True).stdout) * 1024 / MB


def free_unused_memory() -> None:
    """Give the system what the C library keeps of freed memory for later, where it has a call for that (glibc).

    After a few hundred tensors have come and gone, that can be more than the model. Elsewhere nothing happens.
    """
    with suppress(AttributeError, OSError, TypeError):  # no such function; Windows takes no None
        ctypes.CDLL(None).malloc_trim(0)


def _status_kib(field: str) -> int | None:
    """A field of /proc/self/status in KiB, or None where there is no such file or field."""
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    return None
