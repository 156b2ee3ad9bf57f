"""Exercise 12.2, who runs gets which part of the budget: judged by small scenes worked out by hand."""

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect_equal
from shared.inference.block_manager import BlockManager
from tests.ch12_engine.scenes import RUNNING, WAITING, given, new_sequence, run, survives


class Roomy(own.Scheduler):
    """Room for everybody; or, with `room`, as many calls as its items get what they say."""

    room: list[str] = []

    def _make_room(self, sequence, n, step) -> bool:
        asked = self.__dict__.setdefault("asked", [])
        asked.append((sequence.request_id, n))
        if sequence.status is not RUNNING:
            return True
        word = self.room.pop(0) if self.room else "yes"
        if word == "last goes" or word == "goes itself":
            gone = self.running.pop()
            gone.status = WAITING
            step.preempted.append(gone)
        return word != "goes itself"


def roomy(budget: int, *missing: int, room: list[str] | None = None) -> Roomy:
    """A scheduler with one running sequence for each number: it misses so many tokens of its 20."""
    scheduler = Roomy(BlockManager(50, 4), max_num_seqs=4, max_num_batched_tokens=budget)
    for name, n in zip("abcd", missing, strict=False):
        run(scheduler, new_sequence(name, 20), computed=20 - n)
    scheduler.room = room or []
    return scheduler


def hand_out(scheduler: own.Scheduler, because: str) -> tuple[list[tuple[str, int]], int]:
    step = own.Step()
    with survives(because):
        left = scheduler._schedule_running(step)
    return given(step), left


@exercise("12.2")
def test_decodes_get_a_token_each():
    got, left = hand_out(roomy(16, 1, 1, 1), because="three decodes fit into a step")
    expect_equal(
        got,
        [("a", 1), ("b", 1), ("c", 1)],
        because="each of the three misses one token, and gets it, the most urgent first",
    )
    expect_equal(
        left, 13, because="three tokens of the budget of 16 are handed out; what is left is for those who wait"
    )


@exercise("12.2")
def test_a_prompt_gets_all_it_misses():
    got, left = hand_out(roomy(16, 6, 1), because="a prompt and a decode fit into a step")
    because = (
        "a gets all the 6 tokens it misses: the budget has room for them, and reading a prompt token by token, or an "
        "even "
        "share of the budget each, wastes the rest"
    )
    if got == [("b", 1), ("a", 6)]:
        because = "the order is that of self.running: the most urgent must find blocks before the others take them"
    expect_equal(got, [("a", 6), ("b", 1)], because=because)
    expect_equal(left, 9, because="7 of 16 are handed out")


@exercise("12.2")
def test_no_more_than_the_budget():
    got, left = hand_out(roomy(4, 20), because="a long prompt is read in pieces")
    causes = {3: "one token too many is kept back: behind a there is nobody", 20: "a prompt is read in pieces"}
    because = causes.get(got[0][1] if got else None, "a gets as much as the budget has")
    expect_equal(got, [("a", 4)], because=f"a misses 20, and the step's budget is 4: {because}")
    expect_equal(left, 0, because="the whole budget is handed out")


@exercise("12.2")
def test_a_long_prompt_leaves_a_token_for_those_behind():
    got, _ = hand_out(roomy(10, 20, 1, 1), because="there is budget for all three")
    causes = {
        (("a", 10),): "a long prompt in front takes the whole budget, and the two streams behind it stand still",
        (("a", 10), ("b", 0), ("c", 0)): "the streams behind the long prompt get 0 tokens: they stand still",
        (("a", 10), ("b", 1), ("c", 1)): "12 tokens are handed out of a budget of 10: it must shrink with each",
        (("a", 20), ("b", 1), ("c", 1)): "22 tokens are handed out of a budget of 10",
        (("a", 7), ("b", 1), ("c", 1)): "one token too many is kept back: behind a there are two others",
        (("b", 1), ("c", 1), ("a", 8)): "the order is that of self.running, by urgency; blocks are made room for in it",
    }
    expect_equal(
        got,
        [("a", 8), ("b", 1), ("c", 1)],
        because=causes.get(
            tuple(got) if got else None,
            "one token is kept back for each of the two behind a: they decode, and a's prompt is long",
        ),
    )


