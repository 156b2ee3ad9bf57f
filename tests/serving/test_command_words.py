"""What the server's command says of keys, addresses, devices and parts, judged in this process."""

import errno
import signal
import socket
from types import SimpleNamespace
from typing import get_args

import pytest

import shared
from shared.inference.attention import BACKENDS
from shared.serving.__main__ import load_keys
from shared.serving.address import listen
from shared.serving.engines.engine import EngineFailed
from shared.serving.engines.process_engine import ProcessEngine
from shared.serving.run import Complaints, ready_lines, serve
from shared.serving.settings import Attention, SettingError, Settings


def test_a_public_address_needs_a_key():
    for host, message in {"0.0.0.0": "API_KEY=", "::": "API_KEY=", "no.such.host.invalid": "--host no.such"}.items():
        with pytest.raises(SettingError, match=message):
            listen(host, 0, False)


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
    monkeypatch.setattr(shared, "reader_chapters", lambda: ["the first", "the second"])
    assert ready_lines("127.0.0.1", 80) == ["the first", "the second", "Ready: http://127.0.0.1:80  (Ctrl-C stops it)"]
    monkeypatch.setattr(shared, "reader_chapters", lambda: [])
    nothing, address = ready_lines("::1", 80)
    assert "book's own parts" in nothing
    assert "http://[::1]:80 " in address


def test_as_many_files_as_the_system_allows():
    resource = pytest.importorskip("resource")
    from shared.serving.address import raise_file_limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == (10_240 if hard == resource.RLIM_INFINITY else hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
