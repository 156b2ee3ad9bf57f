"""python -m shared.serving.engines.engine_process --fd N MODEL: the process that computes. Token ids in, token ids out.

It's started by the API process (process_engine.py) and talks to nobody else, over a socket that it inherits; when that
is closed, it ends, whatever it is doing. Its main thread steps the engine; a second one listens, and answers pings at
once, so that one can tell a long step from a process that hangs.
"""

import signal

if __name__ == "__main__":  # before all other imports: these may be sent to both processes, and the other one decides
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

import argparse
import ctypes
import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shared import ROOT, in_words, own_line
from shared.serving.engines.wire import TO_ENGINE, Frame, FrameReader, Outbox, pack

if TYPE_CHECKING:
    from shared.inference.llm_engine import LLMEngine
    from shared.inference.outputs import GenerationError, RequestOutput

REST_S = 0.2  # without work, and the engine is at rest
PR_SET_PDEATHSIG = 1  # Linux's prctl: a signal for this process when the one that started it is gone


class Link:
    """The two ends' conversation, as this process sees it. Only `run` is for another thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.outbox = sock, Outbox(sock)
        self.began: float | None = None  # when the step that runs began
        self._arrived: list[Frame] = []
        self._changed = threading.Condition()

    def run(self, on_end: Callable[[str], None]) -> None:
        """Listen until the other side is gone, or says what can't be understood; then call on_end with the reason."""
        reader, why = FrameReader(TO_ENGINE), ""
        try:
            while data := self._sock.recv(2**18):
                for frame in reader.feed(data):
                    if frame[0] == "ping":
                        self.outbox.put(pack("pong", self.began))
                    else:
                        with self._changed:
                            self._arrived.append(frame)
                            self._changed.notify()
            reader.end()
        except OSError:
            pass  # gone, too
        except Exception as error:
            why = in_words(error)
        on_end(why)

    def take(self, wait: bool, at_most_s: float | None = None) -> list[Frame]:
        """What has arrived. wait: until there is something, or for at_most_s seconds."""
        if wait:
            self.outbox.flush()
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._arrived, at_most_s)
            arrived, self._arrived = self._arrived, []
        return arrived


def serve(engine: "LLMEngine", link: Link) -> None:
    """Step while there is work, sleep while there is none, for ever. Raises what the engine raises, which is a bug."""
    from dataclasses import astuple, replace

    from shared.inference.step_meter import StepMeter
    from shared.observability.gc_pauses import GcPauses

    pauses = GcPauses()
    pauses.start()
    meter = StepMeter(engine, gc_pauses=pauses)
    last = None  # the last step's numbers, until it's told how things are at rest
    while True:
        frames = link.take(wait=not engine.has_unfinished, at_most_s=None if last is None else REST_S)
        for frame in frames:
            obey(engine, frame, link)
        if not engine.has_unfinished:
            if last is not None and not frames:  # what has left since then holds no blocks any more
                free, cached = engine.blocks.num_free, engine.blocks.num_free_cached
                at_rest = replace(
                    last, at=time.monotonic(), seconds=0.0, num_running=0, num_waiting=0, batch_tokens=0, gc_pauses=(),
                    kv_waste=None, num_free_blocks=free, num_cached_blocks=cached,
                )  # fmt: skip
                link.outbox.put(pack("step", astuple(at_rest), [], {}, {}))
                last = None
            continue
        link.began = time.monotonic()
        metered = meter.step()
        link.began, last = None, metered.stats
        outputs = [spoken(number, output) for number, output in metered.outputs]
        link.outbox.put(pack("step", astuple(metered.stats), outputs, metered.admitted, metered.tokens))


