"""Whole files through read_jsonl: every way in which one can be broken, and no good record lost."""

import bz2
import gzip
import json
import lzma
import tracemalloc
import zlib
from pathlib import Path

import pytest

from shared.data.reader import BadLine, ReadStats, count_lines, read_jsonl

GOOD = [{"text": f"Record {i}.", "label": i, "source": "here"} for i in range(5)]
BOM = b"\xef\xbb\xbf"


def line(record: dict) -> bytes:
    return json.dumps(record).encode()


def read(path: Path, data: bytes, **settings) -> tuple[list[dict], ReadStats]:
    path.write_bytes(data)
    stats = ReadStats()
    return list(read_jsonl(path, stats=stats, **settings)), stats


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.jsonl"


@pytest.mark.parametrize(("bad", "reason"), [
    (b'{"text": "cut o', "not JSON"),
    (b"{'text': 'python'}", "not JSON"),
    (line(GOOD[0]) * 2, "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'{"text": ' + b"9" * 5000 + b"}", "not JSON"),  # Python refuses to read a number of so many digits
    (b'{"body": "hello"}', "no text"),
    (b"{}", "no text"),
    (b'{"text": null}', "text is not a string"),
    (b'{"text": ["a"]}', "text is not a string"),
    (b'["text"]', "not an object"),
    (b"null", "not an object"),
    ('{"text": "café"}'.encode("latin-1"), "not UTF-8"),
    ('{"text": "cafe"}'.encode("utf-16"), "not UTF-8"),
    (b'{"text": "' + b"x" * 3000 + b'"}', "too long"),
    (b"\x00" * 50, "not JSON"),
])  # fmt: skip
def test_a_bad_line_is_reported_and_the_others_are_read(path, bad, reason):
    records, stats = read(path, line(GOOD[0]) + b"\n" + line(GOOD[1]) + b"\n" + bad + b"\n" + line(GOOD[2]),
                          max_line_bytes=120_000 if len(bad) > 90_000 else 2000 if reason == "too long" else 10_000)
    assert records == GOOD[:3]
    assert dict(stats.reasons) == {reason: 1}
    assert (stats.lines, stats.good, stats.empty, stats.bad) == (4, 3, 0, 1)
    report = str(stats.first_bad[0])
    assert report.startswith(f"{path}:3: {reason}")
    assert len(report) < len(str(path)) + 300
    assert reason in str(stats)
    assert "4 lines: 3 good, 0 empty, 1 bad" in str(stats)


def test_bad_lines_go_to_whoever_asked(path):
    path.write_bytes(b"nonsense\n" + line(GOOD[0]) + b"\n\nagain\n")
    heard: list[BadLine] = []
    assert list(read_jsonl(path, on_bad=heard.append)) == GOOD[:1]
    assert [(bad.line, bad.start) for bad in heard] == [(1, "nonsense"), (4, "again")]


def test_a_bad_line_that_nobody_asked_for_is_an_error(path):
    path.write_bytes(line(GOOD[0]) + b"\nnonsense\n")
    records = read_jsonl(path)
    assert next(records) == GOOD[0]
    with pytest.raises(ValueError, match=r":2: not JSON.*\n.*stats=ReadStats\(\)"):
        next(records)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_endings_and_empty_lines(path, ending, last):
    data = ending.join([line(GOOD[0]), b"", line(GOOD[1]), b"  \t", line(GOOD[2])]) + (ending if last else b"")
    records, stats = read(path, data)
    assert records == GOOD[:3]
    assert (stats.lines, stats.good, stats.empty, stats.bad) == (5, 3, 2, 0)
    assert count_lines(path) == 5


def test_byte_order_marks_where_files_were_joined(path):
    data = BOM + line(GOOD[0]) + b"\n" + line(GOOD[1]) + b"\n" + BOM + line(GOOD[2]) + b"\n" + BOM + b"\n"
    records, stats = read(path, data)
    assert records == GOOD[:3]
    assert (stats.empty, stats.bad) == (1, 0)


def test_an_empty_file_has_no_records(path):
    records, stats = read(path, b"")
    assert records == []
    assert stats.lines == count_lines(path) == 0


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.jsonl"):
        next(read_jsonl(tmp_path / "nowhere.jsonl"))


def test_line_separators_inside_a_text_are_no_line_breaks(path):
    record = {"text": "a\u2028b\x0bc\x0cd\x85e"}
    path.write_bytes(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    assert list(read_jsonl(path)) == [record]


def test_halves_of_surrogate_pairs_are_joined_or_replaced(path):
    records, _ = read(path, rb'{"text": "\ud83d\ude00 \ud83d and \ude00"}')
    assert records == [{"text": "😀 \ufffd and \ufffd"}]
    records[0]["text"].encode()


def test_fifty_megabytes_in_one_line(path):
    with path.open("wb") as file:
        file.write(line(GOOD[0]) + b'\n{"text": "')
        for _ in range(50):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + line(GOOD[1]))
    stats = ReadStats()
    tracemalloc.start()
    records = list(read_jsonl(path, stats=stats, max_line_bytes=100_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert records == GOOD[:2]
    assert [(bad.line, bad.reason) for bad in stats.first_bad] == [(2, "too long: more than 100000 bytes")]
    assert peak < 10_000_000


def test_only_the_first_bad_lines_are_kept(path):
    path.write_bytes(b"no\n" * 50)
    stats = ReadStats(keep=10)
    assert list(read_jsonl(path, stats=stats)) == []
    assert (stats.bad, len(stats.first_bad)) == (50, 10)


# gzip


def test_gzip_is_told_by_its_bytes_and_not_by_its_name(path):
    data = b"\n".join(map(line, GOOD))
    assert read(path, gzip.compress(data))[0] == GOOD
    assert count_lines(path) == 5
    assert read(path, gzip.compress(data[:100]) + gzip.compress(data[100:]))[0] == GOOD  # files joined with cat
    named = path.with_name("plain.jsonl.gz")
    assert read(named, data)[0] == GOOD


def test_a_truncated_gzip_gives_all_that_was_before(path):
    import random

    rng = random.Random(0)
    records = [{"text": f"{rng.random()} {i}"} for i in range(3000)]
    whole = gzip.compress(b"".join(line(r) + b"\n" for r in records))
    for share in (0.2, 0.5, 0.9):
        cut = whole[: int(share * len(whole))]
        there = zlib.decompressobj(wbits=31).decompress(cut).count(b"\n")
        got, stats = read(path, cut)
        assert there > 100
        assert got == records[:there]
        assert [bad.reason.split(":")[0] for bad in stats.first_bad][-1] == "damaged gzip"
        assert stats.first_bad[-1].line == stats.lines + 1


def test_a_damaged_gzip_is_reported(path):
    whole = bytearray(gzip.compress(b"".join(line(r) + b"\n" for r in GOOD)))
    for data, read_before in ((whole + b"rubbish", GOOD), (whole[:-8] + b"\0" * 8, GOOD), (whole[:20], [])):
        got, stats = read(path, bytes(data))
        assert got == read_before
        assert stats.reasons["damaged gzip"] == 1


@pytest.mark.parametrize(("data", "name"), [
    (b"\x28\xb5\x2f\xfd\x24\x00", "zstd"), (bz2.compress(b"x"), "bzip2"), (lzma.compress(b"x"), "xz"),
    (b"PK\x03\x04\x14\x00", "zip"),
])  # fmt: skip
def test_other_compressions_are_refused_by_name(path, data, name):
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"some\.jsonl: compressed with {name}; unpack it first"):
        next(read_jsonl(path))
