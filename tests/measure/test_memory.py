"""Memory figures, against a buffer of known size."""

import shutil
import subprocess
import sys

import pytest

from shared.measure import memory

BIG = 200_000_000  # bytes


def test_current_follows_a_buffer():
    before = memory.current_memory_mb()
    buffer = bytearray(b"x") * BIG  # written to, so that its pages are there
    during = memory.current_memory_mb()
    del buffer
    assert BIG / 1e6 * 0.95 < during - before < BIG / 1e6 * 1.3
    assert memory.current_memory_mb() < during - BIG / 1e6 * 0.8


def test_peak_remembers_a_buffer_that_is_gone():
    before = memory.current_memory_mb()
    buffer = bytearray(b"x") * BIG
    del buffer
    assert memory.peak_memory_mb() > before + BIG / 1e6 * 0.95


def test_peak_can_start_anew():
    buffer = bytearray(b"x") * BIG
    del buffer
    old = memory.peak_memory_mb()
    if not memory.reset_peak():
        pytest.skip("this system can't reset the peak")
    assert memory.peak_memory_mb() < old - BIG / 1e6 * 0.5


def test_without_proc(monkeypatch, tmp_path):
    """The way of macOS, or of a container without /proc: getrusage and ps agree with it within a fifth."""
    if shutil.which("ps") is None:
        pytest.skip("there is no ps here")
    current, peak = memory.current_memory_mb(), memory.peak_memory_mb()
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    assert memory.current_memory_mb() == pytest.approx(current, rel=0.2)
    assert memory.peak_memory_mb() >= 0.8 * peak


def test_peak_is_not_the_parents():
    """getrusage of a young process would tell of the process that forked it."""
    buffer = bytearray(b"x") * BIG
    code = "from shared.measure.memory import peak_memory_mb; print(peak_memory_mb())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    del buffer
    assert float(run.stdout) < BIG / 1e6


def test_unused_memory_goes_back():
    """Many small buffers, freed but for the last: without the call, glibc keeps what lies below it."""
    if not hasattr(memory.ctypes.CDLL(None), "malloc_trim") or not memory.STATUS.exists():
        pytest.skip("needs glibc and /proc")
    buffers = [bytes([i % 256]) * 10_000 for i in range(10_000)]
    last = buffers.pop()
    during = memory.current_memory_mb()
    del buffers
    memory.free_unused_memory()
    assert memory.current_memory_mb() < during - 80
    assert len(last) == 10_000


@pytest.mark.parametrize("missing", [AttributeError, OSError, TypeError])
def test_a_system_without_that_call(monkeypatch, missing):
    def fail(name):
        raise missing

    monkeypatch.setattr(memory.ctypes, "CDLL", fail)
    memory.free_unused_memory()
