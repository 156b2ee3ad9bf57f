"""The benchmark's own parts: callers who count rightly, and verdicts that can be wrong."""

import base64
import json
import time
from types import SimpleNamespace

import pytest

from shared.measure.trace import TraceRequest
from shared.serving.bench import kills, load, soak
from shared.serving.bench.callers import Ask, Seen, margin
from shared.serving.bench.fuzz_run import wrong
from shared.serving.bench.run import answered, callers_at, completion, other_ids, rate, statuses
from shared.serving.bench.server import SERIES
from tests.inference.scripted import ScriptedModel
from tests.serving.live import chat, hold, scripted, serving, until

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model():
    return ScriptedModel("abcdefghij" * 5)


@pytest.fixture(scope="module")
def server(model):
    with serving(scripted(model, max_waiting=0, max_num_seqs=2)) as client:
        client.host = "127.0.0.1"
        yield client


def see(server, *asks, callers=None) -> list[Seen]:
    with callers_at(server, asks, callers) as at_work:
        seen = at_work.wait(20)
        assert len(seen) == len(asks)
        assert at_work.usage["cpu_s"] > 0
    return seen


def test_callers_read_streams_and_whole_answers(server):
    streamed = completion(0, TraceRequest((1, 2, 3), 12), "scripted", keep_text=True)
    whole = Ask(1, path=CHAT, body=chat(max_tokens=3), keep_text=True)
    for ask in (streamed, whole):
        ask.index = 0
        (seen,) = see(server, ask)
        tokens, text = (12, "abcdefghijab") if ask is streamed else (3, "abc")
        assert (seen.status, seen.error, seen.tokens, seen.text) == (200, "", tokens, text)
        assert seen.finish_reason == "length"
        assert seen.arrived <= seen.times[0] <= seen.times[-1] <= seen.ended <= time.monotonic()
    assert len(see(server, streamed)[0].times) == 12


def test_callers_who_take_turns_and_callers_who_come_when_due(server):
    trace = [TraceRequest((1,), 4, at) for at in (0.0, 0.2, 0.4, 0.6)]
    asks = [completion(i, request, "scripted") for i, request in enumerate(trace)]
    taking_turns = see(server, *asks, callers=1)
    for before, after in zip(taking_turns, taking_turns[1:], strict=False):
        assert after.arrived >= before.ended
    due = see(server, *asks)
    assert [round(seen.arrived - due[0].arrived, 3) for seen in due] == [0.0, 0.2, 0.4, 0.6]
    assert statuses(due) == {"200": 4}


