"""Exercise 7.2: judged by torch in float64, and by losses that can be worked out by hand."""

import math

import torch
import torch.nn.functional as F

from chapters import Todo
from chapters.ch07_evaluation import perplexity
from chapters.judge import exercise, expect, expect_close, expect_equal


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
