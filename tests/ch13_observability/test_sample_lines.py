"""Exercise 13.4, the text of a metric: judged by Prometheus's own parser."""

import math
from itertools import permutations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chapters.ch13_observability import metrics as own
from chapters.judge import crash_means, exercise, expect, expect_equal, no_result


def parsed(line: str) -> tuple[str, dict[str, str], float]:
    """By prometheus-client's own parser."""
    with crash_means(f"Prometheus's text format can't be read from {line!r}"):
        (family,) = text_string_to_metric_families(line + "\n")
    (sample,) = family.samples
    return sample.name, sample.labels, sample.value


def written(labels: dict[str, str], value: float = 3) -> str:
    line = own.sample_line("requests", labels, value)
    expect(isinstance(line, str), because=no_result("the line is a text"))
    return line


@exercise("13.4")
def test_plain_lines():
    expect_equal(
        written({"route": "/v1", "status": "200"}),
        'requests{route="/v1",status="200"} 3',
        because='label="value" pairs, in their order, with commas between and no spaces, then a space and the number',
    )
    expect_equal(written({}, 2.5), "requests 2.5", because="without labels there are no braces")


@exercise("13.4")
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.1, 1e-9, 12345678.9])
def test_numbers(value):
    line = written({"le": "1"}, value)
    expect_equal(
        line.rpartition(" ")[2],
        own.number(value),
        because="`number` writes a value as both formats want it, with every digit and with +Inf for infinity",
    )


@exercise("13.4")
@pytest.mark.parametrize(
    ("text", "because"),
    [
        ('a "quoted" word', 'a quote in a value ends it; it is written \\"'),
        ("C:\\temp", "a backslash is written twice: alone it would begin an escape"),
        ("one\ntwo", "a line's end in a value ends the sample; it is written \\n, and what follows can forge a metric"),
        ("\\n", "a backslash before an n is no line's end: escape the backslashes first, and only once"),
        ('\\"', "escape the backslash first: in the other order, the backslash of an escaped quote is escaped again"),
        ("Größe, 大きさ {x=1}", "all other characters stand as they are"),
        ("tab\there", "all other characters stand as they are; Prometheus refuses any escape but these three"),
        ("back\rthere", "all other characters stand as they are; Prometheus refuses any escape but these three"),
        ("", "an empty value is a value: the pair stays"),
    ],
)
def test_escapes(text, because):
    line = written({"a": text, "b": "plain"})
    expect(
        "\n" not in line,
        because="a line's end in a value ends the sample; it is written \\n, and what follows can forge a metric",
    )
    wanted = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
    escaped = "".join(wanted.get(character, character) for character in text)
    for order in permutations(wanted):
        other = text
        for character in order:
            other = other.replace(character, wanted[character])
        expect(
            other == escaped or f'a="{other}"' not in line,
            because="escape the backslash first: later, it escapes the backslashes that the other escapes have just "
            f"written. For {text!r} the line was {line}",
        )
    expect_equal(parsed(line), ("requests", {"a": text, "b": "plain"}, 3.0), because=because)
    expect_equal(line, f'requests{{a="{escaped}",b="plain"}} 3', because=because)
