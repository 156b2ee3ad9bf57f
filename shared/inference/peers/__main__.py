"""The child process: one peer, measured. It tells its parent how far it is, and the result, on a pipe of their own.

Each message is a line of JSON with one key: {"say": text}, {"told": tokens}, {"missing": what}, {"report": rates}.
"""

import argparse
import importlib
import json
import os
from pathlib import Path

from shared.inference.peers import PEERS
from shared.inference.peers.converted import work_folder
from shared.inference.peers.rates import rates
from shared.measure.trace import read_trace


def main() -> None:
    """Measure the peer that the command line names. A missing package is told on the pipe; other errors end it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--pipe", type=int, required=True, help="a file descriptor to write to")
    options = parser.parse_args()
    with os.fdopen(options.pipe, "w", encoding="utf-8") as pipe:

        def send(**message: object) -> None:
            print(json.dumps(message), file=pipe, flush=True)

        peer = PEERS[options.name]
        module = importlib.import_module(f"shared.inference.peers.{peer.module}")
        try:
            answer = module.load(
                options.model,
                work_folder(options.model),
                options.threads,
                peer.variant,
                lambda text: send(say=text),
            )
        except ImportError as error:
            send(missing=str(error))
            return
        config = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
        trace = read_trace(options.trace)
        send(report=rates(answer, trace, config["vocab_size"], lambda n: send(told=n)))


if __name__ == "__main__":
    main()
