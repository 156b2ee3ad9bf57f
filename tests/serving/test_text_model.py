"""The text side of a model: long texts are read only as far as needed, and short ones as always."""

import random

import pytest

from shared.data.chat import ChatTemplate, encode_chat
from shared.data.tokenizer import Tokenizer
from shared.inference.sampling import SamplingParams
from shared.serving.models.text_model import PIECE, PromptTooLong, TextModel
from tests.serving.live import TEMPLATE, write_tiny_model

WORDS = ["a", "word", "naïve", "“quoted”", "😀", "  ", "\n\n", "42", "<|im_end|>", "<|im_", "don't"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return TextModel.load(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def encoded(monkeypatch):
    """How many characters each call of Tokenizer.encode was given."""
    lengths, encode = [], Tokenizer.encode

    def counted(self, text, allow_special=False):
        lengths.append(len(text))
        return encode(self, text, allow_special)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    return lengths


def test_what_is_loaded(text):
    assert text.name == "tiny"
    assert isinstance(text.tokenizer, Tokenizer)
    assert text.context == 256
    assert (text.defaults.temperature, text.defaults.top_p) == (1.3, 0.9)


def test_long_texts_have_the_ids_they_always_had(text):
    rng = random.Random(0)
    for _ in range(6):
        long = " ".join(rng.choices(WORDS, k=3000))
        messages = [{"role": "user", "content": long}, {"role": "user", "content": "short"}]
        for n in (PIECE, 10**6):  # with the text longer than the context, and shorter
            room = max(n, len(long.encode()) + 100)
            assert text.encode(long, room) == text.tokenizer.encode(long)
            expected = encode_chat(text.tokenizer, text.template, messages)
            assert text.encode_chat(messages, room) == expected


def test_a_text_far_too_long_is_not_encoded_to_its_end(text, encoded):
    long = "some words " * 25_000
    for encode in (
        lambda: text.encode(long, 256),
        lambda: text.encode_chat([{"role": "user", "content": long}], 256),
        lambda: text.encode_chat([{"role": "user", "content": "<|im_end|>"}, {"role": "user", "content": long}], 256),
    ):
        encoded.clear()
        with pytest.raises(PromptTooLong, match=r"at least \d+ tokens, and the model's context is 256"):
            encode()
        assert sum(encoded) < 10 * PIECE


@pytest.mark.real
def test_the_least_number_of_tokens_is_never_more_than_the_number(tokenizer):
    """On the real vocabulary, whose tokens are up to 81 bytes long."""
    text = TextModel("real", tokenizer, ChatTemplate(TEMPLATE), SamplingParams())
    rng = random.Random(0)
    longest = sorted(tokenizer.vocab.values(), key=len)[-300:]
    texts = ["a" * 1000, " " * 1000, "\n" * 1000, "é" * 1000, "😀" * 100, "0123456789" * 50, "\x00\x01" * 50, "", "x"]
    texts += [token.decode(errors="ignore") for token in longest]
    texts += ["".join(rng.choices(WORDS, k=200)) for _ in range(50)]
    for one in texts:
        assert text.least_tokens(one) <= len(tokenizer.encode(one, allow_special=True)) + 1e-6, one
    assert text.least_tokens("a" * 1000) > 20


@pytest.mark.real
def test_one_endless_word_is_refused_before_it_is_encoded(tokenizer, encoded):
    text = TextModel("real", tokenizer, ChatTemplate(TEMPLATE), SamplingParams())
    for endless in ("a" * 250_000, "é" * 120_000, "\n" * 250_000):
        with pytest.raises(PromptTooLong, match=r"at least \d+ tokens"):
            text.encode_chat([{"role": "user", "content": endless}], 8192)
    assert sum(encoded) == 0


def test_the_limit_is_exact(text):
    for n in (10, 255, 5000):
        assert len(text.encode("x" * n, n + 1)) == n
        with pytest.raises(PromptTooLong):
            text.encode("x" * n, n)
        with pytest.raises(PromptTooLong):
            text.encode("x" * (n + 1), n)
    messages = [{"role": "user", "content": "<|im_end|>" * 20}]  # encoded in pieces: the text tries to forge tokens
    n = len(text.encode_chat(messages, 1000))
    assert n == len("u:\na:") + 200
    assert len(text.encode_chat(messages, n + 1)) == n
    with pytest.raises(PromptTooLong):
        text.encode_chat(messages, n)


def test_it_says_whether_the_model_or_the_memory_is_too_small(text):
    with pytest.raises(PromptTooLong, match="the model's context is 256 tokens"):
        text.encode("x" * 256, 256)
    with pytest.raises(PromptTooLong, match="this server's KV memory is for 48 tokens.*--kv-memory"):
        text.encode("x" * 48, 48)


def test_a_tokenizer_of_another_kind_is_asked_for_all_at_once(tmp_path):
    class Library:
        special_tokens = {}

        def encode(self, text, allow_special=False):
            return list(text.encode())

    text = TextModel("other", Library(), ChatTemplate(TEMPLATE), SamplingParams())
    assert len(text.encode("x" * 10_000, 10_001)) == 10_000
    with pytest.raises(PromptTooLong, match="10000 tokens, and the model's context is 10000"):
        text.encode("x" * 10_000, 10_000)
