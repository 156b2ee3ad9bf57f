"""Exercise 9.12: judged by clear cases, by those that are easily confused, and by faulty loops."""

import pytest

from chapters.ch09_kv_cache import diagnosis
from chapters.judge import crash_means, exercise, expect_equal
from shared.inference import faulty
from tests.tiny import tiny_model

PROMPT = [5, 17, 80]
BEST = [40, 41, 42, 43]
FED = [PROMPT, [*PROMPT, 40], [*PROMPT, 40, 1], [*PROMPT, 40, 1, 2]]  # everything again, into warm caches


@pytest.fixture(autouse=True)
def _forget_what_the_shared_loop_keeps():
    kept = faulty.shared_between_requests.__defaults__[0]
    kept.clear()
    yield
    kept.clear()


def seen(cached=(0, 3, 4, 5), fed=None, positions=None, best=None, answer=None, truth=None) -> diagnosis.Observation:
    """A healthy loop: the prompt of 3, then each token alone; its answer is what the model found best."""
    best = BEST if best is None else best
    fed = [PROMPT, *([token] for token in best[:-1])] if fed is None else fed
    positions = (
        [list(range(c, c + len(ids))) for c, ids in zip(cached, fed, strict=True)] if positions is None else positions
    )
    calls = [diagnosis.Call(*call) for call in zip(cached, fed, positions, best, strict=True)]
    answer = best if answer is None else answer
    return diagnosis.Observation(PROMPT, answer, calls, BEST if truth is None else truth)


def expect_loop(got: diagnosis.Observation, want: str, because: str) -> None:
    with crash_means(f"this one is {want!r}: {because}"):
        found = diagnosis.diagnose_loop(got)
    expect_equal(found, want, because=because)


@exercise("9.12")
def test_healthy():
    expect_loop(
        seen(), "healthy", because="the prompt of 3, then each token alone, and the naive loop's answer: healthy"
    )


@exercise("9.12")
def test_caches_that_were_full():
    got = seen(cached=(6, 9, 10, 11), best=[7, 8, 9, 10], truth=BEST)
    expect_loop(
        got,
        "caches outlive their request",
        because="the first call found 6 tokens in the caches: somebody else's. (Then everything after it counts too "
        "many, too, so this comes first)",
    )


@exercise("9.12")
def test_forgotten():
    got = seen(cached=(0, 0, 0, 0), best=[40, 1, 2, 3])
    expect_loop(
        got,
        "earlier tokens are not in the caches",
        because="the second call found nothing and was fed 1 token, when there were 3 + 1: call i should leave "
        "len(prompt) + i",
    )
    got = seen(cached=(0, 3, 3, 3), best=[40, 41, 2, 3])
    expect_loop(
        got,
        "earlier tokens are not in the caches",
        because="the third call left 4 tokens in the caches, where 5 should be: look at every call, not at the second "
        "alone",
    )


@exercise("9.12")
def test_fed_again():
    got = seen(cached=(0, 3, 7, 12), fed=FED, best=[40, 1, 2, 3])
    expect_loop(
        got,
        "tokens fed again to a warm cache",
        because="the second call found 3 tokens and was fed 4, so 7 are in the caches, when there are 4 in all",
    )
    got = seen(cached=(0, 3, 5, 7), fed=[PROMPT, [80, 40], [40, 41], [41, 42]])
    expect_loop(
        got,
        "tokens fed again to a warm cache",
        because="the last two tokens are fed each time, one of them for the second time. (That the answer happens to "
        "be right doesn't make it healthy)",
    )
    got = seen(cached=(0, 3, 4, 5), fed=[PROMPT, [80, 40], [41], [42]])
    expect_loop(
        got,
        "tokens fed again to a warm cache",
        because="the second call left 5 tokens, where 4 should be; the others left what they should: look at every "
        "call, not at the last alone",
    )
    got = seen(cached=(0, 3, 7, 12), fed=FED, positions=[list(range(len(ids))) for ids in FED])
    expect_loop(
        got,
        "tokens fed again to a warm cache",
        because="tokens are fed again, and stand at other places than those behind the cache. Of two lines that fit "
        "the first is the answer: the places have a line below, it comes after the two that count",
    )


@exercise("9.12")
def test_the_naive_loop_is_healthy():
    fed = [[*PROMPT, *BEST[:i]] for i in range(4)]
    expect_loop(
        seen(cached=(0, 0, 0, 0), fed=fed),
        "healthy",
        because="no cache at all, and the whole sequence each time: slow, and right. It is cached + fed that counts, "
        "not how many are fed",
    )


@exercise("9.12")
def test_a_lack_and_a_surplus():
    got = seen(cached=(0, 0, 4, 5), fed=[PROMPT, [40], [40, 41], [42]])
    expect_loop(
        got,
        "earlier tokens are not in the caches",
        because="the second call left 1 token in the caches, where 4 should be, and later ones left one too many: of "
        "two lines that fit the first is the answer, and forgotten comes first",
    )