def test_errors_and_those_who_leave(server, model):
    assert statuses(see(server, Ask(0, body={"model": "none", "prompt": "x"}))) == {"404 model_not_found": 1}
    assert statuses(see(server, Ask(0, path="/nowhere"))) == {"404 None": 1}
    raw = base64.b64encode(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").decode()
    assert statuses(see(server, Ask(0, raw=raw))) == {"200": 1}
    cut = base64.b64encode(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n").decode()
    assert see(server, Ask(0, raw=cut, gives_up=True))[0].error == "connection: EOFError"
    (left,) = see(server, completion(0, TraceRequest((1,), 50), "scripted", leave_after=3))
    assert (left.left, left.error) == (True, "")
    turnstile = hold(model, 1)
    try:
        asks = [completion(i, TraceRequest((1,), 4, 0.1 * i), "scripted", hold_s=1.0) for i in range(3)]
        seen = see(server, *asks)
        assert [one.status for one in seen] == [200, 200, 429]
        assert seen[2].retry_after is not None
        assert [one.left for one in seen] == [True, True, False]
    finally:
        model.before_step = None
        turnstile.allow(1000)
    until(lambda: server.service.versions.list()[0].num_open == 0)


def test_a_slow_reader_is_slow(server):
    with callers_at(server, [completion(0, TraceRequest((1,), 50), "scripted", bytes_per_s=20, hold_s=1.0)]) as at_work:
        (seen,) = at_work.wait(20)
    assert 2 <= seen.tokens <= 25  # bytes
    assert seen.left


def seen(index=0, times=(1.0, 2.0, 3.0), arrived=0.0, tokens=3, **more) -> Seen:
    return Seen(index, arrived, more.pop("status", 200), list(times), times[-1] if times else arrived, tokens, **more)


def test_sums():
    both = [seen(), seen(1, (2.0, 4.0), arrived=1.0, tokens=5), seen(2, (), status=429, error="queue_full", tokens=0)]
    assert len(answered(both)) == 2
    assert rate(both) == 8 / 4
    assert statuses(both) == {"200": 2, "429 queue_full": 1}
    trace = [TraceRequest((100, 199), 3)]
    assert other_ids(trace, 0, (100, 200)) == trace
    assert other_ids(trace, 1, (100, 200)) == [TraceRequest((119, 118), 3)]  # 7919 = 79 * 100 + 19


def test_margins_and_close_calls():
    assert margin({"a": -1.0, "b": -1.5, "c": -9.0}) == 0.5
    assert margin({"a": -1.0}) > 1
    one, other = seen(pieces=["x", "y", "z"], margins=[3.0, 0.001, 2.0]), seen(pieces=["x", "Y", "q"])
    assert kills.close_call(one, other)
    one.margins[1] = 0.5
    assert not kills.close_call(one, other)


def test_what_kills_are_judged_by():
    asks = [SimpleNamespace(body={"max_tokens": 3})] * 2
    wanted = [seen(0, text="abc"), seen(1, text="xyz")]
    good = kills.compared(wanted, [seen(0, text="abc"), seen(1, text="xyz")], [1.5], asks)
    assert all(v["holds"] for v in good["verdicts"])
    assert good["seconds_to_next_token"] == [0.5]
    for got, holds in (
        ([seen(0, text="abc"), seen(1, text="xyw")], [True, False, True]),  # another text
        ([seen(0, text="abc"), seen(1, text="xyz", tokens=2)], [True, False, True]),  # a token lost
        ([seen(0, text="abc"), seen(1, status=200, error="stream cut off")], [False, True, True]),
        ([seen(0, (1.0, 12.0, 13.0), text="abc"), seen(1, text="xyz")], [True, True, False]),  # 10.5 s
    ):
        assert [v["holds"] for v in kills.compared(wanted, got, [1.5], asks)["verdicts"]] == holds


def level(p99=1.0, goodput=100.0, retry_after=True, **found):
    return {
        "statuses": {"200": 9, **found},
        "e2e_s": {"p99": p99},
        "goodput_tok_s": goodput,
        "retry_after": retry_after,
    }


def test_what_load_is_judged_by():
    def holds(at80=None, at100=None, at150=None):
        levels = {"50%": level(), "80%": at80 or level(), "100%": at100 or level(), "150%": at150 or level()}
        return [v["holds"] for v in load.verdicts(levels)]

    assert holds(at150=level(2.9, 91, **{"429 queue_full": 5, "503 overloaded": 1})) == [True] * 4
    assert holds(at150=level(**{"500 internal_error": 1})) == [False, True, True, True]
    assert holds(at80=level(**{"200 in the stream: x": 1})) == [False, True, True, True]
    assert holds(at80=level(**{"0 connection: EOFError": 1})) == [False, True, True, True]
    assert holds(at150=level(retry_after=False)) == [True, False, True, True]
    assert holds(at150=level(3.1)) == [True, True, False, True]
    assert holds(at150=level(goodput=89)) == [True, True, True, False]


def test_arrivals_are_poissons_and_come_in_the_same_pattern_at_every_rate():
    server = SimpleNamespace(limits={"vocab_size": 200}, model="m")
    slow, fast = (load.arrivals(server, rate, 200, seed) for seed, rate in enumerate((5.0, 10.0)))
    assert len(fast) == pytest.approx(2000, rel=0.1)
    assert len(slow) == pytest.approx(1000, rel=0.1)
    assert [a.at for a in slow[:900]] == pytest.approx([2 * a.at for a in fast[:900]], abs=1e-6)
    gaps = [b.at - a.at for a, b in zip(fast, fast[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.2)  # exponential
    assert slow[0].body["prompt"] != fast[0].body["prompt"]


def test_what_a_level_of_load_sums_up():
    both = [seen(), seen(1, (3.0, 9.0), arrived=1.0, tokens=7), seen(2, (), status=503, error="x")]
    found = load.summed_up(both, seconds=5)
    assert found["answered"] == 2
    assert found["goodput_tok_s"] == 10 / 9
    assert found["tok_s_while_they_came"] == 3 / 5
    assert found["ttft_s"]["p50"] == 1.5
    assert found["e2e_s"]["p99"] == pytest.approx(3 + 0.99 * 5)
    assert found["retry_after"] is False


def test_what_the_soak_is_judged_by():
    rest = {"api": {"rss": 100.0}, "engine": {"rss": 200.0}, "api_files": 8, "engine_files": 4, "tasks": 5.0,
            "series": [f"s{i}" for i in range(100)], "blocks_used": 0.0, "open_requests": 0}  # fmt: skip

    def holds(counted=None, **after):
        return [v["holds"] for v in soak.verdicts(rest, rest | after, counted or {"200": 5, "503 busy": 1})]

    assert holds(api={"rss": 102.0}) == [True] * 8
    bad = [
        {"api": {"rss": 104.0}}, {"engine": {"rss": 207.0}}, {"series": [f"t{i}" for i in range(100)]},
        {"api_files": 9}, {"engine_files": 5}, {"tasks": 6.0}, {"blocks_used": 1.0}, {"open_requests": 1},
        {"counted": {"500 internal_error": 1}},
    ]  # fmt: skip
    for change in bad:
        assert holds(**change).count(False) == 1, change


def test_the_mix_of_the_soak_is_of_all_kinds():
    asks = soak.mixed(200, 1, "m", (100, 200))
    assert [ask.index for ask in asks] == list(range(len(asks)))
    assert all(0 <= ask.at <= 200 for ask in asks)
    kinds = {
        "raw" if a.raw else "slow" if a.bytes_per_s else "leaves" if a.leave_after else str(a.body["stream"])
        for a in asks
    }
    assert kinds == {"raw", "slow", "leaves", "True", "False"}
    assert json.dumps([vars(ask) for ask in asks]) == json.dumps([vars(a) for a in soak.mixed(200, 1, "m", (100, 200))])


def test_what_the_fuzz_may_not_be_answered():
    many = [seen(0), seen(1, status=400), seen(2, status=503), seen(3, status=500), seen(4, status=0, left=True)]
    many.append(seen(5, (), status=0, error="connection: EOFError"))
    assert [one.index for one in wrong(many)] == [3, 4, 5]


def test_metrics_are_read():
    found = SERIES.match('a_total{x="1",y="b c"} 3.5')
    assert found is not None
    assert (found[1] + found[2], float(found[3])) == ('a_total{x="1",y="b c"}', 3.5)
    assert SERIES.match("plain 1e+06")[3] == "1e+06"


def test_what_the_table_keeps_of_a_part(tmp_path):
    from chapters import bench_service, bench_table

    (tmp_path / "solutions").mkdir()
    group = {"verdicts": [{"promise": "p", "measured": "1 of 2", "holds": True}], "samples": [1, 2]}
    report = {"failed": {}, "interrupted": False, "kills": group}
    assert bench_service.all_holds(report)
    assert not bench_service.all_holds(report | {"failed": {"load": "it did not start"}})
    assert not bench_service.all_holds(report | {"load": {"verdicts": [{"holds": False}]}})
    bench_table.record("service", bench_table.with_kept_parts(report, tmp_path), tmp_path)
    soak = {"verdicts": [{"promise": "q", "measured": "flat", "holds": True}]}
    bench_table.record("service", bench_table.with_kept_parts({"failed": {}, "soak": soak}, tmp_path), tmp_path)
    rows = bench_table.table(tmp_path)[2:]
    assert rows == [
        "| `python -m chapters bench service --part kills` | p: 1 of 2 | holds |",
        "| `python -m chapters bench service --part soak` | q: flat | holds |",
    ]
