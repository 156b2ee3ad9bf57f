"""What the API process and an engine process say to each other: msgpack frames, each behind its length. No pickle.

A frame is [kind, field, …]. Requests go by numbers of the API process's own, as text; a number is never used again, so
what an engine says of a request that has left, or of an engine before it, is known for what it is.
"""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgpack

HEAD = 4  # bytes: the length of what follows, big-endian
MAX_FRAME = 2**25  # bytes; a prompt of a million tokens takes 5 MB

Frame = list[Any]

# kind -> how many fields it has
TO_ENGINE = {
    "load": 1,  # EngineOptions' fields
    "add": 6,  # number, prompt_ids, SamplingParams' fields, priority, output_ids, index: LLMEngine.add_request's
    "abort": 2,  # number, index of the answer or None for all
    "ping": 0,  # to be answered at once
    "map": 1,  # a number, for the answer: the pool's blocks are asked for
}
FROM_ENGINE = {
    "ready": 1,  # EngineLimits' fields
    "failed": 2,  # why the model can't be loaded, or what ends it later; whether a setting is to blame
    "step": 4,  # StepStats' fields; outputs; {number: cached tokens} of those it admitted; {number: tokens computed}
    # outputs: [number, token, index, finish reason or None, logprobs or None], or [number, why it failed]
    "refused": 2,  # number of a request that wasn't taken in; why
    "pong": 1,  # when the step that runs began, or None (time.monotonic)
    "map": 2,  # the question's number; one byte a block
    "log": 4,  # level, logger's name, text, traceback or ""
}


class WireError(RuntimeError):
    """What came is no frame, or not one of those that may come."""


def pack(kind: str, *fields: Any) -> bytes:
    """A frame as bytes. Raises WireError for one that is too large."""
    body: bytes = msgpack.packb((kind, *fields))
    if len(body) > MAX_FRAME:
        raise WireError(f"a frame of kind {kind!r} has {len(body):,} bytes, and {MAX_FRAME:,} are allowed")
    return len(body).to_bytes(HEAD) + body


class FrameReader:
    """Frames out of bytes that come in any pieces. kinds: TO_ENGINE or FROM_ENGINE, whatever may come here."""

    def __init__(self, kinds: dict[str, int]) -> None:
        self._kinds = kinds
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with these bytes. Raises WireError; after that nothing more can be read."""
        self._buffer += data
        start, buffer = 0, self._buffer
        try:
            while len(buffer) - start >= HEAD:
                length = int.from_bytes(buffer[start : start + HEAD])
                if length > MAX_FRAME:
                    raise WireError(f"a frame is said to have {length:,} bytes, and {MAX_FRAME:,} are allowed")
                end = start + HEAD + length
                if end > len(buffer):
                    return
                body, start = bytes(buffer[start + HEAD : end]), end
                yield self._unpack(body)
        finally:
            del buffer[:start]

    def end(self) -> None:
        """Nothing more comes. Raises WireError in the middle of a frame."""
        if self._buffer:
            raise WireError(f"the other side ended in the middle of a frame, after {len(self._buffer):,} bytes of it")

    def _unpack(self, body: bytes) -> Frame:
        try:
            frame = msgpack.unpackb(body, strict_map_key=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise WireError(f"a frame of {len(body):,} bytes is no msgpack: {error}") from None
        if not isinstance(frame, list) or not frame or not isinstance(frame[0], str):
            raise WireError(f"a frame must be a list that begins with its kind, not {str(frame)[:100]}")
        kind, n_fields = frame[0], len(frame) - 1
        if kind not in self._kinds:
            raise WireError(f"a frame of kind {kind[:100]!r}; only {', '.join(self._kinds)} may come here")
        if n_fields != self._kinds[kind]:
            raise WireError(f"a frame of kind {kind!r} has {n_fields} fields, and must have {self._kinds[kind]}")
        return frame


class Outbox:
    """Sends from any thread. What a slow reader leaves in it is kept, and goes with the next frame or with `flush`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock, self._kept = sock, threading.Lock(), b""

    def put(self, frame: bytes) -> None:
        """Send what can be sent without waiting. Raises OSError when the other side is gone."""
        with self._lock:
            self._kept = self._kept + frame if self._kept else frame
            try:
                while self._kept:
                    self._kept = self._kept[self._sock.send(self._kept, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                pass

    def flush(self) -> None:
        """Wait until all is sent: for when there is nothing else to do."""
        with self._lock:
            if self._kept:
                self._sock.sendall(self._kept)
                self._kept = b""
