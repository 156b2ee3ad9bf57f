"""Run a peer in a process of its own, in this environment or another, and bring back what it measured."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.inference.peers import PEERS
from shared.inference.peers.rates import Told

ROOT = Path(__file__).resolve().parents[3]
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # how torch's idle threads wait; the others know best for themselves
LOG_LINES = 15


class PeerMissing(Exception):
    """A peer that isn't installed; the message says what to do."""


class PeerFailed(Exception):
    """A peer whose process ended without a result; the message holds the end of what it printed."""


def run_peer(
    name: str,
    model_dir: Path,
    trace_file: Path,
    threads: int,
    told: Told,
    say: Callable[[str], None],
    python: str = sys.executable,
) -> dict[str, Any]:
    """Measure one peer: what `rates` returns. Raises PeerMissing and PeerFailed. The child is gone when this returns,
    however it does."""
    peer = PEERS[name]
    environment = {key: value for key, value in os.environ.items() if peer.torch or key not in WAITING}
    environment |= {key: str(threads) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    environment |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    read, write = os.pipe()
    command = [python, "-m", "shared.inference.peers", name, "--model", str(model_dir.resolve()), "--trace"]
    command += [str(trace_file.resolve()), "--threads", str(threads), "--pipe", str(write)]
    with os.fdopen(read, encoding="utf-8") as pipe, tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            child = subprocess.Popen(
                command, env=environment, cwd=ROOT, pass_fds=(write,), stdout=log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise PeerFailed(f"{python} can't be run: {error.strerror}") from None
        finally:
            os.close(write)  # the child's copy is the last one: when it dies, the pipe ends
        message: dict[str, Any] = {}
        try:
            for line in pipe:
                message = json.loads(line)
                if "told" in message:
                    told(message["told"])
                elif "say" in message:
                    say(f"{name}: {message['say']}")
            child.wait()
        finally:
            child.kill()
            child.wait()
        if "missing" in message:
            raise PeerMissing(f"{message['missing']}; install {' '.join(peer.packages)}: pip install -e '.[bench]'")
        if "report" not in message:
            log.seek(0)
            tail = "".join(log.readlines()[-LOG_LINES:]).strip()
            raise PeerFailed(f"it ended with exit code {child.returncode}, and without a result:\n{tail}")
    return dict(message["report"])
