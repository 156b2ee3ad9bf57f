"""Planted bad cases, each failing for one known reason, and the causes that the experiments find."""

import math

import pytest

from shared.evaluation import attribution
from shared.evaluation.attribution import Evidence, Limits, attribute, find_limits, plain, shortened
from shared.evaluation.properties import Answer
from shared.evaluation.regression import Case, judge, run_cases

LIMITS = Limits(tokens_per_unit=2.0, bits_per_byte=3.0)


def scripted(case: Case) -> Answer:
    """A "model" with known weaknesses: it counts up to twenty, loses itself in long prompts, reads plain letters only,
    loops when greedy on poems, talks nonsense when hot, and knows one capital."""
    text = case.text
    if text == "Count to twenty.":
        words = [str(i) for i in range(1, 21)][: case.max_tokens]
        return Answer(" ".join(words), "stop" if len(words) == 20 else "length")
    if len(text) > 500:
        return Answer("I lost the thread.")
    if not text.isascii():
        return Answer("Sorry?")
    if case.temperature > 1:
        return Answer("purple monkey dishwasher")
    if "poem" in text:
        looped = case.temperature == 0
        return Answer("the sea the sea the sea the sea" if looped else "a quiet line on the sea", "length")
    if "France" in text:
        return Answer("It is Paris.")
    return Answer("No idea.")


def measure(text: str) -> tuple[float, float]:
    """Tokens per unit and bits per byte, as a model might see them."""
    return (5.0 if "zyx" in text else 1.2), (6.0 if "glimbus" in text else 1.0)


def chat(id: str, text: str, max_tokens: int = 10, temperature: float = 0.0, **expect) -> Case:
    messages = ({"role": "user", "content": text},)
    return Case(id, expect, max_tokens, messages=messages, temperature=temperature)


FILLER = "\n\n".join(f"Paragraph {i} talks of nothing in particular, at some length." for i in range(12))
PLANTED = {
    "cut": (chat("cut", "Count to twenty.", 12, contains=["20"]), ["length"]),
    "long": (chat("long", f"France.\n\n{FILLER}\n\nWhich capital?", contains=["Paris"]), ["length"]),
    "wide": (chat("wide", "Ｃａｐｉｔａｌ of Ｆｒａｎｃｅ?", contains=["Paris"]), ["tokenizer"]),
    "invisible": (chat("invisible", "Capital of Fr\u200bance?", contains=["Paris"]), ["tokenizer"]),
    "hot": (chat("hot", "Capital of France?", temperature=2.0, contains=["Paris"]), ["decoding"]),
    "loop": (chat("loop", "Write a poem.", no_repeat=0.2), ["decoding"]),
    "unfamiliar": (chat("unfamiliar", "What does glimbus mean?", contains=["fish"]), ["data"]),
    "rare": (chat("rare", "What is zyxqvw?", contains=["fish"]), ["tokenizer"]),
    "wrong": (chat("wrong", "Capital of Spain?", contains=["Madrid"]), ["unexplained"]),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_cases(name):
    case, expected = PLANTED[name]
    result = judge(case, scripted(case))
    assert not result.passed
    (found,) = attribute([result], scripted, measure, LIMITS)
    assert found.causes == expected


def test_only_failed_cases_are_looked_at():
    cases = [chat("fine", "Capital of France?", contains=["Paris"]), PLANTED["wrong"][0]]
    found = attribute(run_cases(cases, scripted), scripted, measure, LIMITS)
    assert [item.result.case.id for item in found] == ["wrong"]


def test_an_experiment_that_makes_no_sense_is_not_made():
    asked = []

    def respond(case: Case) -> Answer:
        asked.append((case.text, case.max_tokens, case.temperature, case.seed))
        return Answer("No idea.")

    case = chat("wrong", "Capital of Spain?", contains=["Madrid"])
    evidence = attribution.investigate(judge(case, Answer("No idea.")), respond, measure)
    assert (evidence.longer, evidence.shorter, evidence.plain, evidence.otherwise) == (None, None, None, False)
    assert asked == [("Capital of Spain?", 10, 0.7, seed) for seed in range(3)]


def test_one_lucky_draw_of_three_proves_nothing():
    def respond(case: Case) -> Answer:
        return Answer("Madrid" if case.temperature and case.seed == 1 else "No idea.")

    case = chat("wrong", "Capital of Spain?", contains=["Madrid"])
    assert attribution.investigate(judge(case, respond(case)), respond, measure).otherwise is False


def test_a_prompt_of_a_base_model_is_changed_as_well():
    case = Case("p", {"contains": ["Paris"]}, 4, prompt="Ｆｒａｎｃｅ")
    asked = []

    def respond(case: Case) -> Answer:
        asked.append(case.prompt)
        return Answer("x")

    attribution.investigate(judge(case, Answer("x")), respond, measure)
    assert "France" in asked


def test_limits_are_those_of_passing_cases():
    passing = [judge(chat(f"c{i}", "x", contains=["x"]), Answer("x")) for i in range(21)]
    values = iter((float(i), 2.0 * i) for i in range(21))
    assert find_limits(passing, lambda text: next(values)) == Limits(19.0, 38.0)  # the 95th percentile of 0 to 20
    for few in (passing[:4], []):
        assert find_limits(few, measure) == Limits(math.inf, math.inf)  # too few to say what is usual


def test_shortened():
    assert shortened("a\n\nb\n\nc\n\nd") == "a\n\nd"
    assert shortened("a\n\nb") is None
    assert shortened("") is None
    sentence = "Nothing happened on that day. "
    assert shortened("My dog is Rex. " + 40 * sentence + "Who is my dog?") == "My dog is Rex. Who is my dog?"
    assert shortened("My dog is Rex. " + 4 * sentence + "Who is my dog?") is None  # short as it is
    assert shortened("word " * 1000) is None  # nowhere to cut


def test_plain():
    assert plain("ｗｉｄｅ") == "wide"
    assert plain("so\u00adft and\u200b zero") == "soft and zero"
    assert plain("ﬁne") == "fine"
    assert plain("Zürich, 東京") is None
    assert plain("\u200b") is None


def test_near_misses_of_the_limits():
    assert attribution.causes(Evidence(tokens_per_unit=2.0, bits_per_byte=3.0), LIMITS) == ["unexplained"]


def test_measured_after_experiments_that_failed():
    evidence = Evidence(longer=False, plain=False, otherwise=False, tokens_per_unit=3.0, bits_per_byte=4.0)
    assert attribution.causes(evidence, LIMITS) == ["tokenizer", "data"]


@pytest.mark.real
def test_measures_of_the_real_model(real_model, tokenizer):
    of = attribution.measurer(real_model, tokenizer)
    usual, words, digits = (
        of("What is the capital of France?"),
        of("What is xqzvwpk blorptrx?"),
        of("What is 93847562?"),
    )
    assert usual[0] < 1.3 < words[0]
    assert usual[0] < digits[0]
    assert usual[1] < words[1]
