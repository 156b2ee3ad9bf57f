"""Perplexity: how surprised a model is by a text, for each token and for each byte.

Losses are in nats (natural logarithms) until the last step. A document is scored after a beginning token, so that its
first token is predicted, too, and every byte of it counts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shared.data.tokenizer import Tokenizer
from shared.measure.progress import progress_bar
from shared.model.transformer import Transformer

WINDOW = 1024  # tokens
PIECE = 128  # tokens whose logits are in memory at a time: 25 MB with a vocabulary of 49,152
BEGINNINGS = ("<|endoftext|>", "<|begin_of_text|>", "<s>", "<bos>", "<|im_start|>")


class Window(NamedTuple):
    """The model reads tokens from `begin`, and its losses count from `first` up to, but without, `end`."""

    begin: int
    first: int
    end: int


def windows(length: int, window: int, stride: int) -> list[Window]:
    """Where a window that moves on by `stride` stands in a text. A text that fits gets one; a single token gets none.

    Every token but the very first is predicted once. No window holds more than `window` tokens; the first begins at 0,
    and each later one ends `stride` tokens after the one before it (the last where the text ends), and begins as early
    as it may. So a token has at least window - stride tokens before it, or all there are.
    Raises ValueError unless 1 <= stride < window.

    >>> windows(length=10, window=6, stride=3)
    [Window(begin=0, first=1, end=6), Window(begin=3, first=6, end=9), Window(begin=4, first=9, end=10)]
    """
    if not 1 <= stride < window:
        raise ValueError(f"stride must be at least 1 and less than the window of {window} tokens, not {stride}")
    # exercise 7.1: the first window predicts from token 1; each later one predicts from where the last one ended
    found = []
    first, end = 1, min(window, length)
    while first < end:
        found.append(Window(max(0, end - window), first, end))
        first, end = end, min(end + stride, length)
    return found
    # end


def token_nats(logits: Tensor, ids: Tensor) -> Tensor:
    """The loss of each token that was predicted: minus the logarithm of the probability it was given.

    ids: [n + 1]; logits: [n, vocab], any float dtype: row i was computed from the tokens up to ids[i], and is the
    model's opinion on ids[i + 1]. Returns [n], in nats, float32 at least (bf16 has three digits: a loss of 12.34
    becomes 12.3125). A token that was given no chance at all costs infinity.

    >>> token_nats(torch.tensor([[0.0, 0.0], [0.0, 100.0]]), torch.tensor([0, 1, 0]))  # even odds; all on the wrong one
    tensor([  0.6931, 100.0000])
    """
    # exercise 7.2: logarithms of the softmax in float32 or better, then the entry of the token that came next
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probs = wide.log_softmax(dim=-1)  # [n, vocab]
    return -log_probs.gather(-1, ids[1:, None]).squeeze(-1)
    # end


class Context:
    """The keys and values that one layer has seen in this window: the simplest cache there is."""

    def __init__(self) -> None:
        self.length, self._k, self._v = 0, torch.empty(0), torch.empty(0)

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k, v: [1, kv_heads, n, head_dim]. Returns all of them so far."""
        self._k = torch.cat((self._k, k), dim=2) if self.length else k
        self._v = torch.cat((self._v, v), dim=2) if self.length else v
        self.length += k.shape[2]
        return self._k, self._v


