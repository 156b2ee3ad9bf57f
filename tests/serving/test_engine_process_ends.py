"""An engine process that can't begin says why, and none survives the process that started it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shared
from shared.serving.engines.engine import EngineFailed
from shared.serving.engines.engine_child import COMMAND
from shared.serving.engines.load_engine import EngineOptions, load_engine
from shared.serving.engines.process_engine import ProcessEngine
from shared.serving.settings import SettingError
from tests.serving.engine_processes import alive
from tests.serving.live import until


def test_weights_that_cannot_be_loaded(folder, tmp_path):
    for file in folder.iterdir():
        content = b"nonsense" if file.name == "model.safetensors" else file.read_bytes()
        (tmp_path / file.name).write_bytes(content)

    async def test():
        engine = ProcessEngine(tmp_path, EngineOptions(threads=1, attention="gather"))
        with pytest.raises(EngineFailed, match=r"model\.safetensors") as failed:
            await engine.start()
        assert not failed.value.setting
        assert engine.state == "failed"
        await engine.stop()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EngineOptions(device="cpu", attention="varlen"), "--attention varlen: .*CUDA device.* Without it"),
        (EngineOptions(device="cpu", kv_memory=10**9), r"--kv-memory 1000000000: only [\d,]+ MB are available"),
    ],
)
def test_settings_that_cannot_be_had(folder, options, message):
    """The option is to blame, and named first; the model isn't."""
    with pytest.raises(SettingError, match=message):
        load_engine(folder, options)


PARENT = """
import asyncio, sys
from pathlib import Path
from shared.serving.engines.process_engine import ProcessEngine
from tests.inference.scripted import ByteTokenizer
async def main():
    engine = ProcessEngine(Path("."), tokenizer=ByteTokenizer(), command=sys.argv[1:])
    asyncio.create_task(engine.start())
    while engine.pid is None:
        await asyncio.sleep(0.01)
    print("pid", engine.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_it_never_survives_the_api_process(folder, stopped):
    """Not even a kill -9 of that; nor if it is stopped itself, where the system has a way for that."""
    if stopped and sys.platform != "linux":
        pytest.skip("only Linux can end a stopped process with its parent")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *COMMAND], cwd=shared.ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        pid = int(re.match(r"pid (\d+)", parent.stdout.readline())[1])
        if stopped:
            threads = Path(f"/proc/{pid}/task")
            until(lambda: len(list(threads.iterdir())) > 1)  # it asks for that before it listens, in a second thread
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        end = time.monotonic() + 5
        while alive(pid) and state_of(pid) != "Z":
            assert time.monotonic() < end, "it is still there"
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def state_of(pid: int) -> str:
    """Z: it has ended, and whoever inherited it hasn't asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
