"""`python -m shared.serving` as a process: how it starts, what it says, how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import get_args

import httpx
import pytest

import shared
from shared.inference.attention import BACKENDS
from shared.serving.__main__ import listen, main
from shared.serving.run import ready_lines, serve
from shared.serving.settings import Attention, Settings
from tests.serving.live import write_tiny_model

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "API_KEY": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def serving(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "shared.serving", *map(str, arguments)]


def failing(*arguments: object, env=ENV) -> str:
    """Run to the end, which must be status 2 with a message and no traceback."""
    done = subprocess.run(serving(*arguments), cwd=shared.ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


@contextmanager
def running(*arguments: object, env=ENV, until=r"Ready: (http://\S+)", command=None):
    """The server, once it has printed `until`: yields the process, what was found, and the lines printed so far."""
    process = subprocess.Popen(
        command or serving(*arguments),
        cwd=shared.ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed = []
        for line in process.stdout:
            printed.append(line)
            if found := re.search(until, line):
                break
        else:
            pytest.fail("it ended: " + "".join(printed))
        yield process, found[1], printed
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_it_starts_answers_and_stops_with_streams_open(folder):
    """Without a key it is for this computer only."""
    with running("--model", folder, "--port", 0, "--threads", 1) as (process, address, printed):
        assert printed[0].startswith("Loading ")
        assert "float32 on cpu" in printed[0]
        with httpx.Client(base_url=address, timeout=20, trust_env=False) as client:
            assert client.get("/health/ready").status_code == 200
            assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny"]
            ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
            assert client.post("/v1/chat/completions", json=ask).json()["usage"]["completion_tokens"] > 0
            with open_streams(client, 8):
                process.send_signal(signal.SIGTERM)
                start = time.monotonic()
                assert process.wait(timeout=10) == 0
                assert time.monotonic() - start < 5
        assert process.stdout.read() == ""


@contextmanager
def open_streams(client: httpx.Client, n: int):
    """n streams, all of them begun."""
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with ExitStack() as stack:
        for _ in range(n):
            response = stack.enter_context(client.stream("POST", "/v1/chat/completions", json=ask))
            next(response.iter_lines())
        yield


def test_int8_in_little_memory_with_a_key_from_the_environment(folder):
    """A block of 16 tokens takes 3 layers * 2 heads * 8 numbers * 2 * 16 * 4 bytes = 6,144."""
    options = ("--threads", 1, "--dtype", "int8", "--attention", "gather", "--max-num-seqs", 4, "--kv-memory", 1)
    env = {**ENV, "API_KEY": "sesame"}
    with running("--model", folder, "--port", 0, "--max-waiting", 0, *options, env=env) as (_, address, printed):
        assert "int8 on cpu" in printed[0]
        assert printed[1] == (
            "Attention: gather. KV cache: 162 blocks of 16 tokens = 2,592 tokens, 1 MB; "
            "10.1 requests of 256 tokens fit.\n"
        )
        with httpx.Client(base_url=address, timeout=20, trust_env=False) as client:
            assert client.get("/v1/models").status_code == 401
            client.headers["Authorization"] = "Bearer sesame"
            assert client.get("/v1/models").status_code == 200
            ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
            assert client.post("/v1/chat/completions", json=ask).json()["usage"]["completion_tokens"] > 0


def test_ctrl_c_twice_with_streams_open(folder):
    """The first ends the streams and waits for a body that doesn't come; the second ends that."""
    with (
        running("--model", folder, "--port", 0) as (process, address, _),
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as half,
        httpx.Client(base_url=address, timeout=20, trust_env=False) as client,
        open_streams(client, 4),
    ):
        half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 0
        assert process.stdout.read() == ""


def script(before: str, *options: object) -> list[str]:
    """The command, in a process that runs `before` first. There acts[name] = f has f called when name is imported."""
    code = f"""
import runpy, sys, time
import shared
class Finder:
    def find_spec(self, name, path, target=None):
        if name in acts: acts.pop(name)()
acts = {{}}
sys.meta_path.insert(0, Finder())
{before}
sys.argv = ["serving", "--port", "0", *{[*map(str, options)]!r}]
runpy.run_module("shared.serving", run_name="__main__", alter_sys=True)
"""
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_import_that_swallows_exceptions(number):
    before = """
def slow():
    print("importing", flush=True)
    try:
        time.sleep(20)
    except BaseException:
        raise ImportError("the signal was taken for something else")
acts["shared.serving.run"] = slow
"""
    with running(until="(importing)", command=script(before)) as (process, _, _):
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
        assert process.stdout.read() == ""


