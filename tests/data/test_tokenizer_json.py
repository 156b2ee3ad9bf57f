"""tokenizer.json: what is honoured, and that everything else is refused by name."""

import json

import pytest

from shared.data.pretokens import GPT2, GPT2_DIGITS
from shared.data.tokenizer import Tokenizer
from shared.data.tokenizer_json import TokenizerError, parse, to_bytes, to_spelling
from tests.data.test_pretokens import LLAMA3
from tests.data.tiny_tokenizers import tiny_backend

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
DIGIT_RUNS = DIGITS | {"individual_digits": False}
PLAIN = BYTE_LEVEL | {"use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}


def tiny_json(**changes):
    """The file of the tiny tokenizer, with some fields changed: "model.dropout" is written model__dropout."""
    data = json.loads(tiny_backend().to_str())
    for name, value in changes.items():
        *path, last = name.split("__")
        place = data
        for key in path:
            place = place[int(key)] if key.isdigit() else place[key]
        place[last] = value
    return data


def sequence(*stages):
    return {"type": "Sequence", "pretokenizers": list(stages)}


def test_the_byte_alphabet():
    assert to_bytes("Ġthe") == b" the"
    assert to_spelling("\n é".encode()) == "ĊĠÃ©"
    assert all(to_bytes(to_spelling(bytes([byte]))) == bytes([byte]) for byte in range(256))
    assert all(to_spelling(bytes([byte])).isprintable() for byte in range(256))
    with pytest.raises(TokenizerError, match="'▁the' is not spelt in GPT-2's byte alphabet"):
        to_bytes("▁the")


@pytest.mark.parametrize(
    ("pre_tokenizer", "pattern"),
    [
        (BYTE_LEVEL, GPT2),
        (sequence(BYTE_LEVEL), GPT2),
        (sequence(DIGITS, BYTE_LEVEL), GPT2_DIGITS),
        (sequence(SPLIT, PLAIN), LLAMA3),
    ],
)
def test_pre_tokenizers(pre_tokenizer, pattern):
    assert parse(tiny_json(pre_tokenizer=pre_tokenizer))["pattern"] == pattern


def test_merges_as_one_text_or_as_two():
    """Files from before 2024 have "Ġ ab" where newer ones have ["Ġ", "ab"]."""
    want = [(b"a", b"b"), (b" ", b"ab"), (b"<", b"|")]
    assert parse(tiny_json())["merges"] == want
    assert parse(tiny_json(model__merges=["a b", "Ġ ab", "< |"]))["merges"] == want


def test_what_changes_no_ids_is_allowed():
    template = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
    data = tiny_json(post_processor=template, model__unk_token="<|endoftext|>", model__fuse_unk=True)
    assert Tokenizer.from_json(data).encode("ab") == [256]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer is"),
        ({"truncation": {"max_length": 5}}, "truncation is"),
        ({"padding": {"strategy": "BatchLongest"}}, "padding is"),
        ({"model": None}, "model.type is null"),
        ({"model__type": "Unigram"}, 'model.type is "Unigram"'),
        ({"model__dropout": 0.1}, "model.dropout is 0.1"),
        ({"model__byte_fallback": True}, "model.byte_fallback is true"),
        ({"model__continuing_subword_prefix": "##"}, "model.continuing_subword_prefix"),
        ({"model__end_of_word_suffix": "</w>"}, "model.end_of_word_suffix"),
        ({"decoder": {"type": "WordPiece"}}, 'decoder is .*"WordPiece"'),
        ({"decoder": None}, "decoder is"),
        ({"added_tokens__1__lstrip": True}, r"added_tokens\[1\].lstrip is true"),
        ({"added_tokens__0__rstrip": True}, r"added_tokens\[0\].rstrip"),
        ({"added_tokens__2__single_word": True}, r"added_tokens\[2\].single_word"),
        ({"pre_tokenizer": None}, "pre_tokenizer is null"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, 'pre_tokenizer is .*"Metaspace"'),
        ({"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}}, "pre_tokenizer.add_prefix_space"),
        ({"pre_tokenizer": BYTE_LEVEL | {"use_regex": False}}, "pre_tokenizer is"),
        ({"pre_tokenizer": sequence(DIGIT_RUNS, BYTE_LEVEL)}, "pre_tokenizer.individual_digits"),
        ({"pre_tokenizer": sequence(DIGITS, DIGITS, BYTE_LEVEL)}, "pre_tokenizer is"),
        ({"pre_tokenizer": sequence({"type": "Whitespace"}, BYTE_LEVEL)}, "pre_tokenizer is"),
        ({"pre_tokenizer": sequence(SPLIT, BYTE_LEVEL)}, "pre_tokenizer is"),
        ({"pre_tokenizer": sequence(SPLIT | {"invert": True}, PLAIN)}, "pre_tokenizer.invert"),
        ({"pre_tokenizer": sequence(SPLIT | {"behavior": "Removed"}, PLAIN)},
         "pre_tokenizer.behavior"),
        ({"pre_tokenizer": sequence(SPLIT | {"pattern": {"String": " "}}, PLAIN)},
         "pre_tokenizer.pattern"),
        ({"pre_tokenizer": sequence(SPLIT | {"pattern": {"Regex": r"\w+"}}, PLAIN)},
         "pre_tokenizer.pattern"),
        ({"model__vocab": {"▁a": 0}}, "model: '▁a' is not spelt"),
        ({"model__vocab": None}, "model or added_tokens is not as it should be"),
        ({"model__merges": ["a"]}, "model or added_tokens is not as it should be"),
        ({"model__merges": None}, "model or added_tokens is not as it should be"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(changes, field, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tiny_json(**changes)))
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json: .*{field}"):
        Tokenizer.load(tmp_path)


def test_broken_files_are_named(tmp_path):
    file = tmp_path / "tokenizer.json"
    for content, message in (("{", "cannot be read"), ("[]", "holds no JSON object"), ("\xff", "cannot be read")):
        file.write_text(content, encoding="latin-1")
        with pytest.raises(TokenizerError, match=message):
            Tokenizer.load(file)
    file.write_text(json.dumps(tiny_json()))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"config\.json cannot be read"):
        Tokenizer.load(file)