def obey(engine: "LLMEngine", frame: Frame, link: Link) -> None:
    """What is asked for between two steps."""
    from shared.inference.sampling import SamplingParams

    kind, *fields = frame
    if kind == "abort":
        engine.abort(*fields)
    elif kind == "map":
        link.outbox.put(pack("map", fields[0], engine.block_map()))
    elif kind == "add":
        number, prompt_ids, params, priority, output_ids, index = fields
        try:
            params = SamplingParams(**{**params, "stop": ()})  # texts are not this process's business
            engine.add_request(number, prompt_ids, params, priority, output_ids, index)
        except Exception as error:  # it was checked before, so this is a bug; the others needn't pay for it
            logging.getLogger(__name__).exception("request %s was refused", number)
            link.outbox.put(pack("refused", number, in_words(error)))


def spoken(number: str, output: "RequestOutput | GenerationError") -> list[Any]:
    """An output as it goes over the wire; heard() in open_requests.py makes one of it again."""
    if isinstance(output, Exception):
        return [number, str(output)]
    logprobs = None
    if output.logprobs is not None:
        [entry] = output.logprobs  # LLMEngine's outputs are of one token each
        logprobs = entry.token_id, entry.logprob, entry.top
    return [number, output.token_ids[0], output.index, output.finish_reason, logprobs]


class LogToLink(logging.Handler):
    """What is logged here is written where the server's log goes: the other process has the settings for it."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link, self._plain = link, logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Send the line over, and its traceback, of which the end counts most; unless nobody is there any more."""
        trouble = self._plain.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
        text = record.getMessage()[:10_000]
        with suppress(OSError):
            self._link.outbox.put(pack("log", record.levelno, record.name, text, trouble[-10_000:]))


def end_with_parent() -> None:
    """Where the system can do it: be killed when the thread that started this process ends, even while this one is
    stopped and can't see that the socket is closed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Link, then model, then steps, to the end of one side or the other."""
    parser = argparse.ArgumentParser(prog="python -m shared.serving.engines.engine_process", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the API process")
    parser.add_argument("model", type=Path, help="the model's folder")
    arguments = parser.parse_args()
    end_with_parent()
    link = Link(socket.socket(fileno=arguments.fd))
    logging.basicConfig(handlers=[LogToLink(link)], level=logging.INFO, force=True)
    threading.Thread(target=link.run, args=(leave,), name="link", daemon=True).start()
    try:
        load(arguments.model, link)
    except BaseException as error:  # what a step may fail of, the engine makes outputs of; this is the end
        if not isinstance(error, SystemExit):
            logging.getLogger(__name__).critical("the engine process has failed", exc_info=error)
            with suppress(OSError):
                link.outbox.put(pack("failed", in_words(error), False))
        leave_with(link.outbox)


def load(path: Path, link: Link) -> None:
    """Be told what to load, load it, and serve it. Torch is imported only here, when pings are answered already."""
    [load, *_] = link.take(wait=True)
    options = load[1]
    gc.disable()  # importing and loading make many objects and hardly any garbage
    from dataclasses import asdict

    from shared.observability.gc_pauses import tame
    from shared.serving.engines.engine import limits_of
    from shared.serving.engines.load_engine import EngineOptions, load_engine
    from shared.serving.settings import SettingError

    try:
        engine = load_engine(path, EngineOptions(**options["engine"]), options["version"], eos_ids=options["eos_ids"])
    except Exception as error:
        plain = isinstance(error, ValueError | OSError) and str(error)
        text, where = str(error) if plain else in_words(error), own_line(error)
        if plain and where is not None:  # it may be right to refuse these files, and it may be a bug
            text += f" (said by your part {where[0].relative_to(ROOT).as_posix()}:{where[1]})"
        link.outbox.put(pack("failed", text, isinstance(error, SettingError)))
        leave_with(link.outbox)
    link.outbox.put(pack("ready", asdict(limits_of(engine, options["version"]))))
    gc.enable()
    tame()
    serve(engine, link)


def leave(why: str) -> None:
    """The other side is gone, or can't be understood. In order this process can't end while a thread is in torch."""
    if why:
        print(f"engine process: {why}", file=sys.stderr, flush=True)
    os._exit(0)


def leave_with(outbox: Outbox) -> NoReturn:
    """It has failed, and the last it has to say is in `outbox`."""
    with suppress(OSError):
        outbox.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
