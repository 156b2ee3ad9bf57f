"""A tokenizer whose ids can be worked out by hand, and a text with something of everything."""

import json
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from shared.data.tokenizer import Tokenizer
from shared.data.tokenizer_json import BYTE_OF

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_backend() -> tokenizers.Tokenizer:
    """All 256 bytes, three merges, three special tokens at the end: "ab" is 256, "Ġab" 257, "<|" 258."""
    characters = sorted(BYTE_OF, key=BYTE_OF.get)
    vocab = {token: i for i, token in enumerate([*characters, "ab", "Ġab", "<|"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("a", "b"), ("Ġ", "ab"), ("<", "|")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    return backend


def from_backend(backend: tokenizers.Tokenizer, eos_ids: Iterable[int] = ()) -> Tokenizer:
    return Tokenizer.from_json(json.loads(backend.to_str()), eos_ids)


def tiny_tokenizer() -> Tokenizer:
    return from_backend(tiny_backend(), eos_ids=[261])


CORPUS = """\
The river rose in the night, and by the morning the lower road was gone. "We'll go round," she said; it's 12 miles
longer. 下雨了，路没了。 naïve cafés 🙂🙂 x = [1, 22, 333]
\tdef f(x):
        return x  # ok
"""
