"""What the commands of shared/data do with outputs that can't be, inputs that are none, and settings out of range."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.data import clean, corpus, dedup, minhash, shingles
from shared.data.dedup import deduplicate
from shared.data.dedup_job import sized_lines
from shared.data.reader import MAX_LINE_BYTES, BadLine, ReadStats, read_jsonl
from shared.measure.outputs import check_output

GOOD = b'{"text": "This is a line of more than ten words, so that no filter for length will drop it."}\n'
COMMANDS = [clean.main, dedup.main]


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(GOOD)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# outputs


def test_a_report_may_not_overwrite_the_input_or_the_output(source, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    (tmp_path / "link").symlink_to(source)
    for report, what in ((source, "input"), (tmp_path / "link", "input"), (out, "output"),
                         (tmp_path / "x" / ".." / "out.jsonl", "output")):  # fmt: skip
        assert clean.main([str(source), str(out), "--report", str(report)]) == 2
        assert f"error: {report} would overwrite the {what}" in capsys.readouterr().err
        assert source.read_bytes() == GOOD
        assert not out.exists()


def test_a_report_that_can_not_be_written_is_refused_before_the_work(source, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for report, why in ((tmp_path, "is a folder"), (tmp_path / "file" / "report.json", "can't be written: ")):
        assert clean.main([str(source), str(tmp_path / "out.jsonl"), "--report", str(report)]) == 2
        assert f"error: {report} {why}" in capsys.readouterr().err
        assert names(tmp_path) == ["file", "in.jsonl"]


@pytest.mark.parametrize("main", COMMANDS)
def test_an_output_that_can_not_be_is_named(main, source, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for out, why in ((tmp_path, "is a folder; name a file in it"), (tmp_path / "file" / "out", "can't be written: "),
                     (tmp_path / ("n" * 250), "can't be written: "), (source, "would overwrite the input"),
                     (Path(os.devnull), "is no ordinary file")):  # fmt: skip
        assert main([str(source), str(out)]) == 2
        assert f"error: {out} {why}" in capsys.readouterr().err
        assert names(tmp_path) == ["file", "in.jsonl"]
    assert source.read_bytes() == GOOD


def test_the_list_of_what_was_removed_may_not_overwrite_the_input(tmp_path):
    path = tmp_path / "a.removed.jsonl"
    path.write_bytes(GOOD)
    with pytest.raises(ValueError, match=r"a\.removed\.jsonl would overwrite the input"):
        deduplicate(path, tmp_path / "a.jsonl", progress=False)
    assert (path.read_bytes(), names(tmp_path)) == (GOOD, ["a.removed.jsonl"])


def test_an_output_that_can_be(tmp_path):
    check_output(tmp_path / "new" / "out", {"the input": tmp_path / "in"})
    assert names(tmp_path / "new") == []
    (tmp_path / "old").write_text("stays")
    check_output(tmp_path / "old", {})
    assert (tmp_path / "old").read_text() == "stays"


# inputs


TEXT, PRETTY = b"just some text\nand more of it\n", json.dumps({"text": "a"}, indent=1).encode()


@pytest.mark.parametrize("data", [TEXT, PRETTY, '{"text": "a"}\n'.encode("utf-16")])
def test_a_file_without_a_record_is_no_input(data, tmp_path, capsys):
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data)
    out.write_text("of yesterday")
    for main, options in ((clean.main, []), (dedup.main, ["--skip-bad"])):
        assert main([str(source), str(out), *options]) == 2
        assert f"error: {source}: not one of its " in (said := capsys.readouterr().err)
        assert "Is this JSONL?" in said
        assert (out.read_text(), names(tmp_path)) == ("of yesterday", ["in", "out"])


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n \n"])
def test_an_empty_file_is_an_input(data, tmp_path, capsys):
    (tmp_path / "in").write_bytes(data)
    for main in COMMANDS:
        assert main([str(tmp_path / "in"), str(tmp_path / "out")]) == 0
        assert (tmp_path / "out").read_bytes() == b""
    assert "0 records, 0 kept" in capsys.readouterr().out


def test_both_commands_name_what_an_archive_is(tmp_path, capsys):
    (tmp_path / "in.zip").write_bytes(b"PK\x03\x04\x14\x00")
    for main in COMMANDS:
        assert main([str(tmp_path / "in.zip"), str(tmp_path / "out")]) == 2
        assert "in.zip: compressed with zip; unpack it first" in capsys.readouterr().err


def test_dedup_holds_no_line_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(dedup, "MAX_LINE_BYTES", 150)
    (tmp_path / "in").write_bytes(GOOD + b'{"text": "' + b"x" * 200_000 + b'"}\n' + b'{"text": "last"}')
    with pytest.raises(ValueError, match=r"in:2: too long: more than 150 bytes\. .*--skip-bad"):
        deduplicate(tmp_path / "in", tmp_path / "out", progress=False)
    assert names(tmp_path) == ["in"]
    report = deduplicate(tmp_path / "in", tmp_path / "out", skip_bad=True, progress=False)
    assert (report.documents, report.bad) == (2, 1)
    assert (tmp_path / "out").read_bytes() == GOOD + b'{"text": "last"}\n'
    assert MAX_LINE_BYTES == 10_000_000


def test_lines_and_their_sizes(tmp_path):
    (tmp_path / "in").write_bytes(b"12345\n123456\n\n12345")
    with (tmp_path / "in").open("rb") as file:
        assert list(sized_lines(file, 5)) == [(6, b"12345\n"), (7, None), (1, b"\n"), (5, b"12345")]
    (tmp_path / "in").write_bytes(b"1" * 100_000)
    with (tmp_path / "in").open("rb") as file:
        assert list(sized_lines(file, 5)) == [(100_000, None)]


def test_a_bad_line_is_printed_as_what_it_is(tmp_path, capsys):
    assert str(BadLine("f", 3, "no text: it has \x1b[2J", "\x00\x1b]0;t\x07 caf\u00e9\u2028\ud800")) == (
        "f:3: no text: it has \\x1b[2J  [\\x00\\x1b]0;t\\x07 caf\u00e9\\u2028\\ud800]"
    )
    (tmp_path / "in").write_bytes(GOOD + b'{"\\u001b[31m\\ud800": 1}\n')
    assert clean.main([str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert "in:2: no text: it has \\x1b[31m\\ud800" in capsys.readouterr().out
    assert dedup.main([str(tmp_path / "in"), str(tmp_path / "out")]) == 2
    assert "in:2: no text: it has \\x1b[31m\\ud800" in capsys.readouterr().err


def test_numbers_that_json_does_not_have(tmp_path):
    bad = [b"NaN", b"-Infinity", b"1e999", b"[1, {\"y\": -1E+400}]", b"1" * 400 + b".0"]
    good = [b"1e99", b'"NaN 1e999"', b"1e308", b"2e-999", b"1" * 400]
    (tmp_path / "in").write_bytes(b"".join(b'{"text": "a", "x": ' + x + b"}\n" for x in bad + good))
    stats = ReadStats()
    records = list(read_jsonl(tmp_path / "in", stats=stats))
    assert stats.reasons == {"number out of range": len(bad)}
    assert [record["x"] for record in records] == [1e99, "NaN 1e999", 1e308, 0.0, int("1" * 400)]


# settings


@pytest.mark.parametrize("seconds", ["inf", "1e10", "nan", "1e-9", "0"])
def test_a_limit_that_can_not_be_kept_is_refused(seconds, source, tmp_path, capsys):
    assert clean.main([str(source), str(tmp_path / "out"), "--seconds", seconds]) == 2
    assert "error: a time limit must be from 0.001 to 1,000,000 seconds" in capsys.readouterr().err
    assert names(tmp_path) == ["in.jsonl"]


def test_a_corpus_of_nothing_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "CORPORA", tmp_path)
    for limit in ("0", "-3"):
        assert corpus.main(["docs", "--limit", limit]) == 2
        assert f"at least 1, not {limit}" in capsys.readouterr().err
    assert names(tmp_path) == []


@pytest.mark.parametrize(("option", "most"), [("--num-perm", minhash.MOST_PERM), ("--ngram", shingles.MOST_NGRAM)])
def test_settings_that_would_take_for_ever_are_refused(option, most, source, tmp_path, capsys):
    assert dedup.main([str(source), str(tmp_path / "out"), option, str(most + 1)]) == 2
    assert f"an integer from 1 to {most}, not {most + 1}" in capsys.readouterr().err
    assert names(tmp_path) == ["in.jsonl"]
    assert dedup.main([str(source), str(tmp_path / "out"), option, str(most)]) == 0


@pytest.mark.parametrize("module", ["clean", "dedup", "corpus"])
def test_a_stop_during_the_imports_gives_no_traceback(module):
    """A module that the command imports is put in the way, and sends the signal."""
    code = (
        "import os, runpy, signal, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'shared.measure.progress': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Stop())\n"
        f"runpy.run_module('shared.data.{module}', run_name='__main__')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (-2, "")
