"""Every property: answers that have it, answers that don't, and values that make no sense."""

import pytest

from shared.evaluation.properties import PROPERTIES, Answer, contradiction, problems, repetition_share, units

CUT = Answer("The capital is", "length")
HAS = [
    ("contains", ["Paris", "france"], "Paris is in France."),
    ("any_of", ["7", "seven"], "There are seven."),
    ("not_contains", ["Paris"], "The Parisian life."),
    ("equals", "yes", "  yes\n"),
    ("regex", r"^\d+$", "42"),
    ("json", True, '```json\n{"a": 1}\n```'),
    ("json", {"a": 1, "b": [2]}, '{"b": [2], "a": 1}'),
    ("json", {"a": 1}, '```JSON\n{"a": 1}\n```'),
    ("items", 3, "1. Red\n2. Blue\n3. Green"),
    ("items", 2, "Here:\n- a\n* b"),
    ("max_words", 3, "one two three"),
    ("min_words", 3, "one two three"),
    ("ends", True, "Yes."),
    ("no_repeat", 0.1, "a b c d e f g h i j"),
]
HAS_NOT = [
    ("contains", ["Paris", "Rome"], "Paris.", "'Rome' is missing"),
    ("any_of", ["7", "seven"], "There are 17.", "none of ['7', 'seven'] is there"),
    ("not_contains", ["Paris"], "It is Paris!", "'Paris' is there"),
    ("equals", "yes", "Yes", "it isn't 'yes'"),
    ("regex", r"^\d+$", "42 ", "nothing matches '^\\\\d+$'"),
    ("json", True, "{'a': 1}", "it isn't JSON"),
    ("json", {"a": 1}, '{"a": 2}', 'it is {"a": 2}'),
    ("json", True, "[" * 100_000, "it isn't JSON"),
    ("json", {"ok": True}, '{"ok": 1}', 'it is {"ok": 1}'),
    ("json", {"n": 1}, '{"n": true}', 'it is {"n": true}'),
    ("json", True, '{"a": NaN}', "it isn't JSON: NaN is not a JSON value"),
    ("json", True, "-Infinity", "it isn't JSON: -Infinity"),
    ("items", 3, "Red, blue and green", "0 list items, not 3"),
    ("max_words", 2, "one two three", "3 words, at most 2"),
    ("min_words", 4, "one two three", "3 words, at least 4"),
    ("no_repeat", 0.2, "and on and on and on and on and on", "are repetitions, at most 20%"),
]
SENSELESS = [
    ("contains", []), ("contains", "Paris"), ("contains", [""]), ("contains", [3]), ("any_of", None),
    ("not_contains", ["  "]), ("equals", " "), ("equals", 3), ("regex", "("), ("regex", ""), ("regex", 4),
    ("regex", "a{99999999999}"), ("regex", ".*"), ("regex", "x?"), ("regex", "[[a]"),
    ("json", False), ("json", None), ("json", float("nan")), ("json", {"a": [float("inf")]}),
    ("items", 0), ("items", 1.5), ("max_words", True), ("min_words", -1),
    ("ends", 1), ("no_repeat", 1), ("no_repeat", -0.1), ("no_repeat", True), ("no_repeat", "much"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "text"), HAS)
def test_has(name, value, text):
    assert PROPERTIES[name].wants(value) is None
    assert problems(Answer(text), {name: value}) == []


@pytest.mark.parametrize(("name", "value", "text", "said"), HAS_NOT)
def test_has_not(name, value, text, said):
    assert PROPERTIES[name].wants(value) is None
    (problem,) = problems(Answer(text), {name: value})
    assert problem.startswith(f"{name}: ")
    assert said in problem


@pytest.mark.parametrize(("name", "value"), SENSELESS)
def test_senseless_values(name, value):
    assert PROPERTIES[name].wants(value)


def test_ends():
    assert problems(CUT, {"ends": True}) == ["ends: cut off at max_tokens"]
    assert problems(CUT, {"ends": False}) == []
    assert problems(Answer("Yes."), {"ends": False}) == ["ends: it ended by itself"]


def test_every_property_is_tested():
    assert {name for name, *_ in HAS} == PROPERTIES.keys()
    assert {name for name, *_ in HAS_NOT} | {"ends"} == PROPERTIES.keys()
    assert {name for name, _ in SENSELESS} == PROPERTIES.keys()


def test_several_problems():
    expected = {"contains": ["Rome"], "max_words": 1, "min_words": 2}
    assert [p.split(":")[0] for p in problems(CUT, expected)] == ["contains", "max_words"]


@pytest.mark.parametrize(
    ("text", "n", "share"),
    [
        ("", 4, 0.0),
        ("one two three", 4, 0.0),
        ("a b c d a b c d", 4, 0.2),  # abcd bcda cdab dabc abcd: 1 of 5
        ("x x x x x x x", 4, 0.75),  # 4 grams, all the same
        ("好" * 100, 4, 96 / 97),  # no spaces: characters
    ],
)
def test_repetition_share(text, n, share):
    assert repetition_share(text, n) == pytest.approx(share)


def test_units():
    assert units("Café costs 1,700.50 €!") == ["café", "costs", "1,700.50", "€", "!"]
    assert units("cafe\u0301") == units("CAFÉ")
    assert units("東京です") == list("東京です")
    assert units("f(x_1)") == ["f", "(", "x", "_", "1", ")"]


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({"min_words": 9, "max_words": 3}, "min_words: no answer has 9 words and at most 3"),
        ({"min_words": 3, "max_words": 3}, None),
        ({"min_words": 9}, None),
        ({"contains": ["Rome", "Paris"], "not_contains": ["paris"]}, "contains: not_contains rules 'Paris' out"),
        ({"contains": ["New York"], "not_contains": ["York"]}, "contains: not_contains rules 'New York' out"),
        ({"contains": ["York"], "not_contains": ["New York"]}, None),
        ({"any_of": ["a", "b"], "not_contains": ["b", "a"]}, "any_of: not_contains rules all of them out"),
        ({"any_of": ["a", "b"], "not_contains": ["b"]}, None),
        ({"ends": True}, None),
    ],
)
def test_contradictions(expected, said):
    assert contradiction(expected) == said
