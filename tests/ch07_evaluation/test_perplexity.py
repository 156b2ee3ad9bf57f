"""Exercises 7.1 to 7.4: judged by torch in float64, by counting, and by numbers that can be worked out by hand."""

import math

import torch
import torch.nn.functional as F

from chapters import Todo
from chapters.ch07_evaluation import perplexity
from chapters.judge import exercise, expect, expect_close, expect_equal, expect_parts

# 7.1 windows


def windows(length: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    got = perplexity.windows(length, window, stride)
    expect(got is not None, because="windows gives None: does it return its list?")
    got = list(got)
    for w in got:
        expect_parts(w, ("begin", "first", "end"), because="each item of the list is a Window(begin, first, end)")
    return [tuple(w) for w in got]


@exercise("7.1")
def test_first_window():
    got = windows(length=10, window=6, stride=3)
    expect(len(got) > 0, because="there are no windows: a text of ten tokens needs some")
    expect_equal(
        got[0],
        (0, 1, 6),
        because="the first window reads tokens 0 to 5 and predicts from token 1 on: nothing stands before token 0, and "
        "`end` is the first token that is no longer counted",
    )


@exercise("7.1")
def test_each_token_once():
    for length, window, stride in ((10, 6, 3), (100, 16, 4), (33, 8, 7), (5, 4, 1), (1000, 64, 32), (65, 64, 32)):
        predicted = [i for _, first, end in windows(length, window, stride) for i in range(first, end)]
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
def test_no_window_predicts_nothing():
    for length, window, stride in ((20, 8, 4), (10, 6, 3), (6, 6, 3), (12, 6, 3)):
        for begin, first, end in windows(length, window, stride):
            expect(
                first < end,
                because=f"of {length} tokens, the window ({begin}, {first}, {end}) predicts nothing: stop once the end "
                "of the text is reached",
            )


@exercise("7.1")
def test_enough_context():
    for length, window, stride in ((10, 6, 3), (100, 16, 4), (33, 8, 7), (1000, 64, 32)):
        for begin, first, end in windows(length, window, stride):
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
        windows(length=10, window=6, stride=3),
        [(0, 1, 6), (3, 6, 9), (4, 9, 10)],
        because="a window ends where its last token does, and begins `window` tokens before that: the last one of ten "
        "tokens is 4 to 10, which gives its token all the context there is room for",
    )


@exercise("7.1")
def test_short_texts():
    for length, window, stride in ((4, 6, 3), (6, 6, 3), (3, 6, 3), (2, 6, 3), (100, 1024, 512)):
        got = windows(length, window, stride)
        expect(
            len(got) > 0,
            because=f"{length} tokens and a window of {window}: there are no windows. A text that fits needs one, and "
            "so does one that is shorter by more than a stride",
        )
        expect_equal(
            got,
            [(0, 1, length)],
            because=f"{length} tokens fit in a window of {window}, so there is one, and it ends where the text does; "
            "no window begins before token 0",
        )
    expect_equal(windows(length=1, window=6, stride=3), [], because="a single token predicts nothing")


# 7.2 token_nats


def logits_and_ids(n: int = 20, vocab: int = 11, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocab, generator=generator, dtype=torch.float64) * 3
    return logits, torch.randint(vocab, (n + 1,), generator=generator)


def shape_advice(shape: tuple[int, ...]) -> str:
    """What a result of this shape, of three rows of logits and four ids, most likely comes from."""
    return {
        (): "a single number is a mean or a sum, where each token's own loss is asked for",
        (2,): "a row is missing: the logits have no row for the last token already, so nothing is cut off them",
        (3, 1): "one entry of each row was picked, and the axis it was picked along is still there: squeeze it",
        (3, 3): "an index for the rows is missing: log_probs[:, ids] picks every id from every row. One entry of each "
        "row is wanted: gather, or an arange beside the ids",
        (3, 4): "these are all entries of each row; of each only the one for the token that came next is wanted",
    }.get(shape, "row i of the logits and ids[i + 1] give one loss, so there are as many losses as rows")


@exercise("7.2")
def test_one_loss_for_each_row():
    try:
        got = perplexity.token_nats(torch.zeros(3, 4), torch.tensor([0, 1, 2, 3]))
    except Todo:
        raise
    except (IndexError, RuntimeError, ValueError) as error:
        got = error
    expect(
        not isinstance(got, Exception),
        because=f"three rows of logits and four ids end in a {type(got).__name__} ({got}). Row i goes with ids[i + 1]: "
        "the logits have no row for the last token already, so nothing is cut off them, and of the ids only the first",
    )
    expect(got is not None, because="token_nats gives None: does it return its result?")
    expect(
        isinstance(got, torch.Tensor),
        because=f"return a tensor [n], not a {type(got).__name__}: what comes after joins the windows' losses",
    )
    shape = tuple(got.shape)
    expect(
        shape == (3,),
        because=f"three rows of logits and four ids give shape {shape}, and (3,) is wanted: {shape_advice(shape)}",
    )


@exercise("7.2")
def test_even_odds():
    got = perplexity.token_nats(torch.zeros(3, 4), torch.tensor([0, 1, 2, 3]))
    expect_close(
        got,
        [math.log(4)] * 3,
        because="among four equally likely tokens each costs ln 4 = 1.386 nats; 2 would be bits, and -1.386 has lost "
        "its sign",
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
def test_impossible_tokens():
    impossible = torch.tensor([[0.0, -math.inf], [0.0, -math.inf]])
    expect_close(
        perplexity.token_nats(impossible, torch.tensor([0, 0, 1])),
        [0.0, math.inf],
        because="a logit of minus infinity is no chance at all, and costs infinity: a bound would hide it. The token "
        "that was certain costs 0 (NaN comes from 0 times infinity: pick entries, don't multiply by zeros and ones)",
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
