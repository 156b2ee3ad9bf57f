"""A model's tokenizer.json, read and written; what we can't honour to the last id is refused, with the field's name."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shared.data.pretokens import GPT2, GPT2_DIGITS

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
# Classes that Python's `re` and the library's Oniguruma read differently.
UNLIKE = (r"\w", r"\W", r"\b", r"\B", r"\d", r"\D", r"\h", r"\H", r"\X", r"\R", "[[:", "&&")


class TokenizerError(ValueError):
    """A tokenizer that cannot be loaded, or text or ids it cannot take."""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: a byte that prints is its own character, the others follow from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()  # "Ġ" -> 32
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def to_bytes(spelling: str) -> bytes:
    """The bytes that a token spelt in GPT-2's alphabet stands for. Raises TokenizerError for any other spelling.

    >>> to_bytes("Ġthe")
    b' the'
    """
    try:
        return bytes(map(BYTE_OF.__getitem__, spelling))
    except KeyError as error:
        raise TokenizerError(f"{spelling!r} is not spelt in GPT-2's byte alphabet: {error} isn't in it") from None


def to_spelling(token: bytes) -> str:
    """The inverse of to_bytes."""
    return "".join(map(CHARACTER_OF.__getitem__, token))


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises TokenizerError that names the file."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise TokenizerError(f"{file} cannot be read: it holds no JSON object")
    return data


def parse(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for `Tokenizer` that a tokenizer.json stands for. Raises TokenizerError, naming the field.

    The post-processor is not asked: it only adds special tokens around a text, and `encode` adds none.
    """
    for field in ("normalizer", "truncation", "padding"):
        _expect(data.get(field) is None, field, data.get(field))
    model, decoder = data.get("model") or {}, data.get("decoder") or {}
    _expect(model.get("type") == "BPE", "model.type", model.get("type"))
    for field in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        _expect(not model.get(field), f"model.{field}", model.get(field))
    _expect(decoder.get("type") == "ByteLevel", "decoder", decoder)
    added = data.get("added_tokens") or []
    for i, token in enumerate(added):
        for field in ("lstrip", "rstrip", "single_word"):
            _expect(not token.get(field), f"added_tokens[{i}].{field}", token.get(field))
    pattern = _pattern(data.get("pre_tokenizer"))
    try:
        names = {token["id"]: token["content"].encode() for token in added}
        vocab = {id: names.get(id) or to_bytes(spelling) for spelling, id in model["vocab"].items()} | names
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        merges = [(to_bytes(first), to_bytes(second)) for first, second in pairs]
    except TokenizerError as error:
        raise TokenizerError(f"model: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(f"model or added_tokens is not as it should be: {error!r}") from error
    return {
        "vocab": vocab,
        "merges": merges,
        "special_tokens": {token["content"]: token["id"] for token in added if token.get("special")},
        "added_tokens": {token["content"]: token["id"] for token in added if not token.get("special")},
        "pattern": pattern,
        "ignore_merges": bool(model.get("ignore_merges")),
    }


def render(
    vocab: Mapping[int, bytes],
    merges: Iterable[tuple[bytes, bytes]],
    special_tokens: Mapping[str, int],
    added_tokens: Mapping[str, int],
    pattern: str,
    ignore_merges: bool,
) -> dict[str, Any]:
    """The tokenizer.json of a tokenizer: `parse` and the library read the same from it."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    names = {id: (name, True) for name, id in special_tokens.items()}
    names |= {id: (name, False) for name, id in added_tokens.items()}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    known = {GPT2: BYTE_LEVEL, GPT2_DIGITS: {"type": "Sequence", "pretokenizers": [DIGITS, BYTE_LEVEL]}}
    other = {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": name, **flags, "special": special} for id, (name, special) in sorted(names.items())
        ],
        "normalizer": None,
        "pre_tokenizer": known.get(pattern, other),
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": {names[id][0] if id in names else to_spelling(token): id for id, token in sorted(vocab.items())},
            "merges": [[to_spelling(first), to_spelling(second)] for first, second in merges],
        },
    }


def end_tokens(folder: Path, token_ids: Mapping[str, int]) -> frozenset[int]:
    """Files disagree on what ends an answer, so all of them are asked; chat models end a turn with <|im_end|>."""
    ids: set[int | None] = {token_ids.get("<|im_end|>")}
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            found = read_json(folder / name).get("eos_token_id")
            ids |= set(found) if isinstance(found, list) else {found}
    return frozenset(id for id in ids if id is not None)


def _pattern(pre_tokenizer: Any) -> str:
    """The one pattern that cuts a text as these pre-tokenizers do."""
    field = "pre_tokenizer"
    _expect(isinstance(pre_tokenizer, dict), field, pre_tokenizer)
    stages = pre_tokenizer.get("pretokenizers") if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    _expect(isinstance(stages, list) and 1 <= len(stages) <= 2, field, pre_tokenizer)
    *first, last = stages
    _expect(last.get("type") == "ByteLevel", field, pre_tokenizer)
    _expect(not last.get("add_prefix_space"), f"{field}.add_prefix_space", True)
    regex = last.get("use_regex", True)
    if not first and regex:
        return GPT2
    if first and regex and first[0].get("type") == "Digits":
        _expect(first[0].get("individual_digits"), f"{field}.individual_digits", first[0].get("individual_digits"))
        return GPT2_DIGITS
    _expect(first and not regex and first[0].get("type") == "Split", field, pre_tokenizer)
    split = first[0]
    found = split.get("pattern", {}).get("Regex")
    _expect(isinstance(found, str), f"{field}.pattern", split.get("pattern"))
    _expect(split.get("behavior") == "Isolated", f"{field}.behavior", split.get("behavior"))
    _expect(not split.get("invert"), f"{field}.invert", split.get("invert"))
    _expect(not any(item in found for item in UNLIKE), f"{field}.pattern", found)
    return str(found)


def _expect(condition: Any, field: str, value: Any) -> None:
    if not condition:
        shown = json.dumps(value, ensure_ascii=False)
        shown = shown if len(shown) <= 200 else shown[:200] + " …"
        raise TokenizerError(f"tokenizer.json: {field} is {shown}, which this tokenizer can't honour")
