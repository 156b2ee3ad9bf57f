"""What HTTP costs: the engine benchmark's trace on the engine alone, and through the server with a caller for each."""

import json
import os
import subprocess
import sys
from typing import Any

from shared import ROOT
from shared.inference.bench_engine import default_trace
from shared.measure.progress import progress_bar
from shared.measure.trace import Trace, make_trace
from shared.model.fetch import ensure_model
from shared.serving.bench.run import Numbers, Setup, answered, callers_at, completion, other_ids, rate, verdict, vocab
from shared.serving.bench.server import ServerFailed, ServerUnderTest, cpu_s, server_under_test

ROUNDS = 3  # of each, in turn: a machine that others use is slow for a while and fast for a while
MOST_LOSS = 0.05
LONGEST, VOCAB = 512 + 128, 49_152  # what the engine benchmark's trace asks for
SETTINGS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size", "attention")


def measure_overhead(setup: Setup) -> Numbers:
    """The best of ROUNDS for both, in output tokens a second, and where the CPU time went.

    The engine has one thread in both, so that the API process and the callers have a core for themselves, where there
    is a second one. The prompts are of other tokens in each round: else the prefix cache would answer.
    """
    rounds = setup.count or ROUNDS
    through, alone = [], []
    options = ("--max-num-seqs", 64, "--max-waiting", 64)
    with (
        progress_bar("overhead: rounds", 2 * rounds, setup.progress) as step,
        server_under_test(setup.model, *options) as server,
    ):
        limits, folder, ids = server.limits, setup.model or ensure_model(), vocab(server)
        trace = default_trace()
        if limits["max_model_len"] < LONGEST or ids[1] < VOCAB:  # another model than the book's
            trace = make_trace(64, 0, (8, 64), (8, 64), vocab=ids)
        for turn in range(rounds):
            through.append(served(server, other_ids(trace, turn, ids)))
            step()
            alone.append(
                engine_alone(str(folder), {name: limits[name] for name in SETTINGS}, other_ids(trace, turn, ids))
            )
            step()
    best, best_alone = max(r["out_tok_s"] for r in through), max(r["out_tok_s"] for r in alone)
    # On a machine that others use, too, the engine's own CPU time says what the server adds to its work.
    extra = min(r["engine_cpu_s"] for r in through) / min(r["cpu_s"] for r in alone) - 1
    loss = 1 - best / best_alone
    measured = f"{best:.1f} against {best_alone:.1f} output tokens/s: {loss:+.1%}"
    return {
        "requests": len(trace),
        "engine_alone": alone,
        "through_server": through,
        "loss": loss,
        "engine_cpu_extra": extra,
        "callers_cpu_share": max(r["callers_cpu_s"] / r["wall_s"] for r in through),
        "api_cpu_share": max(r["api_cpu_s"] / r["wall_s"] for r in through),
        "verdicts": [verdict("HTTP takes under 5% of the engine's throughput", measured, loss < MOST_LOSS)],
    }


def served(server: ServerUnderTest, trace: Trace) -> Numbers:
    """One round through the server: all callers at once, each with a stream of its own."""
    asks = [completion(i, request, server.model) for i, request in enumerate(trace)]
    engine = server.engine_pid
    before = cpu_s(server.process.pid), cpu_s(engine) if engine else 0.0
    with callers_at(server, asks, callers=len(asks)) as at_work:
        seen = at_work.wait()
        usage = at_work.usage
    after = cpu_s(server.process.pid), cpu_s(engine) if engine else 0.0
    if len(answered(seen)) < len(trace):
        faults = {one.error or str(one.status) for one in seen if one not in answered(seen)}
        raise ServerFailed(f"only {len(answered(seen))} of {len(trace)} requests were answered: {sorted(faults)}")
    return {
        "out_tok_s": rate(seen),
        "wall_s": max(s.ended for s in seen) - min(s.arrived for s in seen),
        "tokens": sum(s.tokens for s in seen),
        "api_cpu_s": after[0] - before[0],
        "engine_cpu_s": after[1] - before[1],
        "callers_cpu_s": usage["cpu_s"],
    }


def engine_alone(model: str, settings: dict[str, Any], trace: Trace) -> Numbers:
    """The same trace on the engine in a process without a server. Raises ServerFailed when that fails."""
    requests = [{"prompt_ids": list(r.prompt_ids), "max_new_tokens": r.max_new_tokens} for r in trace]
    job = {"model": model, "threads": 1, "settings": settings, "trace": {"requests": requests}}
    done = subprocess.run(
        [sys.executable, "-m", "shared.serving.bench.direct"],
        cwd=ROOT, input=json.dumps(job), capture_output=True, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        raise ServerFailed(f"the engine alone failed: {done.stderr[-1000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "out_tok_s": found["tokens"] / found["wall_s"]}
