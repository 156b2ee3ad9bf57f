"""An engine process that starts in no time, for it has no model: its tokens are letters that follow from seed and
position. Prompts can make it misbehave, and so can FILE, if it is there: its content is what to do at the start.

Run as: python -m tests.serving.fake_engine [--plan FILE] --fd N MODEL
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path

from shared.serving.engines.wire import TO_ENGINE, FrameReader, Outbox, pack

COMMAND = (sys.executable, "-m", "tests.serving.fake_engine")
STEP_S = float(os.environ.get("FAKE_STEP_S", "0.002"))
DIES, DIES_LATER, GARBAGE, SLEEPS, FAILS = 200, 201, 202, 203, 204  # as a prompt's first token
LIMITS = {
    "max_model_len": 200, "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_blocks": 50, "block_size": 4,
    "bytes_per_block": 1, "vocab_size": 256, "context": 200, "attention": "none", "device": "cpu", "dtype": "float32",
    "version": "v1",
}  # fmt: skip


def token(seed: int, position: int) -> int:
    """>>> chr(token(0, 0)), chr(token(1, 0)), chr(token(0, 1))
    ('a', 'f', 'h')
    """
    return 97 + (seed * 31 + position * 7) % 26


def answer(seed: int, n_prompt: int, n: int) -> str:
    """What it says to a prompt of so many tokens."""
    return "".join(chr(token(seed, n_prompt + i)) for i in range(n))


def begin(plan: Path | None, outbox: Outbox) -> None:
    """Misbehave as the plan's first line says, and strike it out."""
    lines = plan.read_text().split() if plan is not None and plan.is_file() else []
    if not lines:
        return
    plan.write_text("\n".join(lines[1:]))
    if lines[0] in ("fail", "setting"):
        setting = lines[0] == "setting"
        outbox.put(pack("failed", "--device none: there is none" if setting else "the disk is full", setting))
        sys.exit(1)
    if lines[0] == "exit":
        sys.exit(7)
    if lines[0] == "silent":
        time.sleep(30)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--fd", type=int)
    parser.add_argument("model")
    arguments = parser.parse_args()
    sock = socket.socket(fileno=arguments.fd)
    outbox, reader, running, steps = Outbox(sock), FrameReader(TO_ENGINE), {}, 0
    began = None
    while True:
        sock.settimeout(STEP_S if running else None)
        try:
            if not (data := sock.recv(2**18)):
                sys.exit(0)
        except TimeoutError:
            data = b""
        for kind, *fields in reader.feed(data):
            if kind == "load":
                begin(arguments.plan, outbox)
                outbox.put(pack("ready", {**LIMITS, "version": fields[0]["version"]}))
            elif kind == "ping":
                outbox.put(pack("pong", began))
            elif kind == "map":
                outbox.put(pack("map", fields[0], bytes([len(running)])))
            elif kind == "abort":
                for key in [key for key in running if key[0] == fields[0] and fields[1] in (None, key[1])]:
                    del running[key]
            elif kind == "add":
                number, prompt, params, _, output_ids, index = fields
                first = prompt[0]
                if first == DIES:
                    os._exit(3)
                if first == FAILS:
                    outbox.put(pack("refused", number, "ValueError: it doesn't like this one"))
                    continue
                if first == GARBAGE:
                    sock.sendall(b"\0\0\0\3abc")
                if first == SLEEPS:  # a step that never ends, in which pings are answered
                    began = time.monotonic()
                for k in range(params["n"]):
                    tokens = list(output_ids)
                    running[number, index + k] = params["seed"] + k, len(prompt), tokens, params["max_tokens"], first
        if not running or began is not None:
            continue
        outputs, dies = [], False
        for (number, index), (seed, n_prompt, tokens, max_tokens, first) in list(running.items()):
            tokens.append(token(seed, n_prompt + len(tokens)))
            dies = dies or (first == DIES_LATER and len(tokens) % 5 == 0)
            ended = len(tokens) == max_tokens
            logprobs = [tokens[-1], -0.5, [[tokens[-1], -0.5], [98, -1.5]]]
            outputs.append([number, tokens[-1], index, "length" if ended else None, logprobs])
            if ended:
                del running[number, index]
        steps += 1
        stats = [time.monotonic(), STEP_S, len(outputs), 0, len(outputs), 50, 0, 0, 0, 0, steps, 50]
        numbers = {output[0] for output in outputs}
        outbox.put(pack("step", stats, outputs, dict.fromkeys(numbers, 0), dict.fromkeys(numbers, 1)))
        if dies:
            os._exit(4)


if __name__ == "__main__":
    main()
