"""Why a case failed: each cause is found by an experiment or by a measured quantity, and not by reading the answer.

An experiment changes one thing and asks again. If the case passes then, the thing was the cause: a longer limit or a
shorter prompt (length), the same prompt in plain characters (tokenizer), another way to choose tokens (decoding). What
no experiment mends is held against the cases that pass: are its words cut into more tokens than theirs (tokenizer), is
the model more surprised by its prompt than by theirs (data)?
"""

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.data.tokenizer import Tokenizer
from shared.evaluation.perplexity import score_text
from shared.evaluation.properties import repetition_share, units
from shared.evaluation.regression import MAX_TOKENS, Case, Respond, Result, judge
from shared.measure.progress import progress_bar
from shared.model.transformer import Transformer

LONGER = 4  # times as many tokens
DRAWS = 3  # of which most must pass
TEMPERATURE = 0.7
QUANTILE = 0.95
MIN_PASSING = 5
LONG_PROMPT = 1000  # characters


@dataclass(frozen=True)
class Evidence:
    """What is known of a case. The experiments: did it pass? None where the experiment makes no sense."""

    longer: bool | None = None  # with LONGER times as many tokens; tried when the answer was cut off
    shorter: bool | None = None  # without the middle of the prompt; tried when the prompt has a middle
    plain: bool | None = None  # in plain characters; tried when the prompt has others
    otherwise: bool | None = None  # greedy instead of drawn, or drawn instead of greedy
    cut: bool = False  # the answer was cut off
    loop: float = 0.0  # the share of the answer's 4-grams that were there before
    tokens_per_unit: float = 0.0  # tokens for each word, number or sign of the prompt
    bits_per_byte: float = 0.0  # the model's surprise at the prompt


@dataclass(frozen=True)
class Limits:
    """How far cases that pass go."""

    tokens_per_unit: float
    bits_per_byte: float


@dataclass(frozen=True)
class Attribution:
    """A failed case with the evidence and the causes found."""

    result: Result
    evidence: Evidence
    causes: list[str]


def causes(evidence: Evidence, limits: Limits) -> list[str]:
    """The causes that the evidence proves, of "length", "tokenizer", "decoding" and "data", in this order.

    An experiment that let the case pass proves its cause: `longer` and `shorter` length, `plain` tokenizer, `otherwise`
    decoding. Only where none did, a quantity above its limit counts: tokens_per_unit for tokenizer, bits_per_byte for
    data. `cut` and `loop` are for the reader's eye and prove nothing. ["unexplained"] when nothing is proved.

    >>> causes(Evidence(longer=False, cut=True, bits_per_byte=4.2), Limits(tokens_per_unit=2.0, bits_per_byte=3.0))
    ['data']
    """
    # exercise 7.8: first what the experiments proved; only if that is nothing, what was measured
    proved = []
    if evidence.longer or evidence.shorter:
        proved.append("length")
    if evidence.plain:
        proved.append("tokenizer")
    if evidence.otherwise:
        proved.append("decoding")
    if proved:
        return proved
    measured = []
    if evidence.tokens_per_unit > limits.tokens_per_unit:
        measured.append("tokenizer")
    if evidence.bits_per_byte > limits.bits_per_byte:
        measured.append("data")
    return measured or ["unexplained"]
    # end


Measure = Callable[[str], tuple[float, float]]  # a prompt -> tokens per unit, bits per byte


def measurer(model: Transformer, tokenizer: Tokenizer) -> Measure:
    """A function that measures a prompt: into how many tokens its words are cut, and how it surprises the model."""

    def measure(text: str) -> tuple[float, float]:
        score = score_text(model, tokenizer, text)
        tokens = len(tokenizer.encode(text)) / max(1, len(units(text)))
        return tokens, score.bits / score.n_bytes if score.n_bytes else 0.0

    return measure


def find_limits(passing: Sequence[Result], measure: Measure) -> Limits:
    """The values that 95% of the passing cases' prompts stay below; infinite when fewer than MIN_PASSING pass.

    One easy prompt says nothing on what the model can take, and would make every other one look strange.
    """
    if len(passing) < MIN_PASSING:
        return Limits(math.inf, math.inf)
    measured = np.array([measure(result.case.text) for result in passing])  # [cases, 2]
    tokens_per_unit, surprise = np.quantile(measured, QUANTILE, axis=0)
    return Limits(float(tokens_per_unit), float(surprise))


def investigate(result: Result, respond: Respond, measure: Measure) -> Evidence:
    """Run the experiments on a failed case, and measure it."""
    case, answer = result.case, result.answer

    def passes(changed: Case) -> bool:
        return judge(changed, respond(changed)).passed

    def rewritten(text: str | None) -> bool | None:
        return None if text is None else passes(with_text(case, text))

    cut = answer.finish == "length"
    longer = replace(case, max_tokens=min(MAX_TOKENS, LONGER * case.max_tokens))
    if case.temperature > 0:
        otherwise = passes(replace(case, temperature=0.0))
    else:
        draws = [passes(replace(case, temperature=TEMPERATURE, seed=seed)) for seed in range(DRAWS)]
        otherwise = sum(draws) > DRAWS / 2
    tokens_per_unit, surprise = measure(case.text)
    return Evidence(
        longer=passes(longer) if cut else None,
        shorter=rewritten(shortened(case.text)),
        plain=rewritten(plain(case.text)),
        otherwise=otherwise,
        cut=cut,
        loop=repetition_share(answer.text),
        tokens_per_unit=tokens_per_unit,
        bits_per_byte=surprise,
    )


def attribute(
    results: Sequence[Result], respond: Respond, measure: Measure, limits: Limits | None = None, progress: bool = False
) -> list[Attribution]:
    """Find the causes of every failed case. limits: by default from the cases among the results that pass."""
    limits = limits or find_limits([result for result in results if result.passed], measure)
    failed = [result for result in results if not result.passed]
    found = []
    with progress_bar("experiments", len(failed), progress) as step:
        for result in failed:
            evidence = investigate(result, respond, measure)
            found.append(Attribution(result, evidence, causes(evidence, limits)))
            step()
    return found


def with_text(case: Case, text: str) -> Case:
    """The case with another text from its user."""
    if case.prompt is not None:
        return replace(case, prompt=text)
    return replace(case, messages=(*case.messages[:-1], {"role": "user", "content": text}))


def shortened(text: str) -> str | None:
    """The first and the last paragraph, or of a long text without paragraphs sentence; None when nothing is between."""
    parts, between = [part for part in text.split("\n\n") if part.strip()], "\n\n"
    if len(parts) < 3 and len(text) > LONG_PROMPT:
        parts, between = re.split(r"(?<=[.!?\n])\s+", text.strip()), " "
    return f"{parts[0]}{between}{parts[-1]}" if len(parts) > 2 else None


def plain(text: str) -> str | None:
    """The text with compatibility forms (full-width letters, ligatures) replaced, and invisible characters removed.

    None when there is nothing to change.

    >>> plain("\\uff30aris"), plain("Paris")
    ('Paris', None)
    """
    folded = unicodedata.normalize("NFKC", text)
    folded = "".join(c for c in folded if unicodedata.category(c) != "Cf")  # zero-width spaces, joiners, soft hyphens
    return folded if folded != text and folded.strip() else None
