"""Frames: whole ones out of any pieces, and a clear error for what is none."""

import socket

import msgpack
import pytest

from shared.serving.engines.wire import FROM_ENGINE, TO_ENGINE, FrameReader, Outbox, WireError, pack


def read(data: bytes, kinds=TO_ENGINE, piece: int = 10**6) -> list:
    reader, frames = FrameReader(kinds), []
    for start in range(0, len(data), piece):
        frames += reader.feed(data[start : start + piece])
    reader.end()
    return frames


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 1000])
def test_whole_frames_out_of_any_pieces(piece):
    sent = [
        ("add", "7", list(range(300)), {"seed": -(2**63)}, 0, [1], 2),
        ("map", 2**63),
        ("ping",),
        ("abort", "7", None),
    ]
    assert read(b"".join(pack(*frame) for frame in sent), piece=piece) == [list(frame) for frame in sent]


def test_by_hand():
    """A list of two (0x92), a text of three (0xa3), a number."""
    assert pack("map", 5) == b"\0\0\0\x06\x92\xa3map\x05"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xc1", "no msgpack"),
        (msgpack.packb(5), "must be a list"),
        (msgpack.packb([]), "must be a list"),
        (msgpack.packb([5, "ping"]), "must be a list"),
        (msgpack.packb(["pickle", 1]), "kind 'pickle'; only load, add"),
        (msgpack.packb(["ready", {}]), "kind 'ready'"),  # it comes from the other side
        (msgpack.packb(["map"]), "'map' has 0 fields, and must have 1"),
        (msgpack.packb(["map", 1, 2]), "'map' has 2 fields"),
        (msgpack.packb(["map", 1]) + b"\0", "no msgpack"),
    ],
)
def test_what_is_no_frame(body, message):
    with pytest.raises(WireError, match=message):
        read(len(body).to_bytes(4) + body)


def test_too_large_either_way(monkeypatch):
    monkeypatch.setattr("shared.serving.engines.wire.MAX_FRAME", 100)
    with pytest.raises(WireError, match="'map' has 1[0-9][0-9] bytes, and 100 are allowed"):
        pack("map", 1, bytes(100))
    with pytest.raises(WireError, match="said to have 101 bytes"):
        read((101).to_bytes(4))


def test_cut_off_in_the_middle():
    with pytest.raises(WireError, match="in the middle of a frame, after 9 bytes"):
        read(pack("map", 5)[:-1])


def test_a_slow_reader_holds_nobody_up():
    """More than a socket takes: the rest goes with the next frames, and nothing is lost or out of order."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox, reader, got = Outbox(ours), FrameReader(FROM_ENGINE), []
        for number in range(200):
            outbox.put(pack("map", number, bytes(20_000)))  # returns, though nobody reads
        for number in range(200, 2000):
            got += reader.feed(theirs.recv(2**16))
            outbox.put(pack("map", number, b""))
            if len(got) == 300:
                break
        outbox.put(pack("map", -1, b""))
        theirs.settimeout(0.2)
        while not got or got[-1][1] != -1:
            outbox.flush() if len(outbox._kept) < 1000 else outbox.put(b"")
            got += reader.feed(theirs.recv(2**16))
        assert [frame[1] for frame in got[:-1]] == list(range(len(got) - 1))


def test_sending_to_nobody():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(OSError):
        Outbox(ours).put(pack("map", 1, b""))
