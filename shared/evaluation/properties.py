"""What an answer is expected to have: properties, each a pure function of the answer and of a value from the case.

A check returns None when the answer has the property, and otherwise a line that says what is wrong.
"""

import json
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

# A number with its point or comma, a character of a script without spaces, letters, or any other sign.
UNIT = re.compile(r"\d+(?:[.,]\d+)*|[\u2e80-\U0003ffff]|[^\W\d_\u2e80-\U0003ffff]+|[^\w\s]|_")
ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)
FENCE = re.compile(r"\A```(?i:json)?\s*\n(.*?)\n?```\Z", re.DOTALL)
NGRAM = 4  # words


@dataclass(frozen=True)
class Answer:
    """What a model said. finish: "stop" when it ended by itself, "length" when it was cut off at max_tokens."""

    text: str
    finish: Literal["stop", "length"] = "stop"


def units(text: str) -> list[str]:
    """The words, numbers and signs of a text, in one spelling: without regard to case or to how accents are stored.

    >>> units("Pi is 3.14, roughly.")
    ['pi', 'is', '3.14', ',', 'roughly', '.']
    """
    return UNIT.findall(unicodedata.normalize("NFC", text).casefold())


def mentions(text: str, phrase: str) -> bool:
    """Does the text hold the phrase, as whole words and whole numbers, in this order and side by side?

    units(text) -> list of words, numbers and signs, all in one spelling.  A phrase without units (empty,
    or only spaces) is never mentioned.

    >>> [mentions(text, "7") for text in ("It is 7.", "It is 17.", "It is 3.7.")]
    [True, False, False]
    """
    # exercise 7.5: cut both into units, and look for the phrase's units among the text's
    wanted, found = units(phrase), units(text)
    places = range(len(found) - len(wanted) + 1)
    return bool(wanted) and any(found[i : i + len(wanted)] == wanted for i in places)
    # end


def repetition_share(text: str, n: int = NGRAM) -> float:
    """The share of the text's n-grams of words that were there before: near 1 for a text that turns in circles.

    Words are split at white space. A text without spaces (or with fewer than n words) is cut into characters when it
    is long. 0 for a text that is shorter than n.

    >>> repetition_share("and so on and so on and so on", n=2)  # 8 pairs, 3 different ones
    0.625
    """
    words = text.split()
    if len(words) < n and len(text) > 20 * n:
        words = list(text)
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def contains(answer: Answer, value: Any) -> str | None:
    """Every phrase of a list."""
    missing = [phrase for phrase in value if not mentions(answer.text, phrase)]
    return f"{missing[0]!r} is missing" if missing else None


def any_of(answer: Answer, value: Any) -> str | None:
    """At least one phrase of a list."""
    return None if any(mentions(answer.text, phrase) for phrase in value) else f"none of {value} is there"


def not_contains(answer: Answer, value: Any) -> str | None:
    """None of the phrases of a list."""
    there = [phrase for phrase in value if mentions(answer.text, phrase)]
    return f"{there[0]!r} is there" if there else None


def equals(answer: Answer, value: Any) -> str | None:
    """The answer is this text; white space around it doesn't count."""
    return None if answer.text.strip() == value.strip() else f"it isn't {value!r}"


def regex(answer: Answer, value: Any) -> str | None:
    """A regular expression finds something."""
    return None if re.search(value, answer.text) else f"nothing matches {value!r}"


def json_value(answer: Answer, value: Any) -> str | None:
    """The whole answer is JSON, perhaps in a code fence; if the value isn't true, it is this JSON value."""
    text = answer.text.strip()
    if fenced := FENCE.match(text):
        text = fenced[1]
    try:
        got = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return f"it isn't JSON: {error}"
    same = value is True or _spelled(got) == _spelled(value)  # == would take 1 for true
    return None if same else f"it is {json.dumps(got, ensure_ascii=False)}"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def items(answer: Answer, value: Any) -> str | None:
    """A list of exactly so many items: lines that begin with a dash, a star, a bullet or a number."""
    found = len(ITEM.findall(answer.text))
    return None if found == value else f"{found} list items, not {value}"


def max_words(answer: Answer, value: Any) -> str | None:
    """At most so many words."""
    found = len(answer.text.split())
    return None if found <= value else f"{found} words, at most {value} were asked for"


def min_words(answer: Answer, value: Any) -> str | None:
    """At least so many words."""
    found = len(answer.text.split())
    return None if found >= value else f"{found} words, at least {value} were asked for"


def ends(answer: Answer, value: Any) -> str | None:
    """true: the model ended by itself. false: it was still talking at max_tokens."""
    return None if (answer.finish == "stop") == value else ("cut off at max_tokens" if value else "it ended by itself")


def no_repeat(answer: Answer, value: Any) -> str | None:
    """The share of repeated 4-grams is at most this."""
    share = repetition_share(answer.text)
    return None if share <= value else f"{share:.0%} of its 4-grams are repetitions, at most {value:.0%} are allowed"


def _phrases(value: Any) -> str | None:
    good = isinstance(value, list) and value and all(isinstance(v, str) and units(v) for v in value)
    return None if good else "a list of texts, none of them empty"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "a text that isn't empty"


def _pattern(value: Any) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as "[[a]": a later Python will read it as something else
            pattern = re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError, Warning) as error:
        return f"a regular expression ({error})"
    return "a regular expression that an empty answer doesn't match" if pattern.search("") else None


def _count(value: Any) -> str | None:
    return None if type(value) is int and value >= 1 else "a whole number of at least 1"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _share(value: Any) -> str | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
    return None if good else "a share from 0 up to, but without, 1"


def _json(value: Any) -> str | None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:  # NaN, or a number beyond what a float holds
        value = None
    return "true, or a JSON value other than false and null" if value is False or value is None else None


@dataclass(frozen=True)
class Property:
    """check: (answer, value) -> None, or what is wrong.  wants: value -> None, or what it should have been."""

    check: Callable[[Answer, Any], str | None]
    wants: Callable[[Any], str | None]


PROPERTIES: dict[str, Property] = {
    "contains": Property(contains, _phrases),
    "any_of": Property(any_of, _phrases),
    "not_contains": Property(not_contains, _phrases),
    "equals": Property(equals, _text),
    "regex": Property(regex, _pattern),
    "json": Property(json_value, _json),
    "items": Property(items, _count),
    "max_words": Property(max_words, _count),
    "min_words": Property(min_words, _count),
    "ends": Property(ends, _flag),
    "no_repeat": Property(no_repeat, _share),
}


def problems(answer: Answer, expected: Mapping[str, Any]) -> list[str]:
    """What is wrong with the answer, a line for each property it hasn't got; none for a good one."""
    found = ((name, PROPERTIES[name].check(answer, value)) for name, value in expected.items())
    return [f"{name}: {problem}" for name, problem in found if problem]


def contradiction(expected: Mapping[str, Any]) -> str | None:
    """Two properties that no answer can have both, in words; None when there are none. The values must make sense."""
    if expected.get("min_words", 0) > (most := expected.get("max_words", float("inf"))):
        return f"min_words: no answer has {expected['min_words']} words and at most {most}"
    banned = expected.get("not_contains", ())

    def out(phrase: str) -> bool:
        return any(mentions(phrase, other) for other in banned)

    if ruled_out := [phrase for phrase in expected.get("contains", ()) if out(phrase)]:
        return f"contains: not_contains rules {ruled_out[0]!r} out"
    if "any_of" in expected and all(map(out, expected["any_of"])):
        return "any_of: not_contains rules all of them out"
    return None
