"""The whole row of stages, on a dirty corpus whose truth is known, and the command."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from shared.data import clean, dirt
from shared.data.clean import STAGES, Cleaner, Filter, clean_file, clean_records
from shared.data.corpus import make_corpus, read_truth
from shared.data.report import Report

# the dirty corpus


@pytest.fixture(scope="module")
def dirty(tmp_path_factory) -> Path:
    """600 real documents, damaged."""
    patch = pytest.MonkeyPatch()
    patch.setattr(dirt, "LONG_LINE_BYTES", 20_000_000)
    yield make_corpus("dirty", tmp_path_factory.mktemp("dirty") / "dirty.jsonl", limit=900, progress=False)
    patch.undo()


@pytest.fixture(scope="module")
def cleaned(dirty, tmp_path_factory):
    out = tmp_path_factory.mktemp("clean") / "new" / "clean.jsonl"
    stats, report = clean_file(dirty, out, progress=False)
    return [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]], stats, report


def test_every_line_is_read_or_reported(dirty, cleaned):
    _, stats, _ = cleaned
    truth = read_truth(dirty)
    assert stats.good == truth["records"]
    assert stats.empty == len(truth["empty"])
    assert [bad.line for bad in stats.first_bad] == [bad["line"] for bad in truth["bad"]]
    expected = {"bad JSON": "not JSON", "too deep": "not JSON", "two records in a line": "not JSON",
                "text is null": "text is not a string"}  # fmt: skip
    assert [bad.reason.split(":")[0] for bad in stats.first_bad] == [
        expected.get(bad["kind"], bad["kind"]) for bad in truth["bad"]
    ]


def test_the_texts_are_those_before_the_damage(dirty, cleaned):
    records, _, _ = cleaned
    good = read_truth(dirty)["good"]
    kept = Counter(" ".join(record["text"].split()) for record in records)
    wrong = Counter(g["dirt"] for g in good if g["expect"] is not None and not kept[" ".join(g["expect"].split())])
    total = Counter(g["dirt"] for g in good)
    assert sum(wrong.values()) <= 0.02 * len(good), wrong  # documents that are repetitive by nature, or talk of tags
    assert all(wrong[kind] <= max(1, 0.05 * total[kind]) for kind in total), (wrong, total)


def test_what_should_go_is_gone(dirty, cleaned):
    records, _, report = cleaned
    good = read_truth(dirty)["good"]
    assert len(records) <= sum(g["expect"] is not None for g in good)
    assert all(len(record["text"].split()) >= 10 for record in records)
    everything = "\n".join(record["text"] for record in records)
    assert not re.search(r"[\x00-\x08\x0e-\x1f\x7f\u200b\ufeff\u00a0]|\r|[ \t]\n|\n{3}", everything)
    assert not re.search(r"not to be seen|192\.0\.2\.\d|203\.0\.113\.\d|@(mail\.)?example\.", everything)
    assert report.stage("length").removed == sum(g["dirt"] == "short" for g in good)


def test_the_other_fields_stay(dirty, cleaned):
    records, _, _ = cleaned
    assert all(set(record) == {"text", "label", "source", "time"} for record in records)


def test_the_report_adds_up(dirty, cleaned):
    records, stats, report = cleaned
    assert [stage.name for stage in report.stages] == [*(stage.name for stage in STAGES), "time limit"]
    alive = stats.good
    for stage in report.stages:
        assert stage.seen == alive
        alive -= stage.removed
        assert sum(stage.reasons.values()) == stage.removed
        assert len(stage.examples) <= 3
    assert alive == len(records)
    assert report.stages[-1].chars_out == sum(len(record["text"]) for record in records)
    for name in ("html", "control", "unicode", "whitespace", "pii", "length", "characters", "repetition"):
        stage = report.stage(name)
        assert stage.changed + stage.removed > 5
        assert stage.examples


# clean_records


def test_a_slow_record_is_dropped_and_the_next_is_read():
    def slow(text: str) -> str:
        re.search(r"(?:\w+[.-]?)+@", text)
        return text

    report = Report()
    records = [{"text": text, "source": "s"} for text in ("short", "a" * 40, "short again")]
    got = list(clean_records(records, report, [Cleaner("slow", slow)], seconds_per_record=0.05))
    assert [record["text"] for record in got] == ["short", "short again"]
    assert report.stage("time limit").removed == 1
    assert report.stage("time limit").reasons == {"too slow": 1}


def test_stages_run_in_order_and_a_dropped_record_goes_no_further():
    report = Report()
    stages = [Cleaner("upper", str.upper), Filter("no B", lambda text: "has: a B" if "B" in text else None),
              Cleaner("dot", lambda text: text + ".")]  # fmt: skip
    got = list(clean_records([{"text": "a"}, {"text": "b"}], report, stages))
    assert got == [{"text": "A."}]
    assert [(s.name, s.seen, s.changed, s.removed) for s in report.stages] == [
        ("upper", 2, 2, 0), ("no B", 2, 0, 1), ("dot", 1, 1, 0), ("time limit", 1, 0, 0),
    ]  # fmt: skip
    assert report.stage("no B").reasons == {"has": 1}


# the command


def test_the_command_cleans_a_file(tmp_path, capsys):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = "One <b> line, ada@example.org, that is long enough to be kept by the filter for length, I hope."
    source.write_text(json.dumps({"text": good, "label": "\ud800"}) + "\nbad\n", encoding="utf-8")
    assert clean.main([str(source), str(out), "--report", str(tmp_path / "report.json")]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["text"] == good.replace("ada@example.org", "<EMAIL>")
    printed = capsys.readouterr().out
    assert "2 lines: 1 good, 0 empty, 1 bad" in printed
    assert f"{source}:2: not JSON" in printed
    assert "whitespace" in printed
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert {stage["name"]: stage["changed"] for stage in report["stages"]}["pii"] == 1


def test_the_command_says_what_is_wrong(tmp_path, capsys, monkeypatch):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "x"}\n', encoding="utf-8")
    assert clean.main([str(source), str(source)]) == 2
    assert f"{source} would overwrite the input" in capsys.readouterr().err
    assert source.read_text(encoding="utf-8") == '{"text": "x"}\n'
    assert clean.main([str(tmp_path / "no.jsonl"), str(tmp_path / "out.jsonl")]) == 2
    assert "no.jsonl: No such file" in capsys.readouterr().err

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(clean, "clean_file", interrupted)
    assert clean.main([str(source), str(tmp_path / "out.jsonl")]) == 130
    assert "Stopped" in capsys.readouterr().err


def test_a_stop_leaves_no_output(tmp_path, monkeypatch):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "x"}\n' * 3, encoding="utf-8")

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(clean, "write_record", interrupted)
    monkeypatch.setattr(clean, "STAGES", ())
    with pytest.raises(KeyboardInterrupt):
        clean_file(source, out, progress=False)
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_it_is_a_command(tmp_path):
    command = [sys.executable, "-m", "shared.data.clean", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "IN OUT" in done.stdout
