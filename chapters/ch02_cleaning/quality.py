# Yours to finish. Generated from shared/data/quality.py (version 363b289427c3).
"""Quality filters: each looks at a text and says what is wrong with it, or None.

The repetition rules and their limits are Gopher's (Rae et al. 2021, "Scaling Language Models: Methods, Analysis &
Insights from Training Gopher", table A1). They were set for web pages: measure before you use them on other text.
"""

from chapters import Todo
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RepetitionLimits:
    """Shares above which a text counts as repetitive. The keys of the last two are the n of their n-grams."""

    duplicate_lines: float = 0.30
    duplicate_line_chars: float = 0.20
    duplicate_paragraphs: float = 0.30
    duplicate_paragraph_chars: float = 0.20
    top_ngram: dict[int, float] = field(default_factory=lambda: {2: 0.20, 3: 0.18, 4: 0.16})
    duplicate_ngrams: dict[int, float] = field(
        default_factory=lambda: {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    )


GOPHER = RepetitionLimits()
# Documentation repeats itself: lists of parameters, tables, doctests. Half of a text may.
DOCUMENTATION = RepetitionLimits(
    0.5, 0.5, 0.5, 0.5, top_ngram=dict.fromkeys((2, 3, 4), 0.5), duplicate_ngrams=dict.fromkeys(range(5, 11), 0.5)
)


def length_problem(text: str, min_words: int = 10, max_words: int = 100_000) -> str | None:
    """Too short to teach a model anything, or so long that it is a list or a dump.  Words are split at white space."""
    words = len(text.split())
    if words < min_words:
        return f"too short: {words} words, at least {min_words} are asked for"
    return f"too long: {words} words, at most {max_words} are allowed" if words > max_words else None


def charset_problem(text: str, min_letters: float = 0.5, max_replaced: float = 0.005) -> str | None:
    """Too few letters among what isn't white space (tables, ASCII art, dumps), or too many U+FFFD (wrongly decoded)."""
    characters = "".join(text.split())
    letters, replaced = sum(map(str.isalpha, characters)), characters.count("\ufffd")
    if letters < min_letters * len(characters):
        return (
            f"few letters: {letters / len(characters):.0%} of the characters, at least {min_letters:.0%} are asked for"
        )
    return f"wrongly decoded: {replaced} times U+FFFD" if replaced > max_replaced * len(characters) else None


def repetition_problem(text: str, limits: RepetitionLimits = GOPHER) -> str | None:
    """The first of the repetition rules that the text breaks."""
    for unit, pieces, of_count, of_chars in (
        ("paragraphs", text.split("\n\n"), limits.duplicate_paragraphs, limits.duplicate_paragraph_chars),
        ("lines", text.split("\n"), limits.duplicate_lines, limits.duplicate_line_chars),
    ):
        count, chars = duplicate_fractions([piece.strip() for piece in pieces if piece.strip()])
        if count > of_count:
            return f"repeated {unit}: {count:.0%} of them, at most {of_count:.0%} are allowed"
        if chars > of_chars:
            return f"repeated {unit}: {chars:.0%} of the characters, at most {of_chars:.0%} are allowed"
    words = text.split()
    for n, limit in limits.top_ngram.items():
        if (share := top_ngram_fraction(words, n)) > limit:
            return f"one {n}-gram: {share:.0%} of the characters, at most {limit:.0%} are allowed"
    for n, limit in limits.duplicate_ngrams.items():
        if (share := duplicate_ngram_fraction(words, n)) > limit:
            return f"repeated {n}-grams: {share:.0%} of the characters, at most {limit:.0%} are allowed"
    return None


def perplexity_problem(text: str, perplexity: Callable[[str], float], limit: float) -> str | None:
    """Too surprising for a language model: word salad, another language, noise.

    perplexity: text -> exp of the mean loss for each token. Chapter 7 makes one of the model; until then any function.
    """
    value = perplexity(text)
    return f"perplexity: {value:.0f}, at most {limit:.0f} is allowed" if not value <= limit else None  # NaN fails too


def duplicate_fractions(pieces: Sequence[str]) -> tuple[float, float]:
    """The share of the pieces that repeat an earlier one, and the share of all characters that is in those.

    >>> duplicate_fractions(["a", "bbb", "a", "a"])
    (0.5, 0.3333333333333333)
    """
    seen: set[str] = set()
    count = chars = 0
    for piece in pieces:
        if piece in seen:
            count, chars = count + 1, chars + len(piece)
        seen.add(piece)
    return (count / len(pieces), chars / max(1, sum(map(len, pieces)))) if pieces else (0.0, 0.0)


def top_ngram_fraction(words: Sequence[str], n: int) -> float:
    """The share of the words' characters that the most frequent n-gram covers.  0 if no n-gram comes twice.

    Of equally frequent ones the longest counts. Overlapping occurrences are counted each, so that it may exceed 1.
    """
    counts = Counter(zip(*(words[i:] for i in range(n)), strict=False))
    top = max(counts.values(), default=0)
    if top < 2:
        return 0.0
    longest = max(sum(map(len, gram)) for gram, count in counts.items() if count == top)
    return top * longest / max(1, sum(map(len, words)))


def duplicate_ngram_fraction(words: Sequence[str], n: int) -> float:
    """The share of the words' characters inside n-grams that were there before.  From 0 to 1.

    An n-gram's first occurrence is not a repetition. A word in two repeated n-grams that overlap counts once.  0 for no
    words.

    >>> duplicate_ngram_fraction("to be or not to be".split(), 2)  # the last "to be": 4 of 13 letters
    0.3076923076923077
    """
    # exercise 2.7: mark the words of every n-gram that was there before, then weigh the marked words by their length
    raise Todo("2.7")
    # end