@exercise("9.12")
def test_positions():
    got = seen(positions=[[0, 1, 2], [0], [0], [0]], best=[40, 1, 2, 3])
    expect_loop(
        got,
        "positions don't go on from the cache",
        because="the second call's token stood at position 0, with 3 tokens in the caches: it belongs at 3",
    )
    got = seen(positions=[[1, 2, 3], [4], [5], [6]], best=[1, 2, 3, 4])
    expect_loop(
        got,
        "positions don't go on from the cache",
        because="the first token stood at position 1: positions are cached, cached + 1, ..., from 0 on in the first "
        "call",
    )
    got = seen(positions=[[0, 1, 2], [3], [4], [4]], best=[40, 41, 42, 3])
    expect_loop(
        got, "positions don't go on from the cache", because="the last call's token stood at 4, and belongs at 5"
    )
    got = seen(positions=[[0, 2, 1], [3], [4], [5]])
    expect_loop(got, "positions don't go on from the cache", because="the prompt's tokens stood in the wrong order")


@exercise("9.12")
def test_one_call_too_many():
    got = seen(cached=(0, 3, 4, 5, 6), best=[*BEST, 44], answer=BEST)
    expect_loop(
        got,
        "one call too many",
        because="five calls for four tokens: what the fifth found was never wanted. Nothing of the answer is lost",
    )


@exercise("9.12")
def test_lost():
    for answer, what in (([43], "its last token alone"), ([], "nothing")):
        expect_loop(
            seen(answer=answer),
            "the answer is lost",
            because=f"four calls, each fed what it should be, and the answer is {what}. (An answer that is too short "
            "isn't that of the best tokens either, nor the truth, so this comes before those)",
        )
    for answer in (BEST[:2], BEST[2:], BEST[:3], BEST[1:]):
        expect_loop(
            seen(answer=answer),
            "the answer is lost",
            because=f"four calls, and an answer of {len(answer)} tokens: half of it, or one token, is lost",
        )


@exercise("9.12")
def test_an_answer_that_ends_early():
    got = seen(cached=(0, 3), best=BEST[:2])
    expect_loop(
        got,
        "healthy",
        because="two calls, two tokens, and the truth begins with them: the loop ended early, with an end token. It is "
        "the number of calls that an answer is measured by, and the truth's first tokens",
    )


@exercise("9.12")
def test_other_tokens():
    got = seen(fed=[PROMPT, [80], [80], [80]], best=[40, 1, 2, 3])
    expect_loop(
        got,
        "other tokens are fed than those of the text",
        because="the loop fed 80 each time, the prompt's last token, where the answer's belong: as many as should be, "
        "and the wrong ones. A call's ids are prompt + answer from `cached` on",
    )
    got = seen(fed=[[80, 17, 5], [7], [8], [9]], best=[7, 8, 9, 10])
    expect_loop(
        got,
        "other tokens are fed than those of the text",
        because="the first call was fed the prompt backwards: compare the prompt, too",
    )
    got = seen(fed=[PROMPT, [40], [41], [7]], best=[40, 41, 42, 3])
    expect_loop(
        got,
        "other tokens are fed than those of the text",
        because="the last call was fed 7, and 42 had been chosen: look at every call",
    )


@exercise("9.12")
def test_not_greedy():
    fed = [PROMPT, [40], [9], [42]]
    expect_loop(
        seen(fed=fed, answer=[40, 9, 42, 43]),
        "not greedy at temperature 0",
        because="the second call found 41 best, and the answer has 9 there",
    )
    expect_loop(
        seen(answer=[40, 41, 42, 9]),
        "not greedy at temperature 0",
        because="the last call found 43 best, and the answer has 9 there: compare the whole answer",
    )
    expect_loop(
        seen(fed=[PROMPT, [40], [41], [42]], best=[40, 9, 42, 43], answer=BEST),
        "not greedy at temperature 0",
        because="the second call found 9 best, and the answer has 41 there. That this happens to be the naive loop's "
        "answer doesn't make it greedy",
    )


@exercise("9.12")
def test_no_mask():
    got = seen(best=[7, 8, 9, 10], truth=BEST)
    expect_loop(
        got,
        "tokens see what comes after them",
        because="every token was fed once, at its place, and the model's best was taken each time; yet the naive loop "
        "has another answer. What is left is what the model let its tokens see",
    )
    expect_loop(
        seen(best=[40, 41, 42, 9], truth=BEST),
        "tokens see what comes after them",
        because="the answer parts at the last token from the naive loop's: compare all of them",
    )


@exercise("9.12")
def test_real_loops():
    names = {
        "right": "healthy",
        "overwritten": "the answer is lost",
        "fed_again": "tokens fed again to a warm cache",
        "forgetful": "earlier tokens are not in the caches",
        "shared_between_requests": "caches outlive their request",
        "counted_from_zero": "positions don't go on from the cache",
        "without_mask": "tokens see what comes after them",
        "zero_taken_for_missing": "not greedy at temperature 0",
    }
    model = tiny_model()
    for loop in faulty.LOOPS:
        with crash_means(f"observe() watched the loop {loop.__name__!r} on a small model"):
            got = diagnosis.diagnose_loop(diagnosis.observe(loop, model, [5, 17, 80, 3, 41, 9], 6))
        expect_equal(got, names[loop.__name__], because=f"the loop {loop.__name__!r} in shared/inference/faulty.py")
