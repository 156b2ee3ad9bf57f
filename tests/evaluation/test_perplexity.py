"""Token losses, against torch in float64, brute force, and models whose perplexity is known exactly."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shared.data.quality import perplexity_problem
from shared.data.tokenizer import Tokenizer
from shared.evaluation import perplexity as module
from shared.evaluation.perplexity import (
    DocumentScore,
    beginning_id,
    bits_per_byte,
    corpus_score,
    perplexity,
    perplexity_of_text,
    score_documents,
    score_text,
    token_losses,
    token_nats,
    windows,
)
from tests.tiny import TINY, tiny_model

BYTES = {i: bytes([i]) for i in range(256)}
END = "<|endoftext|>"


class Bigrams(nn.Module):
    """A model that is a table: the logits of the next token given this one. It notes how it was asked."""

    def __init__(self, probabilities: torch.Tensor, context: int = 10_000) -> None:
        super().__init__()
        self.logits = nn.Parameter(probabilities.double().log(), requires_grad=False)
        self.config = type("Config", (), {"max_position_embeddings": context, "num_hidden_layers": 2})()
        self.contexts: list[int] = []  # how many tokens each row of logits could see
        self.rows: list[int] = []  # how many rows each call gave

    def forward(self, ids, caches=None, last_only=False):
        before = caches[0].length if caches else 0
        for cache in caches or []:
            cache.update(ids[:, None, :, None].float(), ids[:, None, :, None].float())
        logits = self.logits[ids][:, -1:] if last_only else self.logits[ids]
        self.rows.append(logits.shape[1])
        if not last_only:
            self.contexts += range(before + 1, before + ids.shape[1] + 1)
        return logits


def random_ids(length: int, vocab: int = 97, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, (length,), generator=torch.Generator().manual_seed(seed))


def test_one_window_equals_torch_in_float64():
    model, ids = tiny_model(), random_ids(60)
    want = F.cross_entropy(model(ids[None])[0, :-1], ids[1:], reduction="none")
    got = token_losses(model, ids)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    assert perplexity(model, ids) == pytest.approx(math.exp(float(want.mean())), rel=1e-9)


@pytest.mark.parametrize(("window", "stride"), [(16, 4), (16, 15), (9, 1), (2, 1), (40, 20)])
def test_sliding_equals_one_forward_pass_a_token(window, stride, monkeypatch):
    """Each token on its own: its window ends `stride` steps after the first one, and begins `window` before that."""
    monkeypatch.setattr(module, "PIECE", 3)
    model, ids = tiny_model(), random_ids(50)
    want = []
    for i in range(1, 50):
        steps = max(0, math.ceil((i + 1 - window) / stride))
        end = min(window + steps * stride, 50)
        logits = model(ids[None, max(0, end - window) : i])[0, -1]
        want.append(F.cross_entropy(logits, ids[i]))
    torch.testing.assert_close(token_losses(model, ids, window, stride), torch.stack(want), rtol=1e-9, atol=1e-9)


def test_bigrams_by_hand():
    """After 0 comes 1 (one half), after 1 comes 0 (one eighth): a pair of tokens has a chance of 1 in 16."""
    table = torch.tensor([[0.25, 0.5, 0.25], [0.125, 0.375, 0.5], [1.0, 0.0, 0.0]])
    ids = torch.tensor([0, 1] * 100 + [0])
    model = Bigrams(table)
    assert perplexity(model, ids, window=32, stride=8) == pytest.approx(4.0, rel=1e-12)  # the root of 16
    assert float(token_losses(model, torch.tensor([2, 1]))) == math.inf  # said to be impossible


def test_context_and_memory_are_bounded():
    model = Bigrams(torch.full((5, 5), 0.2))
    losses = token_losses(model, random_ids(5000, vocab=5), window=512, stride=128)
    assert len(losses) == len(model.contexts) == 4999  # each once
    assert model.contexts[:511] == list(range(1, 512))
    assert min(model.contexts[511:]) >= 512 - 128
    assert max(model.contexts) <= 511
    assert max(model.rows) <= 128


def test_no_window_is_longer_than_the_model_s_context():
    model = Bigrams(torch.full((5, 5), 0.2), context=64)
    token_losses(model, random_ids(300, vocab=5))
    assert max(model.contexts) == 63
    assert min(model.contexts[63:]) >= 32


@pytest.mark.parametrize("ids", [torch.tensor([], dtype=torch.int64), torch.tensor([3]), torch.tensor([[1, 2, 3]])])
def test_nothing_to_predict(ids):
    with pytest.raises(ValueError, match="at least two tokens"):
        token_losses(tiny_model(), ids)


@pytest.mark.parametrize("stride", [0, -1, 6, 7])
def test_bad_strides(stride):
    with pytest.raises(ValueError, match="stride must be"):
        windows(10, 6, stride)


@pytest.mark.parametrize(("length", "window", "stride"), [(2, 6, 3), (3, 6, 3), (6, 6, 5), (100, 1024, 512)])
def test_a_text_that_fits_gets_one_window(length, window, stride):
    assert windows(length, window, stride) == [(0, 1, length)]


def test_a_token_without_a_chance():
    impossible = torch.tensor([[0.0, -math.inf], [0.0, -math.inf]])
    assert token_nats(impossible, torch.tensor([0, 0, 1])).tolist() == [0.0, math.inf]


def test_scores_are_floats_and_empty_documents_add_nothing():
    documents = [DocumentScore("", torch.empty(0)), DocumentScore("abcd", torch.full((2,), math.log(4)))]
    score = corpus_score(documents)
    assert json.loads(json.dumps(score._asdict())) == pytest.approx({"perplexity": 4.0, "bits_per_byte": 1.0})


def test_bits_per_byte_does_not_depend_on_the_tokenizer():
    """Two models that know nothing, one of bytes and one of pairs of bytes: perplexities of 256 and 65,536, and both
    need 8 bits for a byte. Chance is spread evenly over all tokens but the special one."""
    end = 256
    one = Tokenizer(BYTES | {end: END.encode()}, [], [END])
    pairs = [(b"a", b"b"), (b"b", b"a")]
    two = Tokenizer(BYTES | {256: b"ab", 257: b"ba", 258: END.encode()}, pairs, [END])
    text = "ab" * 40
    blind = torch.zeros(257, 257)
    blind[:, :256] = 1 / 256
    blind_pairs = torch.zeros(259, 259)
    blind_pairs[:, 256] = 1 / 65536  # this text is made of one pair only; what the others get doesn't matter
    blind_pairs[:, 0] = 1 - 1 / 65536
    scores = [score_text(Bigrams(blind), one, text), score_text(Bigrams(blind_pairs), two, text)]
    assert [len(score.nats) for score in scores] == [80, 40]
    assert [corpus_score([s]).perplexity for s in scores] == pytest.approx([256.0, 65536.0])
    assert [corpus_score([s]).bits_per_byte for s in scores] == pytest.approx([8.0, 8.0])


def test_a_document_begins_with_its_beginning_token():
    tokenizer = Tokenizer(BYTES | {256: b"<s>", 257: END.encode()}, [], ["<s>", END])
    assert beginning_id(tokenizer) == 257
    table = torch.full((258, 258), 1 / 258)
    table[257] = 0.5 / 257
    table[257, ord("x")] = 0.5
    assert float(score_text(Bigrams(table), tokenizer, "x").nats[0]) == pytest.approx(math.log(2), rel=1e-6)
    with pytest.raises(ValueError, match="to begin a document with"):
        beginning_id(Tokenizer(BYTES, []))


def test_only_what_was_predicted_counts():
    """A byte that the vocabulary lacks is dropped by the tokenizer: it costs nothing, and it isn't counted."""
    vocab = {i: token for i, token in BYTES.items() if i != 1} | {1: END.encode()}
    tokenizer = Tokenizer(vocab, [], [END])
    score = score_text(Bigrams(torch.full((256, 256), 1 / 256)), tokenizer, "a\x01b")
    assert (score.text, score.n_bytes, len(score.nats)) == ("ab", 2, 2)
    assert score.bits == pytest.approx(16.0)


