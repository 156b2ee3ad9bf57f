"""Exercises 7.1 to 7.4: judged by torch in float64, by counting, and by numbers that can be worked out by hand."""

import math

import torch
import torch.nn.functional as F

from chapters.ch07_evaluation import perplexity
from chapters.judge import exercise, expect, expect_close, expect_equal

# 7.1 windows


@exercise("7.1")
def test_first_window():
    got = list(perplexity.windows(length=10, window=6, stride=3))
    expect(len(got) > 0, because="there are no windows: a text of ten tokens needs some")
    expect_equal(
        tuple(got[0]),
        (0, 1, 6),
        because="the first window reads tokens 0 to 5 and predicts from token 1 on: nothing stands before token 0",
    )


@exercise("7.1")
def test_each_token_once():
    for length, window, stride in ((10, 6, 3), (100, 16, 4), (33, 8, 7), (5, 4, 1), (1000, 64, 32), (65, 64, 32)):
        predicted = [i for _, first, end in perplexity.windows(length, window, stride) for i in range(first, end)]
        expect(
            len(predicted) == len(set(predicted)),
            because="some tokens are predicted twice: where windows overlap, only what the last window hasn't reached "
            "counts, and the rest is context",
        )
        expect_equal(
            predicted,
            list(range(1, length)),
            because="tokens 1 to length - 1 are each predicted once, in order; the end of the text may fill only a "
            "part of a stride, and it counts, too",
        )


@exercise("7.1")
def test_enough_context():
    for length, window, stride in ((10, 6, 3), (100, 16, 4), (33, 8, 7), (1000, 64, 32)):
        for begin, first, end in perplexity.windows(length, window, stride):
            expect(
                end - begin <= window,
                because=f"a window from {begin} to {end} is longer than {window} tokens; the model may not have room",
            )
            expect(
                first - begin >= (window - stride if first > 1 else 1),
                because=f"token {first} is predicted from only {first - begin} tokens; after the first window each has "
                f"at least window - stride = {window - stride} before it, so windows must overlap",
            )


@exercise("7.1")
def test_begins_as_early_as_it_may():
    expect_equal(
        [tuple(w) for w in perplexity.windows(length=10, window=6, stride=3)],
        [(0, 1, 6), (3, 6, 9), (4, 9, 10)],
        because="a window ends where its last token does, and begins `window` tokens before that: the last one of ten "
        "tokens is 4 to 10, which gives its token all the context there is room for",
    )


@exercise("7.1")
def test_short_texts():
    expect_equal(
        [tuple(w) for w in perplexity.windows(length=4, window=6, stride=3)],
        [(0, 1, 4)],
        because="a text that fits in a window needs one, and it ends where the text does",
    )
    expect_equal(list(perplexity.windows(length=1, window=6, stride=3)), [], because="a single token predicts nothing")


# 7.2 token_nats


def logits_and_ids(n: int = 20, vocab: int = 11, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocab, generator=generator, dtype=torch.float64) * 3
    return logits, torch.randint(vocab, (n + 1,), generator=generator)


@exercise("7.2")
def test_even_odds():
    got = perplexity.token_nats(torch.zeros(3, 4), torch.tensor([0, 1, 2, 3]))
    expect_close(
        got,
        [math.log(4)] * 3,
        because="among four equally likely tokens each costs ln 4 = 1.386 nats; 2 would be bits, -1.386 has lost its "
        "sign, and a single number is a mean, where each token's own loss is asked for",
    )


@exercise("7.2")
def test_row_judges_the_next_token():
    logits = torch.tensor([[0.0, 9.0, 0.0], [0.0, 0.0, 9.0]])  # after token 0 comes 1, after 1 comes 2
    expect_close(
        perplexity.token_nats(logits, torch.tensor([0, 1, 2])),
        [2.468e-4, 2.468e-4],
        because="row i of the logits is an opinion on ids[i + 1]; held against ids[i] the model is asked for what it "
        "has just read",
        rtol=1e-2,
    )


@exercise("7.2")
def test_equals_torch():
    logits, ids = logits_and_ids()
    expect_close(
        perplexity.token_nats(logits, ids),
        F.cross_entropy(logits, ids[1:], reduction="none"),
        because="torch's cross entropy of row i and ids[i + 1] is something else",
    )


@exercise("7.2")
def test_far_fetched_tokens():
    logits = torch.tensor([[0.0, 200.0], [0.0, 1000.0]])
    expect_close(
        perplexity.token_nats(logits, torch.tensor([0, 0, 0])),
        [200.0, 1000.0],
        because="softmax first and the logarithm afterwards: the probability of an unlikely token underflows to 0, and "
        "its loss is infinite; log_softmax never leaves the logarithms",
    )


@exercise("7.2")
def test_low_precision():
    logits, ids = logits_and_ids(vocab=300)
    for dtype in (torch.bfloat16, torch.float16):
        got = perplexity.token_nats(logits.to(dtype), ids)
        want = F.cross_entropy(logits.to(dtype).double(), ids[1:], reduction="none")
        expect_close(
            got.double(),
            want,
            because=f"with {dtype} logits the logarithms must be taken in float32; {dtype} has too few digits for a "
            "sum over a vocabulary",
            rtol=1e-4,
        )
    expect_equal(
        perplexity.token_nats(logits, ids).dtype, torch.float64, because="float64 logits must not lose their precision"
    )


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
    expect_close(perplexity.bits_per_byte(0.0, 10), 0.0, because="a text that was certain costs nothing")


# 7.4 corpus_score


def scored(text: str, *nats: float):
    return perplexity.DocumentScore(text, torch.tensor(nats))


@exercise("7.4")
def test_every_token_counts_once():
    documents = [scored("a", 4.0), scored("bcd", 0.0, 0.0, 0.0)]
    expect_close(
        perplexity.corpus_score(documents)[0],
        math.exp(1.0),
        because="4 nats over 4 tokens are 1 nat a token, and a perplexity of e = 2.718. 7.39 is the mean of the two "
        "documents' means, in which a token of a short document counts more; 27.8 is the mean of their perplexities; "
        "1.95 comes from padding that was counted",
        rtol=1e-5,
    )


@exercise("7.4")
def test_many_documents():
    generator = torch.Generator().manual_seed(0)
    nats = [torch.rand(n, generator=generator, dtype=torch.float64) * 6 for n in (3, 50, 7, 211, 1)]
    documents = [perplexity.DocumentScore("x" * (4 * len(n)), n) for n in nats]
    together = torch.cat(nats)
    perplexity_, bits = perplexity.corpus_score(documents)
    expect_close(
        perplexity_,
        math.exp(float(together.mean())),
        because="it isn't what all tokens in one list give",
    )
    expect_close(
        bits,
        float(together.sum()) / math.log(2) / (4 * len(together)),
        because="bits per byte are all bits of all documents over all of their bytes; over the number of tokens it "
        "would be bits per token, which depends on the tokenizer",
    )


@exercise("7.4")
def test_bytes_not_characters():
    bits = perplexity.corpus_score([scored("日本語", math.log(2) * 9)])[1]
    expect_close(
        bits,
        1.0,
        because="these three characters are nine bytes in UTF-8, and 9 bits; 3.0 was divided by the characters",
        rtol=1e-5,
    )


@exercise("7.4")
def test_sums_are_exact():
    long = perplexity.DocumentScore("x" * 2_000_000, torch.full((2_000_000,), 0.1))
    expect_close(
        perplexity.corpus_score([long])[0],
        math.exp(float(torch.tensor(0.1))),
        because="two million equal losses have their own mean; sum in float64",
        rtol=1e-6,
    )