def test_sigterm_while_torch_loads(folder):
    """The thread that loads is inside C++ code when the process ends; it must not take it down with an abort."""
    before = """
import threading, torch
import shared.serving.served_model as served
def load_for_ever(*_, **__):
    print("busy", flush=True)
    x = torch.ones(500)
    while True:
        x = x + 1
served.load_model = load_for_ever
"""
    with running(until="(busy)", command=script(before, "--model", folder)) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert process.stdout.read() == ""


def test_a_port_that_is_taken_is_told_at_once(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        start = time.monotonic()
        message = failing("--model", folder, "--port", port)
        took = time.monotonic() - start
    assert f"Port {port} is already taken" in message
    assert f"--port {port + 1}" in message
    assert f"make serve PORT={port + 1}" in message
    assert took < 5


def test_a_public_address_needs_a_key(capsys):
    for host, message in {"0.0.0.0": "API_KEY=", "::": "API_KEY=", "no.such.host.invalid": "--host no.such"}.items():
        with pytest.raises(SystemExit, match="2"):
            listen(host, 0, None)
        assert message in capsys.readouterr().err


def test_options_that_are_wrong_are_told_at_once(tmp_path):
    assert "there is no such folder" in failing("--model", tmp_path / "missing", "--port", 0)
    unknown = failing("--attention", "quick")
    assert "--attention" in unknown
    for name in ("auto", *BACKENDS):
        assert name in unknown
    assert "can't be sent in a header" in failing("--port", 0, env={**ENV, "API_KEY": "sésame"})


@pytest.mark.parametrize("key", ["sésame", "two words", "  ", "new\nline", "tab\t"])
def test_a_key_that_cannot_be_sent(key, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(port=0, api_key=key)
    assert "can't be sent in a header" in capsys.readouterr().err


def test_the_backends_are_the_engine_s():
    assert set(get_args(Attention)) == {"auto", *BACKENDS}


def test_a_device_that_is_not_there(folder, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert serve(sock, Settings(model=folder, device="cuda")) == 2
    assert "no CUDA device" in capsys.readouterr().err


def failing_in_process(capsys, monkeypatch, model: Path, **settings) -> str:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert serve(sock, Settings(model=model, device="cpu", **settings)) == 2
    return capsys.readouterr().err


def test_a_model_that_is_none(folder, tmp_path, capsys, monkeypatch):
    for file in folder.iterdir():
        content = b"nonsense" if file.name == "model.safetensors" else file.read_bytes()
        (tmp_path / file.name).write_bytes(content)
    message = failing_in_process(capsys, monkeypatch, tmp_path)
    assert message.startswith(f"{tmp_path} can't be served: ")
    assert f"{tmp_path / 'model.safetensors'}" in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "varlen"}, "--attention varlen: .*CUDA device.* Without it"),
        ({"kv_memory": 10**9}, r"--kv-memory 1000000000: only [\d,]+ MB are available"),
    ],
)
def test_settings_that_cannot_be_had(folder, capsys, monkeypatch, settings, message):
    """The option is to blame, and named first; the model isn't."""
    assert re.match(message, failing_in_process(capsys, monkeypatch, folder, **settings))


def test_the_reader_s_parts_are_named(monkeypatch):
    monkeypatch.setattr(shared, "reader_parts", lambda: ["the first", "the second"])
    assert ready_lines("127.0.0.1", 80) == ["the first", "the second", "Ready: http://127.0.0.1:80  (Ctrl-C stops it)"]
    monkeypatch.setattr(shared, "reader_parts", lambda: [])
    nothing, address = ready_lines("::1", 80)
    assert "book's own parts" in nothing
    assert "http://[::1]:80 " in address


def test_a_part_of_the_reader_s_that_cannot_be_loaded():
    before = """
def broken():
    raise ImportError("your part is broken")
acts["shared.serving.run"] = broken
"""
    done = subprocess.run(script(before), cwd=shared.ROOT, env=ENV, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "The server can't start: your part is broken\n"


def test_as_many_files_as_the_system_allows():
    resource = pytest.importorskip("resource")
    from shared.serving.__main__ import raise_file_limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == (10_240 if hard == resource.RLIM_INFINITY else hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
