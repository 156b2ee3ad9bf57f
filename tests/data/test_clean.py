"""The whole row of stages, on a dirty corpus whose truth is known; the filters, the splits and the report."""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from shared.data import clean, dirt, quality, splitting
from shared.data.clean import STAGES, Cleaner, Filter, clean_file, clean_records
from shared.data.corpus import make_corpus, read_truth
from shared.data.report import Report, StageReport, excerpt

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


# quality


def test_length():
    assert quality.length_problem("one two three", min_words=3) is None
    assert quality.length_problem("one two", min_words=3) == "too short: 2 words, at least 3 are asked for"
    assert quality.length_problem("one " * 11, max_words=10) == "too long: 11 words, at most 10 are allowed"
    assert quality.length_problem("", min_words=0) is None


def test_character_set():
    assert quality.charset_problem("Plain words, 1 number.") is None
    assert quality.charset_problem("한국어 문서 é") is None
    assert quality.charset_problem("+---+---+ 1 2 3 ab").startswith("few letters: 14%")
    assert quality.charset_problem("caf\ufffd au lait").startswith("wrongly decoded: 1 times")
    assert quality.charset_problem("") is None


def test_repetition_is_gophers():
    """The limits of table A1 in Rae et al. 2021, written out again."""
    limits = quality.GOPHER
    assert (limits.duplicate_lines, limits.duplicate_line_chars) == (0.30, 0.20)
    assert (limits.duplicate_paragraphs, limits.duplicate_paragraph_chars) == (0.30, 0.20)
    assert limits.top_ngram == {2: 0.20, 3: 0.18, 4: 0.16}
    assert limits.duplicate_ngrams == {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def test_each_repetition_rule_has_a_text_that_breaks_it():
    rng = random.Random(0)

    def words(n: int) -> str:
        return " ".join("".join(rng.choices("abcdefghij", k=5)) for _ in range(n))

    assert quality.repetition_problem(words(200)) is None
    assert quality.repetition_problem("") is None
    short = quality.repetition_problem("\n\n".join(["one"] * 3 + [words(50)]))
    assert short.startswith("repeated paragraphs: 50% of them")
    long = words(40)
    assert quality.repetition_problem("\n\n".join([words(9) for _ in range(6)] + [long, long])).startswith(
        "repeated paragraphs"
    )
    assert quality.repetition_problem("\n".join(["one"] * 3 + [words(50)])).startswith("repeated lines: 50% of them")
    assert "of the characters" in quality.repetition_problem("\n".join([words(9) for _ in range(6)] + [long, long]))
    assert quality.repetition_problem(" ".join(f"very good {words(1)}" for _ in range(20))).startswith("one 2-gram")
    phrase = words(10)
    assert quality.repetition_problem(f"{words(30)} {phrase} {words(5)} {phrase}").startswith("repeated 5-grams")


def test_top_ngram():
    assert quality.top_ngram_fraction(["a", "b", "c", "a", "b", "d"], 2) == pytest.approx(4 / 6)
    assert quality.top_ngram_fraction(["a", "b", "c"], 2) == 0
    assert quality.top_ngram_fraction([], 2) == 0
    words = ["a", "b", "xx", "yy", "a", "b", "xx", "yy"]
    assert quality.top_ngram_fraction(words, 2) == pytest.approx(8 / 12)  # of those that come twice the longest
    assert quality.duplicate_fractions([]) == (0, 0)


def test_perplexity_is_handed_in():
    def fake(text: str) -> float:
        return float(len(text))

    assert quality.perplexity_problem("abc", fake, 10) is None
    assert quality.perplexity_problem("a" * 11, fake, 10) == "perplexity: 11, at most 10 is allowed"
    assert quality.perplexity_problem("abc", lambda text: float("nan"), 10) is not None


# splitting


RECORDS = [{"text": f"text {i}", "source": f"file {i % 40}", "time": f"20{10 + i % 10}-01-01"} for i in range(400)]


def test_sources_stay_together():
    splits = splitting.split_by_source(RECORDS, {"train": 0.5, "test": 0.5})
    assert sorted(r["text"] for part in splits.values() for r in part) == sorted(r["text"] for r in RECORDS)
    assert not {r["source"] for r in splits["train"]} & {r["source"] for r in splits["test"]}
    by_year = splitting.split_by_source(RECORDS, {"train": 0.5, "test": 0.5}, source=lambda r: r["time"])
    assert not {r["time"] for r in by_year["train"]} & {r["time"] for r in by_year["test"]}


def test_more_records_do_not_move_the_old_ones():
    early = splitting.split_by_source(RECORDS[:100])
    late = splitting.split_by_source(RECORDS)
    for name in early:
        assert early[name] == [r for r in late[name] if r in early[name]]


def test_at_random_mixes_sources():
    splits = splitting.split_at_random(RECORDS, {"train": 0.5, "test": 0.5})
    assert len({r["source"] for r in splits["train"]} & {r["source"] for r in splits["test"]}) > 30
    assert 150 < len(splits["train"]) < 250


def test_by_time():
    splits = splitting.split_by_time(RECORDS, {"train": "2015", "validation": "2018-01-01"})
    assert list(splits) == ["train", "validation", "test"]
    assert {r["time"][:4] for r in splits["train"]} == {"2010", "2011", "2012", "2013", "2014"}
    assert {r["time"][:4] for r in splits["validation"]} == {"2015", "2016", "2017"}
    assert {r["time"][:4] for r in splits["test"]} == {"2018", "2019"}
    with pytest.raises(ValueError, match="record 1 has no 'time'"):
        splitting.split_by_time([RECORDS[0], {"text": "x"}], {"train": "2015"})
    for ends in ({"train": "2018", "validation": "2015"}, {"test": "2015"}):
        with pytest.raises(ValueError, match="in order"):
            splitting.split_by_time(RECORDS, ends)


@pytest.mark.parametrize("fractions", [{}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": 0.0, "b": 1.0}])
def test_fractions_are_checked(fractions):
    for split in (splitting.split_by_source, splitting.split_at_random):
        with pytest.raises(ValueError, match="add up to 1"):
            split(RECORDS, fractions)


def test_leakage():
    base = " ".join(f"w{i}" for i in range(40))
    train = [{"text": base, "source": "a"}]
    edited = base.replace("w39", "other")  # 32 of 33 8-grams are known
    half = " ".join(base.split()[:20]) + " " + " ".join(f"v{i}" for i in range(20))
    test = [{"text": base, "source": "b"}, {"text": edited, "source": "a"}, {"text": half, "source": "b"},
            {"text": "short", "source": "b"}]  # fmt: skip
    leak = splitting.leakage(train, test)
    assert (leak.exact, leak.near, leak.source) == (0.25, 0.5, 0.25)
    assert splitting.leakage([], []) == splitting.Leakage(0, 0, 0)


# report


def test_the_table_and_the_examples():
    report = Report([StageReport("html"), StageReport("length")])
    html, length = report.stages
    html.add("<b>abcdefg", "abcdefg", 0.5, "one.py")
    html.add("abc", "abc", 0.25, "two.py")
    length.add("abcdefg", "abcdefg", 0.0)
    length.add("abc", None, 0.0, "two.py", "too short: 1 word")
    assert report.table(timings=False).split("\n") == [
        "stage          records  changed  removed  characters",
        "html                 2        1        0      -23.1%",
        "length               2        0        1      -30.0%",
        "    1 too short",
    ]
    assert "0.75s" in report.table()
    assert report.examples() == ("html  (one.py)\n  - '<b>abcdefg'\n  + 'abcdefg'\n"
                                 "length  (two.py)\n  - 'abc'\n  + removed: too short: 1 word")
    assert report.stage("html") is html
    assert json.loads(json.dumps(report.to_dict()))["stages"][1]["reasons"] == {"too short": 1}
    assert Report([StageReport("empty")]).table(timings=False).endswith("+0.0%")


def test_the_plot_shows_the_shares():
    counts = StageReport("html", seen=10, changed=4), StageReport("length", seen=10, removed=1), StageReport("none")
    report = Report(list(counts))
    figure = report.plot()
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([40, 0, 0, 0, 10, 0])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["html", "length", "none"]


def test_excerpts_show_the_first_difference():
    assert excerpt("same", "same") == ("same", "same")
    assert excerpt("x" * 500, None) == ("x" * 60, None)
    before, after = excerpt("a" * 100 + "B" + "c" * 100, "a" * 100 + "c" * 100)
    assert before == "a" * 30 + "B" + "c" * 29
    assert after == "a" * 30 + "c" * 30
