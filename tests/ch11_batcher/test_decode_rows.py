"""Exercise 11.2: judged by a script of logits, and by rows generated one at a time."""

import itertools

import torch
from torch import Tensor

from chapters.ch11_batcher import static_batch
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from shared.inference.sampling import SamplingParams, sample

VOCAB = 10


class Script:
    """A model that says what it is told: row k's next token is words[k][number of the step]."""

    def __init__(self, words: list[list[int]]) -> None:
        self.words, self.fed = words, []

    def logits(self) -> Tensor:
        step = len(self.fed)
        return torch.stack(
            [torch.eye(VOCAB)[words[min(step, len(words) - 1)]] for words in self.words]
        )  # [batch, vocab]

    def step(self, tokens: list[int]) -> Tensor:
        expect_equal(
            len(tokens),
            len(self.words),
            because="step takes a token for every row, ended or not: the caches have a place for each row, and a "
            "shorter list would put tokens into other rows' places",
        )
        self.fed.append(list(tokens))
        expect(len(self.fed) <= 30, because="it doesn't end: rows must end at their limit or with an end token")
        return self.logits()


def row(prompt: list[int], new: int, **params) -> static_batch.Row:
    return static_batch.Row(list(prompt), SamplingParams(max_tokens=new, **params), len(prompt) + new)


def decode(rows: list[static_batch.Row], script: Script, eos: set[int] = frozenset()) -> list[tuple[int, int]]:
    lengths = [len(one.token_ids) for one in rows]

    def step(tokens: list[int]) -> Tensor:
        expect(
            script.fed or all(len(one.token_ids) == n + 1 for one, n in zip(rows, lengths, strict=True)),
            because="after the first tokens each row's token_ids should be longer by one: append what was sampled, for "
            "their number tells the next position and the row's end",
        )
        return script.step(tokens)

    found = static_batch.decode_rows(rows, script.logits(), step, eos)
    expect(found is not None, because=NO_RESULT + ". decode_rows is a generator: it yields (row, token)")
    got = []
    for pair in itertools.islice(found, 100):
        expect(
            isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, int) for part in pair),
            because=f"it yields (row, token): two whole numbers, the row's index and the token's id; not {pair!r}",
        )
        expect(pair[0] in range(len(rows)), because=f"there is no row {pair[0]}: the row comes first, then the token")
        got.append(pair)
    return got


@exercise("11.2")
def test_rows_end_at_their_own_limit():
    script = Script([[1, 2, 3, 4], [5, 6, 7, 8]])
    got = decode([row([9], 2), row([9, 9], 4)], script)
    second = [token for k, token in got if k == 1]
    expect(
        second[:2] != [5, 5],
        because="each step returns the next logits, [batch, vocab]: these tokens were all sampled from the first ones",
    )
    expect(
        len(second) >= 4,
        because="the longer row was cut off: the batch goes on until its last row has ended",
    )
    expect(
        second == [5, 6, 7, 8],
        because="one row's end ended another row, or cost it a token. Don't change a list while going through it",
    )
    expect_equal(
        got,
        [(0, 1), (1, 5), (0, 2), (1, 6), (1, 7), (1, 8)],
        because="(row, token), in the order in which they are chosen. A row that has ended keeps its place, but "
        "nothing of it is yielded any more",
    )


@exercise("11.2")
def test_each_row_keeps_its_place():
    script = Script([[1, 2, 3, 4], [5, 6, 7, 8], [9, 8, 7, 6]])
    rows = [row([9], 1), row([9, 9], 4), row([9], 4)]
    decode(rows, script)
    expect_equal(
        [fed[1:] for fed in script.fed[:3]],
        [[5, 9], [6, 8], [7, 7]],
        because="what the steps were fed for rows 1 and 2, after row 0 has ended: each row's latest token, at the "
        "row's own place. An ended row keeps its place, and what is fed there doesn't matter",
    )
    expect_equal(
        [one.token_ids for one in rows],
        [[9, 1], [9, 9, 5, 6, 7, 8], [9, 9, 8, 7, 6]],
        because="token_ids are the prompt and the answer: a row that has ended doesn't grow",
    )


