"""The peers: what is measured of each stack, the child process and its messages, and the conversion to GGUF."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.torch import save_file

from shared.inference.peers import PEERS, Peer, __main__, run
from shared.inference.peers.converted import converted, work_folder
from shared.inference.peers.rates import check_lengths, rates, sorted_batches, tokens_to_come
from shared.inference.peers.run import PeerFailed, PeerMissing, run_peer
from shared.inference.peers.to_gguf import interleaved, write_gguf
from shared.measure.trace import TraceRequest, write_trace
from tests.tiny import TINY, tiny_model

TRACE = [TraceRequest((5, 6, 7), 4), TraceRequest((8, 9), 3)]


def test_rates_on_a_stack_of_known_speed(monkeypatch):
    """1 ms for a prompt's token and 10 for a new one, on a clock that moves only so."""
    now, told, prompts = [0.0], [], []
    monkeypatch.setattr("shared.inference.peers.rates.time.perf_counter", lambda: now[0])

    def answer(requests, tell):
        for request in requests:
            prompts.append(request.prompt_ids)
            now[0] += 0.001 * len(request.prompt_ids) + 0.01 * request.max_new_tokens
            tell(request.max_new_tokens)
        return [[1] * request.max_new_tokens for request in requests]

    found = rates(answer, TRACE, 97, told.append)
    assert found["decode1_tok_s"] == pytest.approx(100.0)
    assert found["prefill512_tok_s"] == pytest.approx(512 / 0.522)
    assert found["out_tok_s"] == pytest.approx(7 / 0.075)
    assert found["total_tok_s"] == pytest.approx(12 / 0.075)
    assert (found["prompt_tokens"], found["output_tokens"]) == (5, 7)
    assert found["first_tokens"] == [1, 1]
    assert sum(told) == tokens_to_come(TRACE)
    assert len(set(prompts)) == len(prompts)  # no prefix cache is of any help
    assert all(0 <= token < 97 for prompt in prompts for token in prompt)


def test_the_work_must_be_the_same():
    check_lengths([[1] * 4, [1] * 3], TRACE)
    with pytest.raises(ValueError, match=r"requests\[1\]: 2 tokens of the 3"):
        check_lengths([[1] * 4, [1] * 2], TRACE)
    with pytest.raises(ValueError, match="1 answers to 2"):
        check_lengths([[1] * 4], TRACE)


def test_static_batches_hold_neighbours():
    requests = [TraceRequest((1,), n) for n in (5, 9, 1, 7, 3)]
    assert sorted_batches(requests, 2) == [[1, 3], [0, 4], [2]]


# a child that says what it is told to, and then ends with a code
CHILD = """#!{python}
import os, sys, time
pipe = int(sys.argv[sys.argv.index("--pipe") + 1])
print("a word on stdout"); print("the last word", file=sys.stderr)
os.write(pipe, {messages!r}.encode())
if {hang}:
    open({file!r}, "w").write(str(os.getpid()))
    time.sleep(60)
sys.exit({code})
"""


def child(folder: Path, *messages: dict, code: int = 0, hang: bool = False) -> str:
    file = folder / "python"
    text = "".join(json.dumps(message) + "\n" for message in messages)
    values = {"python": sys.executable, "messages": text, "code": code, "hang": hang, "file": str(folder / "pid")}
    file.write_text(CHILD.format(**values))
    file.chmod(0o755)
    return str(file)


def ask(python: str, told=lambda n: None, say=lambda text: None) -> dict:
    return run_peer("transformers", Path("model"), Path("trace.json"), 1, told, say, python)


def test_messages_arrive(tmp_path):
    told, said = [], []
    messages = {"say": "converting"}, {"told": 3}, {"told": 4}, {"report": {"out_tok_s": 1.5}}
    assert ask(child(tmp_path, *messages), told.append, said.append) == {"out_tok_s": 1.5}
    assert told == [3, 4]
    assert said == ["transformers: converting"]


def test_a_missing_peer_says_what_to_install(tmp_path):
    with pytest.raises(PeerMissing, match=r"No module named 'x'; install transformers: pip install -e '.\[bench\]'"):
        ask(child(tmp_path, {"missing": "No module named 'x'"}))


def test_a_failure_shows_the_end_of_what_it_printed(tmp_path):
    with pytest.raises(PeerFailed, match=r"(?s)exit code 3.*the last word"):
        ask(child(tmp_path, {"told": 1}, code=3))
    with pytest.raises(PeerFailed, match="nowhere can't be run"):
        ask(str(tmp_path / "nowhere"))


