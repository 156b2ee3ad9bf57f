"""The set-up on a bare machine: what is wrong is said at once, with the way out."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chapters import ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "chapters").mkdir()
    shutil.copy2(ROOT / "chapters/bootstrap.py", tmp_path / "chapters")
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path)
    return tmp_path


def bootstrap(clone: Path, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script, after some lines of Python that change what it sees."""
    code = f"import runpy, shutil, sys\n{before}\nrunpy.run_path('chapters/bootstrap.py', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=clone, env=os.environ | environment, capture_output=True, text=True
    )


def test_an_old_python(clone):
    run = bootstrap(clone, "sys.version_info = (3, 9, 2)")
    assert run.returncode == 1
    assert "needs Python 3.11 or newer" in run.stderr
    assert "is 3.9" in run.stderr
    assert "make setup PYTHON=" in run.stderr
    assert not (clone / ".venv").exists()


def test_no_python_at_all(clone):
    run = subprocess.run(["make", "setup", "PYTHON=python3.nothing"], cwd=clone, capture_output=True, text=True)
    assert run.returncode != 0
    assert "No python3.nothing here. Install Python 3.11" in run.stdout + run.stderr


def test_a_full_disk(clone):
    run = bootstrap(clone, "shutil.disk_usage = lambda path: type('Usage', (), {'free': 1e9})")
    assert run.returncode == 1
    assert "has 1.0 GB free" in run.stderr
    assert not (clone / ".venv").exists()


def test_no_network_then_again_then_another_requirement(clone):
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    run = bootstrap(clone, **offline)
    assert run.returncode == 1
    assert "no network" in run.stderr
    assert "run the same command again" in run.stderr
    assert not (clone / ".venv/installed").exists()  # so the next run tries again
    (clone / "requirements.txt").write_text("")
    run = bootstrap(clone, **offline)
    assert run.returncode == 0, run.stderr
    assert "The environment is ready" in run.stdout
    again = bootstrap(clone, **offline)
    assert again.returncode == 0
    assert again.stdout == ""  # nothing to do
    (clone / "requirements.txt").write_text("no-such-package-of-that-name\n")
    assert bootstrap(clone, **offline).returncode == 1  # another requirement installs again


def test_ctrl_c(clone):
    run = bootstrap(clone, "import subprocess\ndef stop(*a, **k): raise KeyboardInterrupt\nsubprocess.run = stop")
    assert run.returncode == 1
    assert "Stopped. Run the same command again" in run.stderr
    assert "Traceback" not in run.stderr


def test_ctrl_c_while_the_environment_is_made(clone):
    run = subprocess.Popen(
        [sys.executable, "chapters/bootstrap.py"], cwd=clone, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (clone / ".venv/bin").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to make's child and to all of its own
    said = run.communicate(timeout=60)[1]
    assert run.returncode == 1
    assert said.strip() == "Stopped. Run the same command again to go on; nothing half-made is used."


def test_a_venv_that_cannot_be_made_shows_why(clone):
    (clone / ".venv").write_text("a file")
    run = bootstrap(clone)
    assert run.returncode == 1
    assert ".venv" in run.stderr.partition("Python could not make a virtual environment")[0]


def test_without_a_terminal_a_line_tells_that_it_goes_on(clone):
    (clone / "requirements.txt").write_text("")
    late = """
import subprocess
wait = subprocess.Popen.wait
def after_one_alarm(self, timeout=None):
    if timeout and not hasattr(self, "told"):
        self.told = True
        raise subprocess.TimeoutExpired("pip", timeout)
    return wait(self, timeout)
subprocess.Popen.wait = after_one_alarm
"""
    run = bootstrap(clone, late)
    assert run.returncode == 0, run.stderr
    assert "still installing, 0 s" in run.stdout
