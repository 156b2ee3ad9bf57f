"""The splits: what stays together, what stays in its part, and what leaks."""

import pytest

from shared.data import splitting

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
