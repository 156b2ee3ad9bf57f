"""`python -m shared.serving` as a process: started, stopped, and asked by clients."""

import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager

import httpx
import pytest

import shared

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "API_KEY": ""}


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