def test_ctrl_c_leaves_no_child_behind(tmp_path):
    def interrupt(n):
        while not (tmp_path / "pid").exists():
            pass
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(child(tmp_path, {"told": 1}, hang=True), interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_threads_and_waiting_are_set_from_outside(tmp_path, monkeypatch):
    """torch's peer gets our way to wait; the others are left to their own."""
    seen = []

    class Caught(Exception):
        pass

    def popen(command, env, **options):
        seen.append(env)
        raise Caught

    monkeypatch.setattr(run.subprocess, "Popen", popen)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    for name in ("transformers", "openvino_fp32"):
        with pytest.raises(Caught):
            run_peer(name, Path("m"), Path("t"), 2, print, print)
    assert [env.get("OMP_WAIT_POLICY") for env in seen] == ["PASSIVE", None]
    assert {env["OMP_NUM_THREADS"] for env in seen} == {"2"}


def run_main(monkeypatch, tmp_path, load) -> list[dict]:
    module = types.ModuleType("fake_peer")
    module.load = load
    monkeypatch.setitem(sys.modules, "shared.inference.peers.fake_peer", module)
    monkeypatch.setitem(PEERS, "fake", Peer("fake_peer", "fp32", "", ()))
    (tmp_path / "config.json").write_text('{"vocab_size": 97}')
    write_trace(TRACE, tmp_path / "trace.json")
    read, write = os.pipe()
    arguments = ["--model", tmp_path, "--trace", tmp_path / "trace.json", "--threads", 1, "--pipe", write]
    monkeypatch.setattr(sys, "argv", ["peers", "fake", *map(str, arguments)])
    __main__.main()
    with os.fdopen(read) as pipe:
        return [json.loads(line) for line in pipe]


def test_the_child_measures_and_reports(monkeypatch, tmp_path):
    def load(model_dir, work_dir, threads, variant, say):
        say("converting")
        return lambda requests, told: [[3] * r.max_new_tokens for r in requests]

    messages = run_main(monkeypatch, tmp_path, load)
    assert messages[0] == {"say": "converting"}
    assert messages[-1]["report"]["output_tokens"] == 7


def test_the_child_tells_what_is_missing(monkeypatch, tmp_path):
    def load(*arguments):
        raise ImportError("No module named 'fast'")

    assert run_main(monkeypatch, tmp_path, load) == [{"missing": "No module named 'fast'"}]


def test_a_conversion_is_there_as_a_whole_or_not_at_all(tmp_path):
    target, said, made = tmp_path / "new" / "folder", [], []

    def half(path):
        path.mkdir()
        (path / "a").touch()
        raise OSError("disk full")

    def whole(path):
        path.mkdir()
        made.append(path)

    with pytest.raises(OSError, match="disk full"):
        converted(target, half, said.append)
    assert list(target.parent.iterdir()) == []
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    killed, working = (target.parent / f".{pid}.part-folder" for pid in (dead.pid, os.getppid()))
    killed.mkdir()
    working.mkdir()
    for _ in range(2):
        assert converted(target, whole, said.append) == target
    assert set(target.parent.iterdir()) == {target, working}  # what a killed process left is gone
    assert len(made) == 1
    assert len(said) == 2


def test_other_weights_other_folder(tmp_path):
    (tmp_path / "config.json").touch()
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1")
    before = work_folder(tmp_path, Path("root"))
    assert before == work_folder(tmp_path, Path("root"))
    weights.write_bytes(b"12")
    assert work_folder(tmp_path, Path("root")) != before


def test_interleaved_rows_give_the_same_scores():
    """llama.cpp turns neighbours (2i, 2i + 1) where Hugging Face turns (i, i + d/2); q and k meet in a dot product."""
    rng = np.random.default_rng(0)
    heads, dim, width, position = 3, 8, 5, 7.0
    x = rng.normal(size=width)
    weights = rng.normal(size=(2, heads * dim, width))
    angles = position * 0.3 ** np.arange(dim // 2)

    def turned(a, b):
        return a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)

    def halves(weight):
        v = (weight @ x).reshape(heads, dim)
        return np.concatenate(turned(v[:, : dim // 2], v[:, dim // 2 :]), axis=1)

    def neighbours(weight):
        v = (weight @ x).reshape(heads, dim)
        return np.stack(turned(v[:, ::2], v[:, 1::2]), axis=2).reshape(heads, dim)

    q, k = weights
    want = (halves(q) * (k @ x).reshape(heads, dim)).sum(1)
    got = (neighbours(interleaved(q, heads)) * (interleaved(k, heads) @ x).reshape(heads, dim)).sum(1)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_gguf_file(tmp_path):
    state = {name: weight.float() for name, weight in tiny_model().state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    config = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__ if name != "rope_scaling"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_gguf(tmp_path, tmp_path / "F32.gguf")
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "F32.gguf").tensors}
    assert len(tensors) == len(state)
    assert np.array_equal(tensors["blk.2.ffn_down.weight"], state["model.layers.2.mlp.down_proj.weight"])
    assert np.array_equal(tensors["token_embd.weight"], state["model.embed_tokens.weight"])
    k = state["model.layers.0.self_attn.k_proj.weight"]  # two heads of eight
    order = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert np.array_equal(tensors["blk.0.attn_k.weight"], k[order])
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_scaling": {"factor": 2}}))
    with pytest.raises(ValueError, match="rope_scaling"):
        write_gguf(tmp_path, tmp_path / "other.gguf")
