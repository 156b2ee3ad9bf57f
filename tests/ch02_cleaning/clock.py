"""How a function's CPU time grows with its input: the same on a busy machine and on an idle one."""

import time
from collections.abc import Callable
from typing import Any


def cpu_seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """The least CPU time of some runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def growth(function: Callable[[str], Any], make: Callable[[int], str], n: int, times: int = 8) -> float:
    """How many times longer `times` as much text takes: about `times` in linear time, its square in quadratic time."""
    small, large = make(n), make(times * n)
    return cpu_seconds(lambda: function(large)) / max(cpu_seconds(lambda: function(small), repeats=5), 2e-5)
