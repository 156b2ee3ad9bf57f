"""Whoever leaves LLMEngine, by abort or by Ctrl-C between any two lines, leaves it sound."""

import random
import sys

import pytest

from shared.inference.llm_engine import LLMEngine
from shared.inference.sampling import SamplingParams
from tests.inference.small_engine import MODEL, SMALL, Hooked, alone, check_idle, drain, tokens


def test_abort_between_steps_and_while_one_is_in_flight():
    wishes: list[str] = []
    engine = LLMEngine(Hooked(lambda ids: [engine.abort(wishes.pop()) for _ in range(len(wishes))]), **SMALL)
    for name in "abc":
        engine.add_request(name, [1, 2, 3, ord(name) - 90], SamplingParams(max_tokens=20))
    assert {name for name, _ in engine.step()} == {"a", "b"}  # nine tokens a step: c's prompt isn't read yet
    engine.abort("a")
    engine.abort("a")
    engine.abort("nobody")
    assert {name for name, _ in engine.step()} == {"b", "c"}
    wishes[:] = ["b", "b"]
    assert {name for name, _ in engine.step()} == {"c"}, "what an aborted request computed is not handed out"
    assert tokens(drain(engine)["c"]) == alone([1, 2, 3, 9], SamplingParams(max_tokens=20))[2:]


def test_an_aborted_request_keeps_its_blocks_until_the_step_is_over():
    held = []

    def leave_now(ids):
        engine.abort("a")
        held.append(engine.blocks.num_blocks - engine.blocks.num_free)

    engine = LLMEngine(Hooked(leave_now), **SMALL)
    engine.add_request("a", [1] * 6, SamplingParams(max_tokens=3))
    assert engine.step() == []
    assert held == [2], "the model is writing into them"
    check_idle(engine)


def test_abort_of_an_unknown_id_in_flight_spares_a_later_request_of_that_name():
    def leave_and_come(ids):
        if turn.pop():
            engine.abort("x")
            engine.add_request("x", [7], SamplingParams(max_tokens=3))

    turn = [False] * 20 + [True]
    engine = LLMEngine(Hooked(leave_and_come), **SMALL)
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=3))
    assert tokens(drain(engine)["x"]) == alone([7], SamplingParams(max_tokens=3))


def test_an_id_is_free_again_after_its_abort():
    engine = LLMEngine(MODEL, **SMALL)
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=3))
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add_request("a", [1, 2], SamplingParams(max_tokens=3))
    engine.abort("a")
    assert not engine.has_unfinished
    engine.add_request("a", [7], SamplingParams(max_tokens=3))
    assert tokens(drain(engine)["a"]) == alone([7], SamplingParams(max_tokens=3))


def test_ctrl_c_in_a_step_leaves_a_sound_engine():
    def interrupt(ids):
        if ids.shape[1] == 7:
            raise KeyboardInterrupt

    engine = LLMEngine(Hooked(interrupt), **SMALL)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[1, 2, 3, 4, 5, 6, 7]], SamplingParams(max_tokens=3))
    assert not engine.has_unfinished
    check_idle(engine)
    assert engine.generate([[7]], SamplingParams(max_tokens=3))[0].token_ids == alone([7], SamplingParams(max_tokens=3))


def test_ctrl_c_drops_those_who_wait_too():
    def interrupt(ids):
        if 13 in ids[0].tolist():
            raise KeyboardInterrupt

    engine = LLMEngine(Hooked(interrupt), **SMALL)
    engine.add_request("a", [13] * 9, SamplingParams(max_tokens=3))
    engine.add_request("b", [5], SamplingParams(max_tokens=3))
    root = engine.blocks.root
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert not engine.has_unfinished
    check_idle(engine)
    assert engine.blocks.root == root, "the model's version is the same"
    engine.add_request("b", [5], SamplingParams(max_tokens=3))
    assert tokens(drain(engine)["b"]) == alone([5], SamplingParams(max_tokens=3))


@pytest.mark.parametrize("seed", range(40))
def test_ctrl_c_on_any_line(seed):
    """Between any two lines of the scheduler's, the blocks' or the engine's."""
    engine, left = LLMEngine(MODEL, **SMALL), random.Random(seed).randrange(3000)
    files = ("scheduler.py", "block_manager.py", "llm_engine.py")

    def lines(frame, event, arg):
        nonlocal left
        left -= 1
        if left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return lines

    sys.settrace(lambda frame, event, arg: lines if frame.f_code.co_filename.endswith(files) else None)
    try:
        engine.generate([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [9] * 9], SamplingParams(max_tokens=8))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    check_idle(engine)
    assert not engine.has_unfinished
    [answer] = engine.generate([[7]], SamplingParams(max_tokens=3))
    assert answer.token_ids == alone([7], SamplingParams(max_tokens=3))
