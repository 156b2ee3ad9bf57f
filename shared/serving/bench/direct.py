"""The engine without a server: a process that answers a trace, as bench_engine does, and says how long it took.

python -m shared.serving.bench.direct < job.json        {"model", "threads", "settings", "trace"}
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from shared.inference.bench_engine import answer_all
from shared.inference.llm_engine import LLMEngine
from shared.measure.trace import TraceRequest, parse_trace
from shared.model.weights import load_model


def main(job: dict[str, Any]) -> dict[str, float]:
    """Wall and CPU seconds of the trace's answers, after a warm-up."""
    torch.set_num_threads(job["threads"])
    engine = LLMEngine(load_model(Path(job["model"])), max_waiting=1024, **job["settings"])
    answer_all(engine, [TraceRequest(tuple(range(100, 228)), 4)] * 4, lambda n: None)
    trace = parse_trace(job["trace"])
    began, cpu = time.perf_counter(), time.process_time()
    answers = answer_all(engine, trace, lambda n: None)
    return {
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "tokens": sum(map(len, answers)),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
