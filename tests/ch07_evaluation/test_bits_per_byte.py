"""Exercises 7.3 and 7.4, what is counted for each byte: judged by numbers that can be worked out by hand."""

import math

import torch

from chapters.ch07_evaluation import perplexity
from chapters.judge import exercise, expect, expect_close, expect_parts

# 7.3 bits_per_byte


@exercise("7.3")
def test_one_in_256():
    expect_close(
        perplexity.bits_per_byte(math.log(256), 1),
        8.0,
        because="a byte that is one of 256 equally likely ones takes 8 bits, which are ln 256 = 5.545 nats: divide "
        "by ln 2; 5.545 means they were taken for bits, 3.84 that they were multiplied",
    )


@exercise("7.3")
def test_shared_out():
    expect_close(
        perplexity.bits_per_byte(300.0, 1000),
        0.4328085,
        because="300 nats are 432.8 bits; shared out over 1000 bytes that is 0.433",
    )
    try:
        got = perplexity.bits_per_byte(3000.0, 1000)
    except OverflowError:
        got = math.inf
    expect_close(
        got,
        4.328085,
        because="3000 nats are 4328 bits. exp(3000) is more than a float can hold: stay with logarithms, and divide",
    )
    expect_close(perplexity.bits_per_byte(0.0, 10), 0.0, because="a text that was certain costs nothing")


# 7.4 corpus_score


def scored(text: str, *nats: float):
    return perplexity.DocumentScore(text, torch.tensor(nats))


def score_of(documents: list):
    got = perplexity.corpus_score(documents)
    expect_parts(got, ("perplexity", "bits_per_byte"), because="both are returned together, in a CorpusScore(...)")
    expect(
        isinstance(got, perplexity.CorpusScore),
        because=f"return a CorpusScore(perplexity, bits_per_byte), not a plain {type(got).__name__}: whoever calls "
        "this asks for the two by name",
    )
    for name, value in zip(got._fields, got, strict=True):
        expect(
            isinstance(value, float),
            because=f"{name} is a {type(value).__name__} and should be a float (`float(...)`): a report is written as "
            "JSON, which knows no tensors",
        )
    return got


# Eight bytes, four tokens, four nats: by hand.
BY_HAND = (("abc", 4.0), ("defgh", 0.0, 0.0, 0.0))


@exercise("7.4")
def test_every_token_counts_once():
    expect_close(
        score_of([scored(*document) for document in BY_HAND]).perplexity,
        math.exp(1.0),
        because="4 nats over 4 tokens are 1 nat a token, and a perplexity of e = 2.718. 7.39 is the mean of the two "
        "documents' means, in which a token of a short document counts more; 27.8 is the mean of their perplexities; "
        "1.95 comes from padding that was counted; 1.65 is per byte, and 2 is 2 ** 1, where nats go with exp",
        rtol=1e-5,
    )


@exercise("7.4")
def test_every_byte_counts_once():
    expect_close(
        score_of([scored(*document) for document in BY_HAND]).bits_per_byte,
        4 / math.log(2) / 8,
        because="4 nats are 5.77 bits; over 8 bytes that is 0.721. 0.5 are nats, not yet divided by ln 2; 1.04 was "
        "divided by ln 2 twice (`bits_per_byte` takes nats); 0.962 is the mean of the documents' own values, in which "
        "a short document counts as much as a long one; 1.44 is per token, which depends on the tokenizer",
    )


@exercise("7.4")
def test_an_empty_document():
    got = score_of([scored(BY_HAND[0][0], *BY_HAND[0][1:]), scored(""), scored(*BY_HAND[1])])
    expect_close(
        list(got),
        [math.exp(1.0), 4 / math.log(2) / 8],
        because="a document without tokens adds nothing to any sum; NaN comes from its mean, 0 / 0",
        rtol=1e-5,
    )


@exercise("7.4")
def test_many_documents():
    generator = torch.Generator().manual_seed(0)
    nats = [torch.rand(n, generator=generator, dtype=torch.float64) * 6 for n in (3, 50, 7, 211, 1)]
    documents = [perplexity.DocumentScore("x" * (4 * len(n)), n) for n in nats]
    together = torch.cat(nats)
    got = score_of(documents)
    expect_close(
        got.perplexity,
        math.exp(float(together.mean())),
        because="it isn't what all tokens in one list give",
    )
    expect_close(
        got.bits_per_byte,
        float(together.sum()) / math.log(2) / (4 * len(together)),
        because="bits per byte are all bits of all documents over all of their bytes",
    )


@exercise("7.4")
def test_bytes_not_characters():
    expect_close(
        score_of([scored("日本語", math.log(2) * 9)]).bits_per_byte,
        1.0,
        because="these three characters are nine bytes in UTF-8, and 9 bits; 3.0 was divided by the characters",
        rtol=1e-5,
    )


@exercise("7.4")
def test_sums_in_float64():
    n = 2**21
    long, short = perplexity.DocumentScore("x" * n, torch.full((n,), 8.0)), scored("x", 1.0)
    expect_close(
        score_of([long, *[short] * 2000]).bits_per_byte,
        (8 * n + 2000) / math.log(2) / (n + 2000),
        because="a document of 16.8 million nats, and then 2000 of 1 nat, which a float32 sum of that size doesn't "
        "notice: add up in float64 (`float(...)` of each document's sum)",
        rtol=1e-6,
    )
