"""`python -m shared.serving` as a process: how it starts, what it says, how it ends."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import httpx
import pytest

import shared
from shared.inference.attention import BACKENDS
from shared.serving.__main__ import listen, load_keys
from shared.serving.engines.engine import EngineFailed
from shared.serving.engines.process_engine import ProcessEngine
from shared.serving.run import Complaints, ready_lines, serve
from shared.serving.settings import Attention, Settings
from tests.serving.live import until, write_tiny_model
from tests.serving.test_recovery import alive

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
    """The server, once it has printed `until`: yields the process, what was found, and the lines printed so far.

    What it logs goes elsewhere, and must hold no traceback.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command or serving(*arguments), cwd=shared.ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            printed = []
            for line in process.stdout:
                printed.append(line)
                if found := re.search(until, line):
                    break
            else:
                log.seek(0)
                pytest.fail("it ended: " + "".join(printed) + log.read())
            yield process, found[1], printed
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            log.seek(0)
            assert "Traceback" not in log.read()


@contextmanager
def client_of(address: str):
    with httpx.Client(base_url=address, timeout=20, trust_env=False) as client:
        yield client


def engine_of(process: subprocess.Popen) -> int | None:
    """The id of its engine process, if it has one."""
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(process.pid)], capture_output=True, text=True)
    lines = [line.split() for line in found.stdout.splitlines() if "engine" in line and "defunct" not in line]
    return int(lines[0][0]) if lines else None


# The server over an engine process that needs no torch, and takes its time: 20 tokens a second.
FAKE = """
import os
import shared.serving.engines.engine_child as child
os.environ["FAKE_STEP_S"] = "0.05"
child.COMMAND = (sys.executable, "-m", "tests.serving.fake_engine")
"""
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "seed": 0, "max_tokens": 40}


@contextmanager
def open_streams(client: httpx.Client, n: int):
    """n streams, all of them begun: the lines that are still to come."""
    with ExitStack() as stack:
        streams = []
        for _ in range(n):
            response = stack.enter_context(client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}))
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
            next(lines), next(lines)
            streams.append(lines)
        yield streams


def text_of(pieces: list[str]) -> str:
    return "".join(json.loads(piece)["choices"][0]["delta"].get("content") or "" for piece in pieces)


def test_an_engine_s_death_and_sigterm_with_streams_open(folder):
    """Without a key it is for this computer only. Its engine is killed, and the streams go on; then it's told to end,
    and they are finished."""
    with (
        running(until="Ready: (.*)  ", command=script(FAKE, "--model", folder)) as (process, address, printed),
        client_of(address) as client,
    ):
        assert printed[0].startswith(f"Loading {folder} (float32 on cpu)")
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
        assert [model["id"] for model in client.get("/v1/models").json()["data"]][0] == "tiny"
        whole = client.post("/v1/chat/completions", json=ASK).json()["choices"][0]["message"]["content"]
        with open_streams(client, 2) as streams:
            killed = engine_of(process)
            os.kill(killed, signal.SIGKILL)
            with client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as late:
                assert late.status_code == 200
                until(lambda: engine_of(process) not in (None, killed))
                until(lambda: client.get("/health/ready").status_code == 200)
                engine = engine_of(process)
                process.send_signal(signal.SIGTERM)
                until(lambda: client.get("/health/ready").status_code == 503)
                refused = client.post("/v1/chat/completions", json=ASK)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
                assert float(refused.headers["Retry-After"]) > 0
                for pieces in map(list, streams):
                    assert pieces.pop() == "[DONE]"
                    assert text_of(pieces) == whole[1:]
                assert text_of([line.removeprefix("data: ") for line in late.iter_lines() if line][:-1]) == whole
        assert process.wait(timeout=10) == 0
        assert not alive(engine)
        assert "3 open requests" in process.stdout.read()