@torch.inference_mode()
def token_losses(model: Transformer, ids: Tensor, window: int = WINDOW, stride: int | None = None) -> Tensor:
    """The loss of every token but the first, each predicted once by a sliding window.

    ids: [length], at least two. window: in tokens, cut down to the model's context; stride: half of the window by
    default (less is slower, and gives tokens more context). Returns [length - 1] on the CPU, in nats, float32 at
    least. Memory is bounded by the window, however long the text is.
    """
    if ids.dim() != 1 or len(ids) < 2:
        raise ValueError(f"ids must be [length] with at least two tokens, not {list(ids.shape)}: nothing to predict")
    window = min(window, model.config.max_position_embeddings)
    device = next(model.parameters()).device
    ids = ids.to(device)
    losses = [_window_losses(model, ids, *w) for w in windows(len(ids), window, stride or max(1, window // 2))]
    return torch.cat(losses).cpu()


def _window_losses(model: Transformer, ids: Tensor, begin: int, first: int, end: int) -> Tensor:
    """Read ids[begin:end - 1] piece by piece; the losses of ids[first:end]. What is only context skips the head."""
    contexts = [Context() for _ in range(model.config.num_hidden_layers)]
    for piece in torch.split(ids[begin : first - 1], PIECE):
        if len(piece):
            model(piece[None], contexts, last_only=True)
    losses = []
    for start in range(first - 1, end - 1, PIECE):
        stop = min(start + PIECE, end - 1)
        logits = model(ids[None, start:stop], contexts)[0]  # [n, vocab]
        losses.append(token_nats(logits, ids[start : stop + 1]))
    return torch.cat(losses)


def perplexity(model: Transformer, ids: Tensor, window: int = WINDOW, stride: int | None = None) -> float:
    """exp of the mean loss of a token: among how many equally likely tokens the model seems to choose.

    ids: [length]; the first is only context. Compare it between models with the same tokenizer, and no others.
    """
    return math.exp(float(token_losses(model, ids, window, stride).double().mean()))


def bits_per_byte(total_nats: float, n_bytes: int) -> float:
    """How many bits the model would need to store one byte of the text: what models with any tokenizer share.

    total_nats: the losses of all tokens, added up; n_bytes: of the text (UTF-8) that these tokens are.
    Raises ValueError for no bytes.

    >>> bits_per_byte(8 * math.log(2), 4)  # the text had a probability of 1 in 2**8
    2.0
    """
    if n_bytes < 1:
        raise ValueError(f"bits per byte of {n_bytes} bytes: the text is empty")
    # exercise 7.3: from nats to bits, then shared out over the bytes
    bits = total_nats / math.log(2)
    return bits / n_bytes
    # end


@dataclass(frozen=True)
class DocumentScore:
    """A text that was predicted, and the loss of each of its tokens, [tokens], in nats."""

    text: str
    nats: Tensor

    @property
    def n_bytes(self) -> int:
        """Of the text in UTF-8."""
        return len(self.text.encode())

    @property
    def bits(self) -> float:
        """What the whole document costs."""
        return float(self.nats.double().sum()) / math.log(2)


class CorpusScore(NamedTuple):
    """Of several documents together."""

    perplexity: float  # per token: for models with the same tokenizer
    bits_per_byte: float  # for all models


def corpus_score(documents: Sequence[DocumentScore]) -> CorpusScore:
    """The perplexity and the bits per byte of all documents together: every token counts once, and every byte.

    `document.nats` [tokens] are one document's losses, `document.text` is its text. Either may be empty for some. Sums
    are in float64, and both results are floats. Raises ValueError for no tokens.

    A document of 1 token that cost 4 nats and one of 3 tokens that cost none: 4 tokens, 4 nats, a perplexity of e.
    """
    if not any(len(document.nats) for document in documents):
        raise ValueError("no document holds a token that was predicted: there is nothing to score")
    # exercise 7.4: add up nats, tokens and bytes over the documents, and divide at the very end
    nats = sum(float(document.nats.double().sum()) for document in documents)
    tokens = sum(len(document.nats) for document in documents)
    n_bytes = sum(len(document.text.encode()) for document in documents)
    return CorpusScore(math.exp(nats / tokens), bits_per_byte(nats, n_bytes))
    # end


def beginning_id(tokenizer: Tokenizer) -> int:
    """The special token before a document's first token: what separated documents when the model was trained.

    Raises ValueError for a tokenizer without any such token.
    """
    for name in BEGINNINGS:
        if name in tokenizer.special_tokens:
            return tokenizer.special_tokens[name]
    raise ValueError(f"the tokenizer has none of {', '.join(BEGINNINGS)} to begin a document with")


def score_text(
    model: Transformer, tokenizer: Tokenizer, text: str, max_bytes: int | None = None, window: int = WINDOW
) -> DocumentScore:
    """Score a document, or its first max_bytes bytes: of models with different tokenizers, the same bytes.

    What the tokenizer drops (SmolLM2's lacks a few control characters) was not predicted, and does not count.
    """
    if max_bytes is not None:
        text = text.encode()[:max_bytes].decode(errors="ignore")  # not half a character
    ids = tokenizer.encode(text)
    if not ids:
        return DocumentScore("", torch.empty(0))
    nats = token_losses(model, torch.tensor([beginning_id(tokenizer), *ids]), window)
    return DocumentScore(tokenizer.decode(ids), nats)


def score_documents(
    model: Transformer, tokenizer: Tokenizer, texts: Iterable[str], max_bytes: int | None = None,
    progress: bool = False, label: str = "scoring",
) -> list[DocumentScore]:  # fmt: skip
    """Score each document on its own."""
    texts = list(texts)
    scores = []
    with progress_bar(label, len(texts), progress) as step:
        for text in texts:
            scores.append(score_text(model, tokenizer, text, max_bytes))
            step()
    return scores


def perplexity_of_text(model: Transformer, tokenizer: Tokenizer, max_bytes: int = 512) -> Callable[[str], float]:
    """A function from a text to its perplexity, for `shared.data.quality.perplexity_problem`.

    The text's first max_bytes bytes are enough to tell prose from noise. An empty text's perplexity is infinite.
    """

    def measure(text: str) -> float:
        score = score_text(model, tokenizer, text, max_bytes)
        return corpus_score([score]).perplexity if len(score.nats) else math.inf

    return measure
