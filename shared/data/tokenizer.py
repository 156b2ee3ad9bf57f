"""Text to token ids and back: byte-pair encoding with any vocabulary, trained here or a real model's."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from shared.data import tokenizer_json
from shared.data.pretokens import GPT2, safe_chunks, special_pattern, splitter
from shared.data.tokenizer_json import TokenizerError, to_bytes
from shared.measure.files import write_json

Pair = tuple[bytes, bytes]
NEVER = 2**63  # the rank of a pair that isn't merged
LONG = 80  # bytes; for longer pieces the heap is faster


def merge_by_rank(piece: bytes, ranks: Mapping[Pair, int]) -> list[bytes]:
    """Cut a pretoken into tokens: of all neighbours merge the pair of the lowest rank, and again, while any has one.

    ranks: pair -> its place among the merges, 0 for the one learnt first.  Of equal ranks the leftmost comes first.
    Tokens joined are the piece; a byte with which nothing merges stays a token of its own.

    >>> merge_by_rank(b"there", {(b"h", b"e"): 0, (b"t", b"he"): 1, (b"r", b"e"): 2, (b"t", b"h"): 3})
    [b'the', b're']
    """
    # exercise 4.4: keep the tokens, and beside them the rank of each with its right neighbour (NEVER if it has none)
    #   after a merge only the ranks to its left and right have changed
    tokens = [bytes([byte]) for byte in piece]
    rank = [ranks.get(pair, NEVER) for pair in pairwise(tokens)]
    while rank and (lowest := min(rank)) < NEVER:
        i = rank.index(lowest)
        tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]
        del rank[i]
        if i > 0:
            rank[i - 1] = ranks.get((tokens[i - 1], tokens[i]), NEVER)
        if i < len(rank):
            rank[i] = ranks.get((tokens[i], tokens[i + 1]), NEVER)
    return tokens
    # end


def merge_long(piece: bytes, ranks: Mapping[Pair, int]) -> list[bytes]:
    """merge_by_rank in time n log n, where that takes n squared: a megabyte of the same letter is one pretoken."""
    tokens = [bytes([byte]) for byte in piece]
    before, after, end = list(range(-1, len(tokens) - 1)), list(range(1, len(tokens) + 1)), len(tokens)
    heap = [(ranks[pair], i) for i, pair in enumerate(pairwise(tokens)) if pair in ranks]
    heapq.heapify(heap)
    while heap:
        rank, i = heapq.heappop(heap)
        j = after[i]
        if not tokens[i] or j == end or ranks.get((tokens[i], tokens[j])) != rank:
            continue  # one of the two has been merged since
        tokens[i], tokens[j], after[i] = tokens[i] + tokens[j], b"", after[j]
        if after[j] < end:
            before[after[j]] = i
        for left, right in ((before[i], i), (i, after[i])):
            if left >= 0 and right < end and (pair := (tokens[left], tokens[right])) in ranks:
                heapq.heappush(heap, (ranks[pair], left))
    return [token for token in tokens if token]


class PieceCache(dict[str, list[int]]):
    """The ids of pretokens seen before. Most of a text is a few thousand words, so most look-ups end here.

    Bounded: when it is full it starts anew, which costs less than keeping the order in which entries were used.
    """

    def __init__(self, encode: Callable[[str], list[int]], limit: int = 2**15, longest: int = 128) -> None:
        super().__init__()
        self._encode, self._limit, self._longest = encode, limit, longest

    def __missing__(self, piece: str) -> list[int]:
        ids = self._encode(piece)
        if len(piece) <= self._longest:  # a long piece hardly ever comes again
            if len(self) >= self._limit:
                self.clear()
            self[piece] = ids
        return ids


class Tokenizer:
    """Byte-pair encoding (Sennrich et al. 2016) over bytes, with the rules and the vocabulary of one model.

    vocab_size: one more than the largest id. special_tokens: name -> id of the tokens that steer the model, such as
    `<|im_end|>`. eos_ids: the ids that end an answer.
    """

    def __init__(
        self,
        vocab: Mapping[int, bytes],
        merges: Iterable[Pair],
        special_tokens: Iterable[str] | Mapping[str, int] | None = None,
        pattern: str = GPT2,
        *,
        added_tokens: Iterable[str] | Mapping[str, int] = (),
        eos_ids: Iterable[int] = (),
        ignore_merges: bool = False,
    ) -> None:
        """vocab and merges as train_bpe returns them.

        special_tokens: names; one that isn't in the vocabulary yet gets the next free id. added_tokens: names that are
        found in any text like special tokens, but don't steer anything. ignore_merges: a pretoken that is a token as a
        whole is taken as one, whatever the merges say (Llama 3). Raises TokenizerError when the parts don't fit.
        """
        self.vocab, self.merges, self.pattern, self.ignore_merges = dict(vocab), list(merges), pattern, ignore_merges
        self.special_tokens = self._register(special_tokens or ())
        self.added_tokens = self._register(added_tokens)
        self.vocab_size = max(self.vocab, default=-1) + 1
        self.eos_ids = frozenset(eos_ids)
        if wrong := [id for id in self.eos_ids if id not in self.vocab]:
            raise TokenizerError(f"eos_ids holds {wrong[0]}, and no token has that id; there are {self.vocab_size}")
        extra = {*self.special_tokens.values(), *self.added_tokens.values()}
        self._ids = {token: id for id, token in self.vocab.items() if id not in extra}
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        for rank, (first, second) in enumerate(self.merges):
            if not {first, second, first + second} <= self._ids.keys():
                raise TokenizerError(f"merges[{rank}] makes {first + second!r} of {first!r} and {second!r}; "
                                     "not all of them are ordinary tokens of the vocabulary")  # fmt: skip
        self._unknown = bytes(byte for byte in range(256) if bytes([byte]) not in self._ids)
        self._split = splitter(pattern)
        self._cache = PieceCache(self._encode_piece)
        self._found_always = special_pattern(self.added_tokens)
        self._found_if_allowed = special_pattern([*self.special_tokens, *self.added_tokens])

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read a model directory, or a tokenizer.json. The end tokens come from the configs beside it.

        Raises TokenizerError, with the file and the field, for a tokenizer that would not get the right ids here.
        """
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise TokenizerError(f"{file} is missing; it holds the tokenizer's vocabulary and rules")
        try:
            tokenizer = cls.from_json(tokenizer_json.read_json(file))
        except TokenizerError as error:
            raise TokenizerError(f"{file}: {error}") from error
        names = {**tokenizer.added_tokens, **tokenizer.special_tokens}
        tokenizer.eos_ids = tokenizer_json.end_tokens(file.parent, names)
        return tokenizer

    @classmethod
    def from_json(cls, data: Mapping[str, Any], eos_ids: Iterable[int] = ()) -> "Tokenizer":
        """A tokenizer from the content of a tokenizer.json."""
        return cls(**tokenizer_json.parse(data), eos_ids=eos_ids)

    def save(self, path: Path | str) -> None:
        """Write a tokenizer.json that `load` and the tokenizers library read; into a directory, the end tokens too."""
        path = Path(path)
        parts = (self.vocab, self.merges, self.special_tokens, self.added_tokens, self.pattern, self.ignore_merges)
        if path.suffix == ".json":
            write_json(path, tokenizer_json.render(*parts))
            return
        write_json(path / "tokenizer.json", tokenizer_json.render(*parts))
        config = path / "generation_config.json"
        known = tokenizer_json.read_json(config) if config.is_file() else {}
        write_json(config, known | {"eos_token_id": sorted(self.eos_ids)})

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text. Without `allow_special`, no text becomes a special token, whatever it says.

        Bytes that are not in the vocabulary are dropped; SmolLM2's lacks a few control characters.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(f"the text holds half a character (a lone surrogate) at {error.start}") from error
        found = self._found_if_allowed if allow_special else self._found_always
        if found is None:
            return self._encode_ordinary(text)
        names = {**self.special_tokens, **self.added_tokens}
        ids: list[int] = []
        for i, part in enumerate(found.split(text)):
            ids += [names[part]] if i % 2 else self._encode_ordinary(part)
        return ids

    def encode_iterable(self, texts: Iterable[str], allow_special: bool = False) -> Iterator[int]:
        """The ids of one long text that comes in pieces, such as an open file: as if it had been encoded as a whole.

        Only some 16 KB of it are in memory at a time. The pieces may end anywhere, even in the middle of a word.
        """
        names = [*self.special_tokens, *self.added_tokens] if allow_special else self.added_tokens
        for chunk in safe_chunks(texts, self._split, names):
            yield from self.encode(chunk, allow_special)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens included; bytes that aren't a whole character become U+FFFD.

        self.token_bytes(id) are a token's bytes.  One character may be spread over several tokens: "é" is 0xC3 0xA9.
        Raises TokenizerError for an id that no token has.

        >>> Tokenizer({195: b"\\xc3", 169: b"\\xa9"}, []).decode([195, 169])
        'é'
        """
        # exercise 4.5: join the bytes of all the tokens, then make text of them
        data = b"".join(map(self.token_bytes, ids))
        return data.decode("utf-8", errors="replace")
        # end

    def token_bytes(self, id: int) -> bytes:
        """The bytes a token stands for; one character may be spread over several tokens."""
        try:
            return self.vocab[id]
        except KeyError:
            raise TokenizerError(f"no token has the id {id}; there are {self.vocab_size}") from None

    def token_id(self, token: str) -> int:
        """The id of a token given by its name in the vocabulary, such as `<|im_end|>` or `Ġthe`."""
        for names in (self.special_tokens, self.added_tokens):
            if token in names:
                return names[token]
        try:
            return self._ids[to_bytes(token)]
        except (KeyError, TokenizerError):
            raise TokenizerError(f"the vocabulary has no token {token!r}") from None

    def _encode_ordinary(self, text: str) -> list[int]:
        return list(chain.from_iterable(map(self._cache.__getitem__, self._split(text))))

    def _encode_piece(self, piece: str) -> list[int]:
        data = piece.encode().translate(None, self._unknown)
        if self.ignore_merges and data in self._ids:
            return [self._ids[data]]
        tokens = merge_by_rank(data, self._ranks) if len(data) < LONG else merge_long(data, self._ranks)
        return [self._ids[token] for token in tokens]

    def _register(self, names: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
        """Find the ids of special tokens, and give one to each that has none."""
        if not isinstance(names, Mapping):
            known = {token: id for id, token in self.vocab.items()}
            free = max(self.vocab, default=-1) + 1
            missing = [name for name in dict.fromkeys(names) if name.encode() not in known]
            given = dict(zip(missing, range(free, free + len(missing)), strict=True))
            names = {name: known.get(name.encode(), given.get(name, -1)) for name in names}
        self.vocab |= {id: name.encode() for name, id in names.items()}
        return dict(names)