def test_ctrl_c_twice_with_streams_open(folder):
    """The first lets them go on, and would wait for a body that doesn't come; the second ends both."""
    with (
        running(until="Ready: (.*)  ", command=script(FAKE, "--model", folder)) as (process, address, _),
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as half,
        client_of(address) as client,
        open_streams(client, 4) as streams,
    ):
        half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        engine = engine_of(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        for stream in streams:
            assert json.loads(list(stream)[-1])["error"]["code"] == "shutting_down"
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - began < 1.5
        assert not alive(engine)


def test_int8_in_little_memory_with_a_key_from_the_environment(folder):
    """A block of 16 tokens takes 3 layers * 2 heads * 8 numbers * 2 * 16 * 4 bytes = 6,144."""
    options = ("--threads", 1, "--dtype", "int8", "--attention", "gather", "--max-num-seqs", 4, "--kv-memory", 1)
    env = {**ENV, "API_KEY": "sesame"}
    with (
        running("--model", folder, "--port", 0, "--max-waiting", 0, *options, env=env) as (process, address, printed),
        client_of(address) as client,
    ):
        assert "int8 on cpu" in printed[0]
        assert printed[1] == (
            "Attention: gather. KV cache: 162 blocks of 16 tokens = 2,592 tokens, 1 MB; "
            "10.1 requests of 256 tokens fit.\n"
        )
        assert client.get("/v1/models").status_code == 401
        client.headers["Authorization"] = "Bearer sesame"
        assert client.get("/v1/models").status_code == 200
        assert client.post("/v1/chat/completions", json=ASK).json()["usage"]["completion_tokens"] > 0
        engine = engine_of(process)
        process.kill()  # it can't end anything in order: the engine process sees to itself
        process.wait()
        until(lambda: not alive(engine), timeout_s=5)


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


def test_sigterm_while_the_model_is_loaded(folder):
    with running("--model", folder, "--port", 0, until="(Loading)") as (process, _, _):
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
            listen(host, 0, False)
        assert message in capsys.readouterr().err


def test_options_that_are_wrong_are_told_at_once(tmp_path):
    assert "there is no such folder" in failing("--model", tmp_path / "missing", "--port", 0)
    assert "no config.json" in failing("--degrade", tmp_path, "--port", 0)
    assert "--cost-per-hour inf: must be" in failing("--cost-per-hour", "inf")
    assert "--grace inf: must be" in failing("--grace", "inf")
    unknown = failing("--attention", "quick")
    assert "--attention" in unknown
    for name in ("auto", *BACKENDS):
        assert name in unknown
    assert "can't be sent in a header" in failing("--port", 0, env={**ENV, "API_KEY": "sésame"})


def test_want_of_files_is_told_once_a_minute(caplog):
    """asyncio asks for each connection again and again, and would write megabytes of tracebacks."""
    now, told = [0.0], []
    loop = SimpleNamespace(default_exception_handler=told.append)
    complain = Complaints(lambda: now[0])
    full = {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files"), "socket": None}
    for second in range(100):
        now[0] = float(second)
        complain(loop, full)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["no connection can be taken in before others are closed: Too many open files"] * 2
    assert not told
    others = [{"message": "a bug", "exception": ValueError()}, {"message": "lost", "exception": full["exception"]},
              {"message": "a word"}]  # fmt: skip
    for other in others:
        complain(loop, other)
    assert told == others


@pytest.mark.parametrize("key", ["sésame", "two words", "  ", "new\nline", "tab\t"])
def test_a_key_that_cannot_be_sent(key, capsys):
    with pytest.raises(SystemExit, match="2"):
        load_keys(None, key, None)
    assert "can't be sent in a header" in capsys.readouterr().err


def test_the_backends_are_the_engine_s():
    assert set(get_args(Attention)) == {"auto", *BACKENDS}


def test_a_device_that_is_not_there(folder, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert serve(sock, Settings(model=folder, device="cuda")) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("setting", [False, True])
def test_what_cannot_be_loaded(folder, capsys, monkeypatch, setting):
    """An option is named first where it is to blame; the model isn't, then."""

    class Unloadable(ProcessEngine):
        async def start(self):
            raise EngineFailed("--kv-memory 5: too much" if setting else "the disk is full", setting)

    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert serve(sock, Settings(model=folder, device="cpu"), lambda path, name: Unloadable(path)) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == ("--kv-memory 5: too much" if setting else f"{folder} can't be served: the disk is full")


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
