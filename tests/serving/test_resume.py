"""After an engine's death: which requests go on at once, which alone, which fail, and how long it is tried."""

import pytest

from shared.inference.sampling import SamplingParams
from shared.serving.engines.resume import MAX_DEATHS, Open, sort_out
from shared.serving.engines.supervision import RestartPolicy

PARAMS = SamplingParams(max_tokens=8)


@pytest.mark.parametrize("max_exits", [0, 1001, 2.5, True, "5"])
def test_a_policy_gives_up_some_time(max_exits):
    with pytest.raises(ValueError, match="max_exits"):
        RestartPolicy(max_exits=max_exits)


@pytest.mark.parametrize("name", ["first_s", "longest_s", "settled_s"])
@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_policy_waits_forwards(name, seconds):
    with pytest.raises(ValueError, match=name):
        RestartPolicy(**{name: seconds})


def deaths(request: Open, n: int) -> Open:
    for _ in range(n):
        request.on_death()
    return request


def test_each_answer_has_its_tokens():
    with pytest.raises(ValueError, match="each of the 2 answers"):
        Open("r", [1], SamplingParams(n=2), outputs=[[1]])


def test_a_token_clears_a_request():
    request = deaths(Open("r", [1], PARAMS), 2)
    request.on_output(0, [5], False)
    assert request.deaths == 0
    assert request.outputs == [[5]]


def test_only_the_guilty_one_fails():
    """One of five requests kills every engine that has it, in the first step. The others lose nothing."""
    requests = {name: Open(name, [1], PARAMS) for name in "abcde"}
    unfinished, failed, died = list(requests.values()), [], 0
    while unfinished:
        now_, held, lost = sort_out(unfinished)
        failed += lost
        unfinished = [request for request in unfinished if request not in lost]
        while now_:
            if any(request.request_id == "c" for request in now_):
                died += 1
                for request in now_:
                    request.on_death()
                break
            for request in now_:
                request.on_output(0, [7], True)
            unfinished = [request for request in unfinished if not request.ended]
            now_, held, lost = sort_out(held)
    assert [request.request_id for request in failed] == ["c"]
    assert died == MAX_DEATHS
    assert all(requests[name].outputs == [[7]] for name in "abde")


def test_new_requests_wait_behind_a_suspect():
    suspect, fresh = deaths(Open("s", [1], PARAMS), MAX_DEATHS - 1), Open("f", [1], PARAMS)
    assert sort_out([fresh, suspect]) == ([suspect], [fresh], [])
    assert sort_out([fresh]) == ([fresh], [], [])
    assert sort_out([]) == ([], [], [])