def test_max_bytes_leaves_no_half_character():
    tokenizer = Tokenizer(BYTES | {256: END.encode()}, [], [END])
    model = Bigrams(torch.full((257, 257), 1 / 257))
    assert score_text(model, tokenizer, "aé" * 5, max_bytes=5).text == "aéa"
    assert [s.text for s in score_documents(model, tokenizer, ["abc", "def"], max_bytes=2)] == ["ab", "de"]


def test_nothing_scored():
    with pytest.raises(ValueError, match="nothing to score"):
        corpus_score([DocumentScore("", torch.empty(0))])
    with pytest.raises(ValueError, match="empty"):
        bits_per_byte(1.0, 0)


def test_the_filter_of_chapter_2():
    tokenizer = Tokenizer(BYTES | {256: END.encode()}, [], [END])
    table = torch.full((257, 257), 1e-4)
    table[:, ord("a")] = 1 - 256e-4
    measure = perplexity_of_text(Bigrams(table), tokenizer)
    assert measure("aaaa") == pytest.approx(1 / 0.9744, rel=1e-6)
    assert measure("zzzz") == pytest.approx(1e4, rel=1e-6)
    assert measure("") == math.inf
    assert perplexity_problem("aaaa", measure, limit=100) is None
    assert perplexity_problem("zzzz", measure, limit=100) == "perplexity: 10000, at most 100 is allowed"
    assert perplexity_problem("", measure, limit=100) is not None


@pytest.mark.real
def test_the_real_model_knows_english(real_model, tokenizer):
    text = "The function returns a list of strings, one for each line of the file."
    shuffled = "of the one function, strings list line returns a The for file. of each"
    measure = perplexity_of_text(real_model, tokenizer)
    assert measure(text) < measure(shuffled) / 3
    assert 5 < measure(text) < 100


@pytest.mark.gpu
def test_on_a_gpu():
    ids = random_ids(100)
    want = token_losses(tiny_model(), ids, 32, 8)
    got = token_losses(tiny_model().cuda(), ids, 32, 8)
    assert got.device.type == "cpu"
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_tiny_config_is_what_the_tests_assume():
    assert TINY.max_position_embeddings == 256
