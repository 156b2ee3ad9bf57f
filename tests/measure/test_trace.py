"""Traces: the same from the same seed, the lengths and gaps they promise, and clear errors for bad files."""

import json
import math

import pytest

from shared.measure.trace import TraceError, check_fits, fingerprint, make_trace, parse_trace, read_trace, write_trace


def test_same_seed_same_trace():
    assert make_trace(20, seed=1, rate=3.0) == make_trace(20, seed=1, rate=3.0)
    assert make_trace(20, seed=1) != make_trace(20, seed=2)


def test_trace_is_pinned():
    """A trace made today must be made again in a year, or old results could not be compared."""
    # worked out by hand from Python's random.Random(0): 0.84442, 0.75795, 0.42057, 0.25892, 0.51127, 0.40493, 0.78380
    first = make_trace(2, seed=0, prompt_lengths=(2, 4), output_lengths=(8, 16), rate=1.0)[0]
    assert (first.prompt_ids, first.max_new_tokens, first.at) == ((20729, 12800, 25179, 19962), 14, 1.531545)


def test_lengths_are_log_uniform():
    lengths = [len(r.prompt_ids) for r in make_trace(4000, seed=0, prompt_lengths=(16, 255), output_lengths=(1, 1))]
    assert min(lengths) == 16
    assert max(lengths) == 255
    for low in (16, 32, 64, 128):  # four octaves, a quarter of the requests each: 1000 +- 5 standard deviations
        assert abs(sum(low <= n < 2 * low for n in lengths) - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_fixed_lengths_and_vocabulary():
    trace = make_trace(300, prompt_lengths=(7, 7), output_lengths=(256, 256), vocab=(10, 13))
    assert {(len(r.prompt_ids), r.max_new_tokens) for r in trace} == {(7, 256)}
    assert {token for r in trace for token in r.prompt_ids} == {10, 11, 12}


def test_arrivals_are_poisson():
    assert {r.at for r in make_trace(5)} == {0.0}
    times = [r.at for r in make_trace(4000, seed=3, prompt_lengths=(1, 1), rate=20.0)]
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert all(gap >= 0 for gap in gaps)
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(1 / 20, rel=0.08)  # five standard deviations
    assert spread == pytest.approx(1 / 20, rel=0.12)  # an exponential's spread is its mean
    assert sum(gap > 1 / 20 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.04)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"n_requests": 0}, "n_requests"),
        ({"n_requests": 1, "prompt_lengths": (0, 4)}, "prompt_lengths"),
        ({"n_requests": 1, "output_lengths": (5, 4)}, "output_lengths"),
        ({"n_requests": 1, "rate": 0.0}, "rate"),
        ({"n_requests": 1, "rate": math.nan}, "rate"),
        ({"n_requests": 1, "vocab": (5, 5)}, "vocab"),
    ],
)
def test_make_trace_refuses(arguments, name):
    with pytest.raises(ValueError, match=name):
        make_trace(**arguments)


def test_round_trip(tmp_path):
    trace = make_trace(5, seed=4, rate=2.0)
    write_trace(trace, tmp_path / "new" / "trace.json")
    assert read_trace(tmp_path / "new" / "trace.json") == trace
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["trace.json"]


def test_fingerprint():
    trace = make_trace(3, seed=1)
    assert fingerprint(trace) == fingerprint(list(trace))
    assert fingerprint(trace) != fingerprint(trace[:2])


def test_at_may_be_left_out():
    (request,) = parse_trace({"requests": [{"prompt_ids": [1], "max_new_tokens": 2, "note": "kept aside"}]})
    assert (request.prompt_ids, request.max_new_tokens, request.at) == ((1,), 2, 0.0)


GOOD = {"prompt_ids": [1, 2], "max_new_tokens": 4}


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ([GOOD], "requests"),
        ({}, "requests"),
        ({"requests": []}, "requests must be a list of at least one"),
        ({"requests": {}}, "requests must be a list"),
        ({"requests": [GOOD, 7]}, r"requests\[1\]: must be an object"),
        ({"requests": [GOOD, {"max_new_tokens": 4}]}, r"requests\[1\]\.prompt_ids: missing"),
        ({"requests": [{"prompt_ids": [1]}]}, r"requests\[0\]\.max_new_tokens: missing"),
        ({"requests": [GOOD | {"prompt_ids": []}]}, r"requests\[0\]\.prompt_ids: must be a list of at least one"),
        ({"requests": [GOOD | {"prompt_ids": "12"}]}, r"requests\[0\]\.prompt_ids"),
        ({"requests": [GOOD | {"prompt_ids": [1, -1]}]}, r"requests\[0\]\.prompt_ids\[1\].* not -1"),
        ({"requests": [GOOD | {"prompt_ids": [True]}]}, r"requests\[0\]\.prompt_ids\[0\].* not true"),
        ({"requests": [GOOD | {"prompt_ids": [1.0]}]}, r"requests\[0\]\.prompt_ids\[0\]"),
        ({"requests": [GOOD, GOOD | {"max_new_tokens": 0}]}, r"requests\[1\]\.max_new_tokens.* not 0"),
        ({"requests": [GOOD | {"max_new_tokens": "4"}]}, r"requests\[0\]\.max_new_tokens"),
        ({"requests": [GOOD | {"max_new_tokens": True}]}, r"requests\[0\]\.max_new_tokens"),
        ({"requests": [GOOD | {"at": -0.5}]}, r"requests\[0\]\.at.* not -0.5"),
        ({"requests": [GOOD | {"at": "now"}]}, r"requests\[0\]\.at"),
        ({"requests": [GOOD | {"at": math.nan}]}, r"requests\[0\]\.at"),
        ({"requests": [GOOD | {"at": math.inf}]}, r"requests\[0\]\.at"),
    ],
)
def test_parse_trace_names_the_place(data, where):
    with pytest.raises(TraceError, match=f"^t.json: .*{where}"):
        parse_trace(data, source="t.json")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"requests": [\n  {"prompt_ids": [1,]}]}', "line 2, column"),
        (b"", "line 1, column 1"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"[" * 200_000, "can't be read as JSON"),
        (b'{"requests": ' + b"9" * 5000 + b"}", "can't be read as JSON"),
    ],
)
def test_read_trace_names_the_place(tmp_path, content, what):
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=what) as caught:
        read_trace(file)
    assert str(file) in str(caught.value)


def test_read_trace_without_a_file(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere\.json: there is no such file"):
        read_trace(tmp_path / "nowhere.json")
    with pytest.raises(TraceError, match="can't be read"):
        read_trace(tmp_path)


def test_check_fits():
    trace = parse_trace({"requests": [GOOD, {"prompt_ids": [3, 99], "max_new_tokens": 8}]})
    check_fits(trace, vocab_size=100, max_length=10)
    with pytest.raises(TraceError, match=r"t\.json: requests\[1\]\.prompt_ids\[1\]: 99 .* vocabulary of 99"):
        check_fits(trace, vocab_size=99, max_length=10, source="t.json")
    with pytest.raises(TraceError, match=r"requests\[1\]\.max_new_tokens: .* make 10; .* holds 9"):
        check_fits(trace, vocab_size=100, max_length=9)


def test_written_file_is_the_documented_format(tmp_path):
    write_trace(make_trace(2, rate=1.0), tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    assert list(data) == ["requests"]
    assert {key for request in data["requests"] for key in request} == {"prompt_ids", "max_new_tokens", "at"}
