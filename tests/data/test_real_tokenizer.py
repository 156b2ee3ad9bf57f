"""The real model's tokenizer, by stored ids and by the library that it was made with."""

import json
import random
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.data.test_pretokens import texts as odd_texts
from tests.data.tiny_tokenizers import CORPUS
from tests.model.make_oracle import TEXTS

STORED = json.loads((Path(__file__).parent / "oracle_tokens.json").read_text())


@pytest.mark.real
def test_real_ids_are_those_of_transformers(tokenizer):
    for text, want in zip(TEXTS, STORED["texts"], strict=True):
        assert tokenizer.encode(text, allow_special=True) == want, text


@pytest.mark.real
def test_real_digits_stand_alone(tokenizer):
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("2024")] == [b"2", b"0", b"2", b"4"]
    # GPT-2's pattern alone would keep one space for the digit: " ", " 7".
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("a  7")] == [b"a", b"  ", b"7"]


@pytest.mark.real
def test_real_special_tokens(tokenizer):
    assert tokenizer.vocab_size == 49152
    assert len(tokenizer.special_tokens) == 17
    assert tokenizer.eos_ids == {tokenizer.token_id("<|im_end|>")} == {2}
    for name, id in tokenizer.special_tokens.items():
        assert tokenizer.encode(name, allow_special=True) == [id]
        ids = tokenizer.encode(f"a{name}b")
        assert not set(tokenizer.special_tokens.values()) & set(ids)
        assert tokenizer.decode(ids) == f"a{name}b"


@pytest.mark.real
@given(st.text())
@settings(max_examples=200, deadline=None)
def test_real_round_trip(tokenizer, text):
    """Six control characters, and planes of Unicode that hold no characters yet, are not in the vocabulary."""
    known = "".join(c for c in text if c not in "\x04\x06\x13\x14\x16\x1d" and c.encode()[0] not in (0xF1, 0xF2))
    assert tokenizer.decode(tokenizer.encode(known)) == known


@pytest.mark.real
def test_real_against_transformers_live(model_dir, tokenizer):
    transformers = pytest.importorskip("transformers", reason="needs the [dev] extra")
    theirs = transformers.AutoTokenizer.from_pretrained(model_dir)
    for text in TEXTS:
        assert tokenizer.encode(text, allow_special=True) == theirs.encode(text), text
        assert tokenizer.decode(theirs.encode(text)) == theirs.decode(theirs.encode(text)), text


def mixed_text(size: int) -> str:
    """English, Chinese, code, emoji, combining marks, runs of white space and odd characters, all in one."""
    english = CORPUS + "\n".join(TEXTS)
    chinese = (
        "分词器把文字变成数字。模型只认识数字，不认识字；一个汉字有三个字节，常见的字是一个词元，少见的字是两三个。"
    )
    code = Path(tokenizers.__file__).read_text() + Path(__file__).read_text()
    rng = random.Random(0)
    odd = [*"²½Ⅻ٣ʰªſ\u00a0\u2028\u2029\u3000\u0085\u200b\u200d\ufeff\u0301\u0308\ufffd\x1c\x1f\x00"]
    odd += [
        "👩\u200d👩\u200d👧\u200d👦",
        "🇫🇷",
        "e\u0301",
        "क्षि",
        "ภาษา",
        "한국어",
        "\r\n",
        "\t\t",
        " " * 6,
        "\n\n\n",
        " '",
        "'S",
    ]
    odd += ["'ll've", "12345", "3.14159", "<|im_end|>", "<|endoftext|>", "_", "--------", "a" * 20]
    pieces, length = [], 0
    while length < size:
        source = rng.choice((english, chinese, code, None))
        if source is None:
            piece = "".join(rng.choices(odd, k=rng.randint(1, 6)))
        elif source is chinese:
            piece = "".join(rng.choices(chinese, k=rng.randint(5, 60)))
        else:
            start = rng.randrange(len(source))
            piece = source[start : start + rng.randint(20, 400)]
        pieces.append(piece)
        length += len(piece.encode())
    return "".join(pieces)


@pytest.fixture(scope="module")
def library(model_dir):
    """The tokenizers library with the real model's rules; special tokens' names are text to it."""
    library = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    library.encode_special_tokens = True
    return library


@pytest.mark.real
def test_real_a_megabyte_of_mixed_text(tokenizer, library, model_dir):
    text = mixed_text(2**20)
    want = library.encode(text).ids
    assert tokenizer.encode(text) == want
    assert list(tokenizer.encode_iterable(text[i : i + 777] for i in range(0, len(text), 777))) == want
    allowed = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert tokenizer.encode(text, allow_special=True) == allowed.encode(text).ids
    assert tokenizer.decode(want) == library.decode(want, skip_special_tokens=False)


@pytest.mark.real
@given(text=odd_texts)
@example("\x04a\x04b the\x06re \x13\x14\x16\x1d")  # bytes that SmolLM2's vocabulary lacks: what is left may merge
@settings(max_examples=500, deadline=None)
def test_real_any_text(tokenizer, library, text):
    assert tokenizer.encode(text) == library.encode(text).ids


@pytest.mark.real
@given(st.lists(st.integers(0, 49151), max_size=20))
@settings(max_examples=300, deadline=None)
def test_real_any_ids_decode_like_the_library(tokenizer, library, ids):
    """Random ids are mostly broken bytes; where one character ends and the next begins is the same for both."""
    assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False)
