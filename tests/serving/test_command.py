"""`python -m shared.serving` as a process: how it starts, what it says, how it ends."""

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest

import shared
from shared.inference.attention import BACKENDS
from tests.serving.command import ENV, client_of, engine_of, failing, running, script
from tests.serving.engine_processes import alive
from tests.serving.live import until

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


def test_sigterm_while_the_model_is_loaded(folder, tmp_path):
    """It was wanted: nothing has failed."""
    log = tmp_path / "log"
    with running("--model", folder, "--port", 0, "--log-file", log, until="(Loading)") as (process, _, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert process.stdout.read() == "Stopped.\n"
    assert " error " not in log.read_text()


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


def test_options_that_are_wrong_are_told_at_once(tmp_path):
    assert "there is no such folder." in failing("--model", tmp_path / "missing", "--port", 0)
    (tmp_path / "own.training").mkdir()
    assert "python -m shared.training goes on with it" in failing("--model", tmp_path / "own", "--port", 0)
    assert "no config.json" in failing("--degrade", tmp_path, "--port", 0)
    assert "--cost-per-hour inf: must be" in failing("--cost-per-hour", "inf")
    assert "--grace inf: must be" in failing("--grace", "inf")
    assert "API_KEY=" in failing("--host", "0.0.0.0", "--port", 0)
    unknown = failing("--attention", "quick")
    assert "--attention" in unknown
    for name in ("auto", *BACKENDS):
        assert name in unknown
    assert "can't be sent in a header" in failing("--port", 0, env={**ENV, "API_KEY": "sésame"})


def test_a_part_of_the_reader_s_that_cannot_be_loaded():
    before = """
def broken():
    raise ImportError("your part is broken")
acts["shared.serving.run"] = broken
"""
    done = subprocess.run(script(before), cwd=shared.ROOT, env=ENV, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "The server can't start: your part is broken\n"
