# ruff: noqa: UP031, UP036  (must run, far enough to say why not, on an old Python)
"""Make `.venv` and install the book into it. Needs nothing but Python itself; called by the Makefile.

Usage: python3 chapters/bootstrap.py
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from typing import NoReturn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "installed")
NEED_GB = 4
TELL_S = 30


def fail(message: str) -> NoReturn:
    """Say what is wrong, on standard error, and end with status 1."""
    sys.stderr.write("\n" + message + "\n")
    sys.exit(1)


def wanted() -> str:
    """What the environment depends on: the requirements, the package's own metadata, and the interpreter."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("requirements.txt", "pyproject.toml"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    digest.update(ROOT.encode())  # an environment can't be moved
    return digest.hexdigest()


def usable(python: str) -> bool:
    """True when the environment's interpreter runs and is of this version."""
    try:
        answer = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    except OSError:
        return False
    return (
        answer.stdout.strip() == sys.version.replace("\n", " ").strip() or answer.stdout.strip() == sys.version.strip()
    )


def install(python: str) -> int:
    """Install the requirements; without a terminal a line now and then stands for pip's bars. Returns pip's status."""
    quiet = not sys.stdout.isatty()
    words = [python, "-m", "pip", "install", "--disable-pip-version-check", *(["-q"] if quiet else [])]
    began = time.monotonic()
    with subprocess.Popen([*words, "-r", os.path.join(ROOT, "requirements.txt")], cwd=ROOT) as pip:
        try:
            while True:
                try:
                    return pip.wait(timeout=TELL_S)
                except subprocess.TimeoutExpired:
                    if quiet:
                        print("still installing, %.0f s" % (time.monotonic() - began), flush=True)
        finally:
            pip.kill()  # Ctrl-C may have reached this process alone


def main() -> None:
    """Make the environment, unless it is there and as wanted. Whatever stands in the way ends the program, in words."""
    if sys.version_info < (3, 11):
        fail(
            "This book needs Python 3.11 or newer; %s is %d.%d.\n"
            "Install a newer one, then name it: make setup PYTHON=python3.12" % (sys.executable, *sys.version_info[:2])
        )
    python = os.path.join(VENV, "Scripts" if os.name == "nt" else "bin", "python")
    try:
        with open(STAMP) as file:
            if file.read() == wanted() and os.path.exists(python):
                return
    except OSError:
        pass
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < NEED_GB:
        fail(
            "The environment needs about %d GB and %s has %.1f GB free. Make room, or move the folder to another disk."
            % (NEED_GB, ROOT, free_gb)
        )
    print("Setting up .venv (once; a few minutes, most of it the download of torch) ...", flush=True)
    # its words are shown when it fails: after Ctrl-C they would be a traceback
    made = subprocess.run(
        [sys.executable, "-m", "venv", *([] if usable(python) else ["--clear"]), VENV],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if made.returncode != 0:
        sys.stderr.write(made.stdout)
        fail("Python could not make a virtual environment. On Debian and Ubuntu: apt install python3-venv")
    if install(python) != 0:
        fail(
            "The packages could not be installed; pip says why above.\n"
            "  no network or a proxy: connect, or set HTTPS_PROXY, then run the same command again\n"
            "  no space left: free some; the packages take about %d GB\n"
            "  'no matching distribution' for torch: this Python is too new for it; "
            "name another: make setup PYTHON=python3.11" % NEED_GB
        )
    with open(STAMP, "w") as file:
        file.write(wanted())
    print("The environment is ready in .venv")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("Stopped. Run the same command again to go on; nothing half-made is used.")
