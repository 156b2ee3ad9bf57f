"""Exercise 14.11: judged by what is asked for, and by an engine of the test's own that is killed at every moment."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch14_service import resume
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from shared.inference.sampling import SamplingParams
from tests.ch14_service.scenes import survives

PROMPT = [11, 12, 13]
FULL = SamplingParams(
    max_tokens=8, temperature=0.5, top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=1.2, seed=7, stop=("end",),
    ignore_eos=True, logprobs=2,
)  # fmt: skip


def asked(request: resume.Open) -> list[resume.Resubmission]:
    with survives("any request that isn't answered in full can be asked for again"):
        got = resume.resubmissions(request)
    expect(got is not None, because=NO_RESULT)
    expect(
        isinstance(got, list),
        because=f"a list is asked for, and this is a {type(got).__name__}: what is made only when it's looked at isn't "
        "what there was when the engine died",
    )
    expect(
        all(isinstance(each, resume.Resubmission) for each in got),
        because="a list of Resubmission objects is asked for, one for each answer that hasn't ended",
    )
    return got


def three() -> resume.Open:
    """Of three answers the first has two tokens, the second has ended, the third has none."""
    request = resume.Open("r", PROMPT, SamplingParams(n=3, seed=40, max_tokens=8, temperature=0.5), priority=2)
    request.on_output(0, [1, 2], False)
    request.on_output(1, [5], True)
    return request


@exercise("14.11")
def test_one_answer():
    request = resume.Open("r", PROMPT, SamplingParams(max_tokens=8, temperature=0.5, seed=7), priority=-1)
    request.on_output(0, [1, 2, 3], False)
    got = asked(request)
    expect_equal(len(got), 1, because="one answer is open")
    (one,) = got
    expect_equal(
        list(one.prompt_ids),
        PROMPT,
        because="the prompt stays the prompt. With the answer's tokens put behind it, they'd count as prompt: "
        "max_tokens would begin anew, and the usage be wrong",
    )
    expect_equal(list(one.output_ids), [1, 2, 3], because="what was made of the answer goes with it, behind the prompt")
    expect_equal(
        one.params.max_tokens,
        8,
        because="max_tokens counts the tokens that were made before, too, and those are sent along as output_ids: "
        "lessened by them here, they'd be counted twice, and the answer would end early",
    )
    expect_equal(one.params.seed, 7, because="the first answer draws with the request's own seed")
    expect_equal(one.params.temperature, 0.5, because="all other parameters stay as they are")
    expect_equal(
        list(asked(resume.Open("r", PROMPT, FULL))[0].params.__dict__.items()),
        list(FULL.__dict__.items()),
        because="a parameter was lost: after a crash the answer would go on by other rules. `replace` keeps all that "
        "it isn't told to change",
    )
    expect_equal((one.index, one.priority), (0, -1), because="index and priority are those of before")
    expect_equal(one.request_id, "r/0", because="the id is the request's, then \"/\" and the answer's index")


@exercise("14.11")
def test_which_answers():
    got = asked(three())
    indices = [each.index for each in got]
    expect(
        indices != [0, 1],
        because="the first and the third answer are open, 0 and 2. Renumbered, the third caller's text would go on in "
        "the second's",
    )
    expect(
        1 not in indices,
        because="the second answer has ended: asked for again, its caller would get it twice, or more than it wanted",
    )
    expect(
        2 in indices,
        because="the third answer has no token yet, and hasn't ended: it must be asked for, or it's lost",
    )
    expect_equal(
        indices,
        [0, 2],
        because="the first and the third answer are open, and come in this order, each with its index",
    )
    expect_equal(
        [each.request_id for each in got], ["r/0", "r/2"], because='ids are the request\'s, "/", and the index'
    )
    expect_equal([list(each.output_ids) for each in got], [[1, 2], []], because="each answer has tokens of its own")


@exercise("14.11")
def test_each_as_an_answer_of_its_own():
    got = asked(three())
    expect_equal(
        [each.params.n for each in got],
        [1, 1],
        because="each is asked for on its own, n=1: with n=3 the new engine would make three answers of each",
    )
    expect_equal(
        [each.params.seed for each in got],
        [40, 42],
        because="the k-th answer drew with seed + k, and has to go on so: 40 for the first, 42 for the third, "
        "whichever others have ended. With another seed the sentence goes on as another",
    )
    expect_equal(
        [(each.params.max_tokens, each.params.temperature, each.priority) for each in got],
        [(8, 0.5, 2)] * 2,
        because="everything else is as it was asked for",
    )


@exercise("14.11")
def test_copies():
    request = three()
    request.prompt_ids = list(PROMPT)
    request.on_death()
    got = asked(request)
    expect_equal(request.deaths, 1, because="asking counts nobody's deaths: on_death does, when an engine dies")
    request.on_output(0, [3], False)
    request.prompt_ids.append(99)
    expect_equal(
        list(got[0].output_ids),
        [1, 2],
        because="a token came after the engine was asked, and what it was asked with has grown: send a copy of the "
        "list, or the token is there twice, once as asked for and once as made",
    )
    expect_equal(list(got[0].prompt_ids), PROMPT, because="the prompt's list is a copy as well: list(...)")
    expect_equal(request.params.n, 3, because="the request itself stays as it was: replace makes a copy of its params")


@exercise("14.11")
def test_nothing_is_open():
    request = resume.Open("r", PROMPT, SamplingParams(n=2))
    request.on_output(0, [5], True)
    request.on_output(1, [6], True)
    expect_equal(asked(request), [], because="both answers have ended: nothing is to be asked for")


def token(prompt: list[int], outputs: list[int], seed: int) -> int:
    """What a model would draw here: it depends on the tokens before, the seed and the position, and on nothing else."""
    state = seed * 31 + len(prompt) + len(outputs)
    for each in [*prompt, *outputs]:
        state = (state * 1103515245 + each + 12345) % 2**31
    return state % 50  # 0 ends an answer


def undisturbed(request: resume.Open) -> list[list[int]]:
    answers = []
    for index in range(request.params.n):
        made: list[int] = []
        while len(made) < request.params.max_tokens and (not made or made[-1] != 0):
            made.append(token(PROMPT, made, request.params.seed + index))
        answers.append(made)
    return answers


@exercise("14.11")
@settings(max_examples=40, deadline=None, derandomize=True, report_multiple_bugs=False)
@given(
    n=st.integers(1, 3), most=st.integers(1, 6), seed=st.integers(0, 99), kills=st.lists(st.integers(0, 5), max_size=4)
)
def test_killed_again_and_again(n, most, seed, kills):
    """Each engine makes so many tokens and dies; the caller must see what an undisturbed one would have made."""
    request = resume.Open("r", PROMPT, SamplingParams(n=n, max_tokens=most, seed=seed))
    for lives in [*kills, 1000]:
        running = [(each, list(each.output_ids)) for each in asked(request)]
        while running and lives:
            lives -= 1
            each, made = running.pop(0)
            made.append(token(list(each.prompt_ids), made, each.params.seed))
            ended = made[-1] == 0 or len(made) >= each.params.max_tokens
            request.on_output(each.index, [made[-1]], ended)
            running += [] if ended else [(each, made)]
    expect_equal(
        request.outputs,
        undisturbed(request),
        because=f"n={n}, max_tokens={most}, engines killed after {kills} tokens: the caller got something else than "
        "from an engine that was never killed",
    )