@exercise("11.2")
def test_no_step_for_nobody():
    script = Script([[1, 2, 3], [4, 5]])
    decode([row([9], 3), row([9], 2)], script)
    expect_equal(
        len(script.fed),
        2,
        because="three tokens take two steps, for the first logits come with the prompts: when the last row has ended, "
        "no step follows",
    )
    expect_equal(script.fed[0], [1, 4], because="a step is fed each row's latest token, in the rows' order")


@exercise("11.2")
def test_end_tokens():
    script = Script([[1, 0, 3], [4, 5, 6], [7, 0, 8]])
    got = decode([row([9], 3), row([9], 3), row([9], 3, ignore_eos=True)], script, eos={0})
    expect(
        (0, 0) in got,
        because="the end token must be yielded, as the row's last: it is part of the answer, and whoever counts tokens "
        "counts "
        "it",
    )
    expect(
        [token for k, token in got if k == 0] == [1, 0],
        because="a row ends with an end token, and nothing of it may follow",
    )
    expect(
        [token for k, token in got if k == 1] == [4, 5, 6],
        because="one row's end token ended another row, or cost it a token. Don't change a list while going through it",
    )
    expect_equal(
        [token for k, token in got if k == 2],
        [7, 0, 8],
        because="a row whose params say ignore_eos goes on after an end token; each row has its own params",
    )


@exercise("11.2")
def test_everybody_ends_at_once():
    script = Script([[0], [0], [0]])
    got = decode([row([9], 5) for _ in range(3)], script, eos={0})
    expect_equal(
        got,
        [(0, 0), (1, 0), (2, 0)],
        because="three rows that end with their first token: each has yielded it. Removing from a list while going "
        "through it skips the next one",
    )


@exercise("11.2")
def test_a_row_draws_as_it_does_alone():
    generator = torch.Generator().manual_seed(0)
    steps = [torch.randn(2, VOCAB, generator=generator) for _ in range(6)]
    prompts, params = ([1, 2, 3, 4, 5], [6]), [SamplingParams(max_tokens=6, temperature=1.5, seed=s) for s in (3, 4)]
    calls = iter(steps[1:])
    rows = [static_batch.Row(list(p), one, len(p) + 6) for p, one in zip(prompts, params, strict=True)]
    got = list(static_batch.decode_rows(rows, steps[0], lambda tokens: next(calls), frozenset()))
    for k in range(2):
        ids = list(prompts[k])
        for logits in steps:
            ids.append(sample(logits[k], params[k], len(ids), ids))
        expect_equal(
            [token for row_index, token in got if row_index == k],
            ids[len(prompts[k]) :],
            because="the position of a draw is the row's own length so far, not the step's number or the column: only "
            "then a "
            "request draws the same in a batch as alone. Each row with its own params",
        )


@exercise("11.2")
def test_the_penalty_sees_the_answer():
    flat = torch.tensor([[1.0, 0.9, 0.8]])
    rows = [static_batch.Row([2], SamplingParams(max_tokens=3, repetition_penalty=2.0), 4)]
    got = list(static_batch.decode_rows(rows, flat, lambda tokens: flat, frozenset()))
    expect_equal(
        [token for _, token in got],
        [0, 1, 0],
        because="a repetition penalty looks at prompt and answer so far: hand the row's token_ids to sample, and "
        "append "
        "each new token to them",
    )


@exercise("11.2")
def test_tokens_come_as_they_are_chosen():
    script = Script([[1, 2, 3], [4, 5, 6]])
    found = static_batch.decode_rows([row([9], 3), row([9], 3)], script.logits(), script.step, frozenset())
    next(found)
    next(found)
    expect_equal(
        len(script.fed),
        0,
        because="yield each token as soon as it is chosen, before the next step: somebody reads along",
    )
