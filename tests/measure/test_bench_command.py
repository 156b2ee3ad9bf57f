"""`python -m chapters bench` on a tiny model: the files it writes, the rows it keeps, what it says of bad input."""

import json
import subprocess
import sys

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from chapters import ROOT, bench, bench_stacks
from chapters.regions import BookError
from shared.measure import scoreboard
from shared.measure.trace import TraceRequest
from tests.tiny import TINY, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model as a folder that load_model reads."""
    folder = tmp_path_factory.mktemp("tiny")
    save_file(dict(tiny_model().state_dict()), folder / "model.safetensors")
    config = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__ if name != "rope_scaling"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A scoreboard of the test's own."""
    monkeypatch.setattr(scoreboard, "FILE", tmp_path / "scoreboard.json")
    return scoreboard.FILE


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "trace.json"
    requests = [{"prompt_ids": [5, 6, 7], "max_new_tokens": 4}, {"prompt_ids": [8, 9], "max_new_tokens": 3, "at": 0.05}]
    file.write_text(json.dumps({"requests": requests}))
    return file


def run(*arguments, code: int = 0) -> str:
    result = CliRunner().invoke(bench.app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_all_stacks(model, board, trace):
    output = run("--trace", trace, "--model", model, "--dtype", "float32", "--threads", 1)
    assert "times as many tokens per second" in output
    rows = scoreboard.load()
    assert [(row["name"], row["chapter"]) for row in rows] == [
        ("naive", 0), ("cached", 9), ("paged", 10), ("static batch", 11), ("window", 11), ("continuous", 12),
        ("prefix", 12), ("int8", 12),
    ]  # fmt: skip
    assert len({row["trace"] for row in rows}) == 1
    assert all(row["output_tokens"] == 7 and row["output_tok_s"] > 0 for row in rows)
    assert [row["dtype"] for row in rows] == ["float32"] * 7 + ["int8"]
    assert rows[4]["tpot_p50_s"] is None  # a batcher's answers come in one piece
    for name, _ in bench_stacks.WHAT.items():
        assert f"{name}: " in output


@pytest.mark.parametrize("stack", [stack for stack in bench_stacks.CHAPTER if stack != "int8"])
def test_report(model, board, trace, tmp_path, stack):
    out = tmp_path / "new" / "out.json"
    run("--trace", trace, "--json", out, "--stack", stack, "--model", model, "--dtype", "float64", "--threads", 1)
    report = json.loads(out.read_text())
    assert (report["stack"], report["model"], report["threads"], report["dtype"]) == (stack, model.name, 1, "float64")
    assert report["total"]["requests"] == 2
    assert report["total"]["prompt_tokens"] == 5
    assert [row["output_tokens"] for row in report["requests"]] == [4, 3]
    assert [row["at"] for row in report["requests"]] == [0.0, 0.05]
    assert report["total"]["wall_s"] >= 0.05  # the second came no earlier
    assert [row["name"] for row in scoreboard.load()] == [stack.replace("-", " ") + " float64"]


def test_json_alone_means_the_newest_stack(model, board, trace, tmp_path):
    run("--trace", trace, "--json", tmp_path / "o.json", "--model", model, "--dtype", "float64")
    assert json.loads((tmp_path / "o.json").read_text())["stack"] == "continuous"


def test_the_default_trace_has_a_shared_beginning_that_some_stack_finds(model, monkeypatch):
    trace = bench_stacks.default_trace()
    assert len({request.prompt_ids[: bench_stacks.SHARED_TOKENS] for request in trace}) == 1
    assert len({request.prompt_ids for request in trace}) == len(trace)
    made = []

    class Watched(bench_stacks.EngineSteps):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            made.append(self.engine)

    monkeypatch.setattr(bench_stacks, "EngineSteps", Watched)
    small = [TraceRequest(tuple(t % 97 for t in r.prompt_ids), 2) for r in trace]
    loaded, _ = bench_stacks.load(model, bench_stacks.Dtype.float64)
    for stack in (bench_stacks.Stack.paged, bench_stacks.Stack.continuous, bench_stacks.Stack.prefix):
        assert bench_stacks.run(stack, loaded, small)["errors"] == {}
    paged, continuous, prefix = made
    assert paged.scheduler.max_num_seqs == 1
    assert (paged.blocks.hit_tokens, continuous.blocks.hit_tokens) == (0, 0)
    assert prefix.blocks.hit_tokens >= bench_stacks.SHARED_TOKENS


def refused(*arguments, match: str) -> None:
    with pytest.raises(BookError, match=match):
        run(*arguments)


def test_bad_traces(model, board, tmp_path):
    file = tmp_path / "trace.json"
    refused("--trace", file, "--model", model, match="there is no such file")
    file.write_text('{"requests": [{"prompt_ids": [1], "max_new_tokens": 0}]}')
    refused("--trace", file, "--model", model, match=r"trace\.json: requests\[0\]\.max_new_tokens")
    file.write_text('{"requests": [{"prompt_ids": [1, 97], "max_new_tokens": 2}]}')
    refused("--trace", file, "--model", model, match=r"trace\.json: requests\[0\]\.prompt_ids\[1\]: 97")
    file.write_text('{"requests": [{"prompt_ids": [1], "max_new_tokens": 256}]}')
    refused("--trace", file, "--model", model, match="context holds 256")
    assert not board.exists()


def test_bad_options(model, board, trace, tmp_path):
    refused("--trace", trace, "--json", tmp_path / "o.json", "--stack", "all", "--model", model, match="one stack")
    refused("--trace", trace, "--model", tmp_path / "none", match="no such folder")
    refused("--trace", trace, "--model", tmp_path, match="can't be loaded")
    (tmp_path / "file").touch()
    refused("--trace", trace, "--json", tmp_path / "file" / "o.json", match="can't be written")


@pytest.mark.parametrize(
    ("options", "first"),
    [(["--trace", "none.json"], "--trace"), (["--threads", "1"], "--threads"), (["--json", "o.json"], "--json")],
)
def test_options_before_a_subcommand_are_refused(options, first):
    for command in (["engine"], ["mlp"], ["make-trace", "file.json"]):
        refused(*options, *command, match=f"{first} stands before {command[0]}")


def test_more_threads_than_any_machine_runs():
    for command in ([], ["engine"], ["mlp"]):
        assert "less than or equal to 256" in run(*command, "--threads", 100000, code=2)


def test_broken_scoreboard_is_heard_of_first(model, board, trace):
    board.write_text("{")
    refused("--trace", trace, "--model", model, match="move it away")
    assert board.read_text() == "{"


def test_interrupted_run_keeps_its_report_off_the_board(model, board, trace, tmp_path, monkeypatch):
    def generate(prompt_ids, n):
        if n == 3:
            raise KeyboardInterrupt
        yield from range(n)

    monkeypatch.setattr(bench_stacks, "one_at_a_time", lambda stack, model: generate)
    out = tmp_path / "o.json"
    output = run("--trace", trace, "--json", out, "--stack", "naive", "--model", model, code=130)
    assert "interrupted" in output
    report = json.loads(out.read_text())
    assert (report["interrupted"], report["total"]["requests"]) == (True, 1)
    assert not board.exists()


def test_a_run_without_an_answer_shows_no_table(model, board, trace, monkeypatch):
    def generate(prompt_ids, n):
        if n != 2:  # 2: the warm-up
            raise KeyboardInterrupt
        yield from range(n)

    monkeypatch.setattr(bench_stacks, "one_at_a_time", lambda stack, model: generate)
    output = run("--trace", trace, "--stack", "naive", "--model", model, code=130)
    assert "2 requests not counted: interrupted" in output
    assert "tok/s" not in output


def test_ctrl_c_ends_a_batch_that_runs_in_a_thread(model, trace, tmp_path):
    """As typed: a batch of 250 steps, and Ctrl-C in the first of them."""
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job is born deaf to it
        "from shared.model.transformer import Transformer\n"
        "real, calls = Transformer.forward, []\n"
        "def slow(self, *given, **named):\n"
        "    calls.append(time.sleep(0.05))\n"
        "    if len(calls) == 10: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(self, *given, **named)\n"
        "Transformer.forward = slow\n"
        "from chapters.bench import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: print('steps:', len(calls))\n"
    )
    trace.write_text(json.dumps({"requests": [{"prompt_ids": [1], "max_new_tokens": 250}]}))
    options = ["--stack", "window", "--trace", str(trace), "--model", str(model), "--json", str(tmp_path / "o.json")]
    done = subprocess.run([sys.executable, "-c", code, *options], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert int(done.stdout.split("steps:")[1]) < 40
    assert json.loads((tmp_path / "o.json").read_text())["interrupted"]


def test_make_trace(tmp_path):
    file = tmp_path / "t.json"
    output = run("make-trace", file, "--requests", 3, "--output-lengths", "256", "--prompt-lengths", "4:8", "--rate", 5)
    assert "3 requests, 768 new tokens" in output
    requests = json.loads(file.read_text())["requests"]
    assert {r["max_new_tokens"] for r in requests} == {256}
    assert all(4 <= len(r["prompt_ids"]) <= 8 for r in requests)
    assert all(r["at"] > 0 for r in requests)
    refused("make-trace", file, "--output-lengths", "many", match="--output-lengths")
    refused("make-trace", file, "--output-lengths", "9:3", match="output_lengths")
    assert len(json.loads(file.read_text())["requests"]) == 3


def test_mlp(tmp_path, monkeypatch):
    report = {"numpy_s": 1.5, "torch_s": 2.0, "ratio": 0.75}
    monkeypatch.setattr("shared.training.bench_mlp.bench_mlp", lambda **options: report)
    output = run("mlp", "--json", tmp_path / "mlp.json")
    assert "0.75" in output
    assert json.loads((tmp_path / "mlp.json").read_text()) == report


def test_from_the_command_line(model, tmp_path):
    """As typed; an error is one line on stderr, and the exit code is 2."""
    command = [sys.executable, "-m", "chapters", "bench", "--trace", str(tmp_path / "none.json"), "--model", str(model)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == f"{tmp_path / 'none.json'}: there is no such file"
