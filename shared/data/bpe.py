"""Training a byte-level BPE: which pairs of neighbours occur most often, and become tokens (Sennrich et al. 2016).

A text is cut into pretokens, and each different one is kept once, with how often it occurs. The pairs are counted once,
too. From then on a merge looks only at the words that hold its pair, and corrects the counts by the difference.
"""

import codecs
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from shared.data.pretokens import GPT2, Split, safe_chunks, special_pattern, splitter
from shared.measure.progress import progress_bar

Pair = tuple[bytes, bytes]
Word = list[bytes]  # a pretoken as the tokens it consists of so far


def train_bpe(
    path: Path | str,
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    pattern: str = GPT2,
    progress: bool = False,
) -> tuple[dict[int, bytes], list[Pair]]:
    """Learn a vocabulary from a text file (UTF-8), which is read in pieces and never as a whole.

    Ids: the 256 bytes are their own ids, the special tokens follow in the order given, then one token for each merge.
    Special tokens cut the text and are never merged across. Equally frequent pairs: the greater one (as bytes) first.
    The vocabulary stays smaller than vocab_size when no pair is left. Returns (vocab, merges in the order learnt).
    Raises ValueError for a vocab_size without room for bytes and special tokens, and for a file that isn't UTF-8.
    """
    if len(set(special_tokens)) < len(special_tokens):
        raise ValueError(f"special_tokens has a token twice: {', '.join(special_tokens)}")
    vocab = dict(enumerate([bytes([byte]) for byte in range(256)] + [token.encode() for token in special_tokens]))
    if vocab_size < len(vocab):
        special = f"{len(special_tokens)} special tokens"
        raise ValueError(f"vocab_size must be at least {len(vocab)}, for 256 bytes and {special}; got {vocab_size}")
    split, pretokens = splitter(pattern), Counter[str]()
    blocks = -(-Path(path).stat().st_size // BLOCK)
    with progress_bar("reading", blocks, progress) as step:
        for text in safe_chunks(read_text(path, step), split, special_tokens, size=BLOCK // 4):
            pretokens.update(count_pretokens(text, split, special_tokens))
    merges: list[Pair] = []
    known = set(vocab.values())
    with progress_bar("merges", vocab_size - len(vocab), progress) as step:
        learnt = learn_merges(pretokens)
        while len(vocab) < vocab_size and (found := next(learnt, None)):
            merges.append(found[0])
            token = b"".join(found[0])
            if token not in known:  # "abc" may come of "ab" and "c" and once more of "a" and "bc"
                known.add(token)
                vocab[len(vocab)] = token
            step()
    return vocab, merges


def count_pretokens(text: str, split: Split, special_tokens: Collection[str] = ()) -> Counter[str]:
    """How often each pretoken occurs.  Special tokens cut the text and aren't counted.

    split: cuts a text without special tokens into its pretokens.  special_pattern(special_tokens) is a regex with
    `.split(text)` -> [text, token, text, ..., text], or None when there are no special tokens.

    >>> count_pretokens("to be<|end|>to be", splitter(), ["<|end|>"])
    Counter({'to': 2, ' be': 2})
    """
    # exercise 4.1: cut the text at its special tokens, then count the pretokens of every part
    special = special_pattern(special_tokens)
    parts = special.split(text)[::2] if special else [text]
    counts = Counter[str]()
    for part in parts:
        counts.update(split(part))
    return counts
    # end


class Later(tuple[bytes, bytes]):
    """A pair that sorts the other way round, so that a heap, which gives the smallest first, gives the greatest."""

    __slots__ = ()
    __lt__ = tuple.__gt__


def pop_most_frequent(heap: list[tuple[int, Later]], pair_counts: Mapping[Pair, int]) -> Pair | None:
    """Take the most frequent pair off the heap; among equals the greater pair. None when the heap holds no valid entry.

    heap: of (-count, Later(pair)), by heapq.  A count that changes gets a new entry, and the old one stays where it
    is: an entry is valid only if its count is the one in pair_counts, and all others are to be thrown away.

    >>> heap = [(-5, Later((b"t", b"h"))), (-3, Later((b"a", b"b"))), (-3, Later((b"a", b"n")))]  # "th" is down to 2
    >>> pop_most_frequent(heap, {(b"t", b"h"): 2, (b"a", b"b"): 3, (b"a", b"n"): 3})
    (b'a', b'n')
    """
    # exercise 4.2: pop entries until one is valid
    while heap:
        negative_count, pair = heapq.heappop(heap)
        if pair_counts.get(pair, 0) == -negative_count:
            return pair[0], pair[1]
    return None
    # end


def merge_pair(word: Word, pair: Pair) -> Word:
    """The word with the pair made one token, from left to right wherever it stands.

    >>> merge_pair([b"a", b"a", b"a", b"b"], (b"a", b"a"))
    [b'aa', b'a', b'b']
    """
    merged, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            merged.append(word[i] + word[i + 1])
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return merged


def apply_merge(
    pair: Pair, words: list[Word], frequencies: Sequence[int], where: defaultdict[Pair, set[int]]
) -> Counter[Pair]:
    """Merge the pair in every word that holds it, in place, and say by how much each pair's count changes.

    words[i] occurs frequencies[i] times.  where[pair]: the numbers of the words that hold it (and perhaps of some that
    no longer do); the pairs a merge creates must be added.  Looks at no other word.

    >>> words, where = [[b"t", b"h", b"e"]], defaultdict(set, {(b"t", b"h"): {0}, (b"h", b"e"): {0}})
    >>> change = apply_merge((b"t", b"h"), words, [7], where)
    >>> words, dict(change)
    ([[b'th', b'e']], {(b't', b'h'): -7, (b'h', b'e'): -7, (b'th', b'e'): 7})
    """
    # exercise 4.3: for each word in where[pair] take its old pairs off, merge_pair, then put its new pairs on
    #   a pair that stands in the word before and after cancels out
    change = Counter[Pair]()
    for i in where.pop(pair):
        for old in pairwise(words[i]):
            change[old] -= frequencies[i]
        words[i] = merge_pair(words[i], pair)
        for new in pairwise(words[i]):
            change[new] += frequencies[i]
            where[new].add(i)
    return change
    # end


def learn_merges(pretokens: Mapping[str, int]) -> Iterator[tuple[Pair, int]]:
    """The merges, most frequent first, as (pair, how often it occurred); endless until no pair is left.

    >>> list(learn_merges({"hug": 10, "hugs": 5}))
    [((b'u', b'g'), 15), ((b'h', b'ug'), 15), ((b'hug', b's'), 5)]
    """
    words = [[bytes([byte]) for byte in pretoken.encode()] for pretoken in pretokens]
    frequencies = list(pretokens.values())
    pair_counts: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    for i, word in enumerate(words):
        for pair in pairwise(word):
            pair_counts[pair] += frequencies[i]
            where[pair].add(i)
    heap = [(-count, Later(pair)) for pair, count in pair_counts.items()]
    heapq.heapify(heap)
    while (best := pop_most_frequent(heap, pair_counts)) is not None:
        yield best, pair_counts[best]
        for pair, difference in apply_merge(best, words, frequencies, where).items():
            pair_counts[pair] += difference
            if pair_counts[pair] <= 0:
                del pair_counts[pair]
            elif difference:
                heapq.heappush(heap, (-pair_counts[pair], Later(pair)))


BLOCK = 2**20  # bytes


def read_text(path: Path | str, step: Callable[[], None] = lambda: None) -> Iterator[str]:
    """A UTF-8 file in blocks of a megabyte; `step` is called after each. ValueError names the place of a bad byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK)
            started = position - len(decoder.getstate()[0])  # half a character may be left from the block before
            try:
                yield decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} is not UTF-8 at byte {started + error.start} ({error.reason}); chapter 2's cleaning finds "
                    "and removes such lines"
                ) from None
            if not block:
                return
            position += len(block)
            step()
