"""`bench engine` on a tiny model: the keys of its report, what a stopwatch adds up, what the allocator is asked for."""

import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from chapters import bench, bench_table
from chapters.regions import BookError
from shared.inference import bench_engine, bench_steps
from shared.inference.bench_steps import Stopwatch
from shared.inference.peers import rates
from shared.inference.peers.run import PeerMissing
from shared.measure.trace import TraceRequest, write_trace
from tests.tiny import TINY, tiny_model

LONG = replace(TINY, max_position_embeddings=640)  # room for a prompt of 512 tokens
TRACE = [TraceRequest((5, 6, 7), 4), TraceRequest((8, 9), 3)]
FOUR = {"out_tok_s", "total_tok_s", "decode1_tok_s", "prefill512_tok_s"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_file({k: v.float() for k, v in tiny_model(config=LONG).state_dict().items()}, folder / "model.safetensors")
    config = {name: getattr(LONG, name) for name in LONG.__dataclass_fields__ if name != "rope_scaling"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def trace(tmp_path):
    write_trace(TRACE, tmp_path / "trace.json")
    return tmp_path / "trace.json"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rates, "REPEATS", 1)
    monkeypatch.setattr(rates, "DECODE_TOKENS", 8)


@pytest.fixture
def few_steps(monkeypatch):
    monkeypatch.setattr(bench_engine, "bench_steps", lambda model, progress: {"step_ms": 1.0})


def run(*arguments, code: int = 0) -> str:
    result = CliRunner().invoke(bench.app, ["engine", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_report(model_dir, trace, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_steps, "RUNNING", (1, 2))
    monkeypatch.setattr(bench_steps, "STEPS", 3)
    monkeypatch.setattr(bench_steps, "queue_cost", partial(bench_steps.queue_cost, queued=50))
    output = run("--json", tmp_path / "out.json", "--trace", trace, "--model", model_dir, "--scaling")
    assert "5 prompt and 7 output tokens" in output
    report = json.loads((tmp_path / "out.json").read_text())
    ours = report["engine"]
    assert set(ours) >= FOUR | {
        "scheduler_share", "largest_allocation_bytes", "allocations_over_1mb", "step_ms_by_running",
        "waiting_10000_ratio", "finished_10000_ratio", "shared400_ttft_ratio", "twice_threads_speedup",
    }  # fmt: skip
    assert all(ours[key] > 0 for key in FOUR)
    assert 0 < ours["scheduler_share"] < 1
    assert ours["output_tokens"] == 7
    assert ours["shared400_ttft_ratio"] > 1
    assert (report["dtype"], report["threads"], report["requests"]) == ("fp32", 1, 2)
    assert report["skipped"] == {}


def test_int8(model_dir, trace, tmp_path, few_steps):
    run("--json", tmp_path / "out.json", "--trace", trace, "--model", model_dir, "--dtype", "int8")
    assert json.loads((tmp_path / "out.json").read_text())["dtype"] == "int8"


def test_peers_stand_beside_it_or_are_left_out_with_a_reason(model_dir, trace, tmp_path, few_steps, monkeypatch):
    asked = []

    def run_peer(name, folder, trace_file, threads, told, say, python):
        asked.append((name, folder, threads, python))
        if name == "openvino_fp32":
            raise PeerMissing("install openvino-genai")
        group = dict.fromkeys(FOUR, 2.0)
        return group | {"first_tokens": [-1, -1]}

    monkeypatch.setattr(bench_engine, "run_peer", run_peer)
    options = ["--peer", "transformers", "--peer", "openvino_fp32", "--peers-python", "sh", "--threads", 2]
    output = run("--json", tmp_path / "o.json", "--trace", trace, "--model", model_dir, *options, code=1)
    assert asked == [(name, model_dir, 2, "sh") for name in ("transformers", "openvino_fp32")]
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["transformers"]["first_tokens_as_ours"] == 0
    assert set(report["transformers"]) >= FOUR | {"setting"}
    assert report["skipped"] == {"openvino_fp32": "install openvino-genai"}
    assert "openvino_fp32" not in report
    assert "openvino_fp32: left out: install openvino-genai" in output


def test_ctrl_c_keeps_what_was_measured(model_dir, trace, tmp_path, few_steps, monkeypatch):
    def run_peer(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_engine, "run_peer", run_peer)
    options = ["--trace", trace, "--model", model_dir, "--peers"]
    output = run("--json", tmp_path / "o.json", *options, code=130)
    assert "interrupted" in output
    report = json.loads((tmp_path / "o.json").read_text())
    assert (report["interrupted"], set(report["engine"]) >= FOUR) == (True, True)


def test_a_context_too_short_is_said_before_the_run(model_dir, trace, tmp_path):
    short = tmp_path / "short"
    shutil.copytree(model_dir, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    with pytest.raises(BookError, match="short: its context is 256 tokens, and a prompt of 512 is part"):
        run("--trace", trace, "--model", short)


def test_bad_input(model_dir, tmp_path):
    for arguments, match in (
        (["--peer", "llama"], "--peer llama: there is none of that name; there are transformers, llama_cpp_f32"),
        (["--peers", "--peers-python", tmp_path / "python"], "--peers-python .*python: there is no such program"),
        (["--keep", "--trace", tmp_path / "any.json"], "--keep is for the default trace and model"),
        (["--keep", "--model", model_dir], "--keep is for the default trace and model"),
        (["--trace", tmp_path / "none.json"], "there is no such file"),
        (["--model", tmp_path / "none"], "no such folder"),
        (["--model", model_dir], "the default trace: requests"),  # its ids are another vocabulary's
    ):
        with pytest.raises(BookError, match=match):
            run(*arguments)


def test_kept_numbers_stand_in_the_table(tmp_path):
    (tmp_path / "solutions").mkdir()
    group = {"out_tok_s": 50.0, "decode1_tok_s": 26.0, "prefill512_tok_s": 300.0}
    report = {"engine": group, "transformers": group | {"out_tok_s": 20.0}, "threads": 1, "requests": 64}
    bench_table.record("engine", report, tmp_path)
    bench_table.record("engine --dtype int8", report, tmp_path)
    first, second = bench_table.table(tmp_path)[2:]
    ours = "64 requests at once, 1 thread: 50 output tokens a second; one stream 26, prefill 300"
    theirs = "transformers: 20 tokens a second; one stream 26, prefill 300"
    assert first == f"| `python -m chapters bench engine` | {ours} | {theirs} |"
    assert second.startswith("| `python -m chapters bench engine --dtype int8` | 64 requests")


def test_peers_stay_kept_when_the_engine_alone_is_measured_again(tmp_path):
    (tmp_path / "solutions").mkdir()
    setting = {"threads": 1, "trace": "t", "model": "m"}
    peers = {"transformers": {"out_tok_s": 20.0}, "llama_cpp_f32": {"out_tok_s": 40.0}}
    bench_table.record("engine", setting | peers | {"engine": {"out_tok_s": 50.0}, "skipped": {"a": "b"}}, tmp_path)
    again = setting | {"engine": {"out_tok_s": 60.0}, "transformers": {"out_tok_s": 21.0}, "skipped": {}}
    want = again | {"llama_cpp_f32": peers["llama_cpp_f32"]}
    assert bench_table.with_kept_peers("engine", again, tmp_path) == want
    assert bench_table.with_kept_peers("engine --dtype int8", again, tmp_path) == again
    for other in ({"threads": 2}, {"trace": "u"}, {"model": "n"}):
        assert bench_table.with_kept_peers("engine", again | other, tmp_path) == again | other


def test_keep(monkeypatch):
    """The whole way, and nothing is kept of a run that was interrupted."""
    report = {"threads": 1, "trace": "t", "model": "m", "skipped": {}, "interrupted": False}
    kept = []
    monkeypatch.setattr(bench, "run_engine", lambda *given: report)
    monkeypatch.setattr(bench, "record", lambda name, numbers: kept.append((name, numbers)) or "file")
    monkeypatch.setattr(bench_table, "load", lambda root: {})
    run("--keep")
    run("--keep", "--dtype", "int8")
    assert kept == [("engine", report), ("engine --dtype int8", report)]
    report["interrupted"] = True
    run("--keep", code=130)
    assert len(kept) == 2


def test_stopwatch_times_methods_for_as_long_as_asked(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bench_engine.time, "perf_counter", lambda: now[0])

    class Worker:
        def work(self, seconds):
            now[0] += seconds
            return "done"

    worker, watch = Worker(), Stopwatch()
    with watch.on(worker, "work"):
        assert worker.work(2.0) == "done"
        worker.work(0.5)
    worker.work(5.0)
    assert watch.seconds == {"work": 2.5}


def test_allocations_are_the_model_s_too():
    model = tiny_model(config=LONG)
    plain = bench_steps.allocations(model, running=2)

    class Wasteful(type(model)):
        def forward(self, *arguments, **options):
            torch.empty(3_000_000, dtype=torch.uint8)
            return super().forward(*arguments, **options)

    model.__class__ = Wasteful
    wasteful = bench_steps.allocations(model, running=2)
    assert plain["largest_allocation_bytes"] < 100_000
    assert wasteful["largest_allocation_bytes"] == 3_000_000
    assert (plain["allocations_over_1mb"], wasteful["allocations_over_1mb"]) == (0, 1)