@exercise("12.2")
def test_those_behind_may_read_prompts_too():
    got, _ = hand_out(roomy(6, 9, 9, 9), because="there is budget for all three")
    expect_equal(
        got,
        [("a", 4), ("b", 1), ("c", 1)],
        because="b and c read prompts, and a token is kept back for each of them as well: each running sequence gets "
        "one of every step",
    )


@exercise("12.2")
def test_the_tightest_budget():
    got, left = hand_out(roomy(4, 5, 5, 1, 9), because="four sequences and a budget of four: one each")
    expect_equal(
        got,
        [("a", 1), ("b", 1), ("c", 1), ("d", 1)],
        because="with a budget of one token each, each gets one; counting oneself among those behind leaves none",
    )
    expect_equal(left, 0, because="four of four are handed out")


@exercise("12.2")
def test_what_one_leaves_the_next_may_have():
    got, left = hand_out(roomy(16, 2, 20, 1), because="there is budget for all")
    expect_equal(
        got,
        [("a", 2), ("b", 13), ("c", 1)],
        because="b may have what a left, 14, less one for c",
    )
    expect_equal(left, 0, because="the whole budget is handed out")


@exercise("12.2")
def test_who_is_sent_away_gets_nothing():
    scheduler = roomy(16, 1, 1, 1, room=["last goes"])
    got, left = hand_out(scheduler, because="self.running gets shorter while you go through it: look again each time")
    expect_equal(
        got,
        [("a", 1), ("b", 1)],
        because="making room for a sent c away: it has no blocks any more and gets nothing. A copy of self.running, or "
        "its old length, still names it",
    )
    expect_equal(left, 14, because="two of 16 tokens are handed out")
    scheduler = roomy(16, 1, 1, 1, room=["yes", "yes", "goes itself"])
    got, left = hand_out(scheduler, because="the last one may have to go itself")
    expect_equal(
        got,
        [("a", 1), ("b", 1)],
        because="_make_room answered False for c: it was preempted itself, and gets no token",
    )
    expect_equal(left, 14, because="nothing is handed out to c, so its token is left")


@exercise("12.2")
def test_nothing_is_kept_back_for_who_is_gone():
    got, left = hand_out(roomy(10, 8, 6, 1, room=["last goes"]), because="self.running gets shorter on the way")
    expect_equal(
        got,
        [("a", 8), ("b", 2)],
        because="a takes 8 of 10, and c has gone to make room for it: b misses 6, may have the 2 that are left, and "
        "nobody stands behind it any more. Look at self.running again each time",
    )
    expect_equal(left, 0, because="the whole budget is handed out")


@exercise("12.2")
def test_nothing_is_computed_yet():
    scheduler = roomy(16, 6, 1)
    hand_out(scheduler, because="a prompt and a decode fit into a step")
    expect_equal(
        [sequence.num_computed_tokens for sequence in scheduler.running],
        [14, 19],
        because="handed out isn't computed: the step runs later, and `update` counts its tokens then",
    )


@exercise("12.2")
def test_who_comes_back_misses_its_answer_too():
    scheduler = roomy(16, 1)
    [a] = scheduler.running
    a.token_ids, a.num_computed_tokens = [*a.token_ids, 1, 2, 3, 4], 17
    got, _ = hand_out(scheduler, because="7 tokens fit into a step")
    expect_equal(
        got,
        [("a", 7)],
        because="a came back after a preemption: 3 tokens of its prompt and 4 of its answer aren't computed, and "
        "num_missing counts both. Counted from the prompt's length, the answer is read token by token",
    )


@exercise("12.2")
def test_room_is_asked_for_what_is_given():
    scheduler = roomy(10, 20, 1, 3)
    got, _ = hand_out(scheduler, because="there is budget for all three")
    expect_equal(
        scheduler.__dict__.get("asked", []),
        got,
        because="blocks must be there for every token handed out: ask _make_room once for each, with its n",
    )


@exercise("12.2")
def test_nobody_runs():
    got, left = hand_out(roomy(16), because="nobody runs: there is nothing to do")
    expect_equal((got, left), ([], 16), because="nobody runs, and the whole budget is left")
