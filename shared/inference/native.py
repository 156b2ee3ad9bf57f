"""Our own kernels, kernels.cpp: built by the machine's C++ compiler when they are first asked for, and kept.

Nothing needs them. Where they can't be built, `load` says why, and torch does the same work.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import threading
from functools import cache
from pathlib import Path

from shared.measure.files import replacing

SOURCE = Path(__file__).parent / "kernels.cpp"
FOLDER = Path(__file__).resolve().parents[2] / "data" / "native"
# Not -ffast-math: it takes NaN for impossible, and switches denormal numbers off for the whole process.
FLAGS = "-O3 -march=native -fno-trapping-math -fno-math-errno -fopenmp-simd -shared -fPIC"
EXTRAS: tuple[list[str], ...] = (["-fopenmp", "-mprefer-vector-width=512"], ["-fopenmp"], [])  # the first it takes
COMPILE_TIMEOUT_S = 120
BUILDING = threading.Lock()

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
SIGNATURES = {
    "paged_attention": [_POINTER, _LONG, _LONG, *[_POINTER] * 6, *[_INT] * 4, _FLOAT, _INT],
    "store": [_POINTER, _LONG, _LONG, _POINTER, _POINTER, _INT, _INT],
    "linear": [*[_POINTER] * 3, *[_INT] * 4],
    "linear_int8": [*[_POINTER] * 6, *[_INT] * 4],
    "quantize_rows": [*[_POINTER] * 3, *[_INT] * 4],
    "scale_back": [*[_POINTER] * 4, *[_INT] * 3],
}


class NativeUnavailable(RuntimeError):
    """The kernels can't be built or loaded here; the message says why."""


@cache
def load(head_dim: int, block_size: int) -> ctypes.CDLL:
    """The kernels for these sizes; the first time on a machine it takes a second or two. Raises NativeUnavailable.

    They check nothing: whoever calls them sees to dtypes, shapes and block numbers.
    """
    with BUILDING:  # threads that ask at once would write into one file
        try:
            try:
                library = ctypes.CDLL(str(_build(head_dim, block_size)))
            except OSError:  # emptied or damaged: once more
                _build(head_dim, block_size).unlink()
                library = ctypes.CDLL(str(_build(head_dim, block_size)))
        except OSError as error:
            raise NativeUnavailable(f"the compiled kernels can't be loaded: {error}") from None
    for name, types in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return library


def _build(head_dim: int, block_size: int) -> Path:
    compiler = _compiler()
    if not compiler:
        raise NativeUnavailable("there is no C++ compiler; install one (Debian: g++; macOS: xcode-select --install)")
    sizes = [f"-DHEAD_DIM={head_dim}", f"-DBLOCK_SIZE={block_size}"]
    what = "\0".join([SOURCE.read_text(encoding="utf-8"), FLAGS, str(EXTRAS), *sizes, *compiler, _processor()])
    target = FOLDER / f"kernels-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"
    if target.exists():
        return target
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with replacing(target, to_disk=True) as temporary:  # loading one that was cut short can kill the process
            _compile([*compiler, *FLAGS.split(), *sizes, str(SOURCE), "-o", str(temporary)])
    except OSError as error:
        raise NativeUnavailable(f"the kernels can't be built: {error}") from None
    return target


def _compiler() -> list[str]:
    """CXX, which may bring arguments, or the first that is installed; empty when there is none."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NativeUnavailable(f"CXX can't be read: {error}") from None
    return named or list(filter(shutil.which, ("g++", "c++", "clang++")))[:1]


def _compile(command: list[str]) -> None:
    first = ""
    for extra in EXTRAS:
        try:
            done = subprocess.run([*command, *extra], capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise NativeUnavailable(f"{command[0]} took more than {COMPILE_TIMEOUT_S} s") from None
        if done.returncode == 0:
            return
        first = first or done.stderr.strip()
    raise NativeUnavailable(f"{command[0]} failed: {first[:500]}")


def _processor() -> str:
    """What the machine code depends on: a folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
