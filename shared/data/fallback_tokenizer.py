"""The mature counterpart: the `tokenizers` library behind `Tokenizer`'s interface, for the files we can't honour."""

import logging
from collections.abc import Iterable
from pathlib import Path

import tokenizers

from shared.data.tokenizer import Tokenizer
from shared.data.tokenizer_json import TokenizerError, end_tokens, to_bytes

logger = logging.getLogger(__name__)


def load_tokenizer(path: Path | str) -> "Tokenizer | LibraryTokenizer":
    """Our own tokenizer where it gets the model's ids right, and the library's for the rest (SentencePiece).

    Raises TokenizerError where neither can read the file.
    """
    try:
        return Tokenizer.load(path)
    except TokenizerError as error:
        tokenizer = LibraryTokenizer.load(path)
        logger.warning("%s; using the tokenizers library", error)
        return tokenizer


class LibraryTokenizer:
    """What `Tokenizer` does, done by the `tokenizers` library; byte-level and SentencePiece vocabularies."""

    def __init__(self, backend: tokenizers.Tokenizer, eos_ids: Iterable[int] = ()) -> None:
        self._backend = backend
        self._plain = tokenizers.Tokenizer.from_str(backend.to_str())
        self._plain.encode_special_tokens = True  # "<|im_end|>" in a text is then nine characters like any others
        self.vocab_size = backend.get_vocab_size()
        added = backend.get_added_tokens_decoder()
        self.special_tokens = {token.content: i for i, token in added.items() if token.special}
        self._added_bytes = {i: token.content.encode() for i, token in added.items()}
        self._special_ids = frozenset(self.special_tokens.values())
        self._byte_level = _is_byte_level(repr(backend.decoder))
        self.eos_ids = frozenset(eos_ids)

    @classmethod
    def load(cls, path: Path | str) -> "LibraryTokenizer":
        """Read a model directory, or a tokenizer.json. The end tokens come from the configs beside it."""
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise TokenizerError(f"{file} is missing; it holds the tokenizer's vocabulary and rules")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises plain Exception
            raise TokenizerError(f"{file} cannot be read: {error}") from error
        return cls(backend, end_tokens(file.parent, backend.get_vocab()))

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text. Without `allow_special`, no text becomes a special token, whatever it says."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(f"the text holds half a character (a lone surrogate) at {error.start}") from error
        if allow_special:
            return self._backend.encode(text, add_special_tokens=False).ids
        ids = self._plain.encode(text, add_special_tokens=False).ids
        return [i for i in ids if i not in self._special_ids]  # an unknown byte may come out as a special "unknown"

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens included; bytes that are not yet a whole character become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        """The bytes a token stands for; one character may be spread over several tokens."""
        if id in self._added_bytes:
            return self._added_bytes[id]
        token = self._backend.id_to_token(id) if id >= 0 else None
        if token is None:
            raise TokenizerError(f"no token has the id {id}; there are {self.vocab_size}")
        if self._byte_level:
            return to_bytes(token)
        if len(token) == 6 and token.startswith("<0x"):  # SentencePiece spells a byte outside its vocabulary <0xE2>
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    def token_id(self, token: str) -> int:
        """The id of a token given by its name in the vocabulary, such as `<|im_end|>`."""
        id = self._backend.token_to_id(token)
        if id is None:
            raise TokenizerError(f"the vocabulary has no token {token!r}")
        return id


def _is_byte_level(decoder: str) -> bool:
    """Whether tokens are spelt in GPT-2's byte alphabet (True) or as text with SentencePiece's marks (False)."""
    if "ByteLevel" in decoder:
        return True
    if "ByteFallback" in decoder or "Metaspace" in decoder:
        return False
    raise TokenizerError(f"decoder {decoder} in tokenizer.json is not known here; byte-level and SentencePiece's are")
