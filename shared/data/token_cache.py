"""A cache from texts to their ids: what is asked for again and again, such as a system prompt, is tokenised once."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable


def whole_text(text: str) -> str:
    """The text is its own key: two texts share an entry only if they are equal."""
    return text


def sha256(text: str) -> bytes:
    """32 bytes in place of a text of any length. That two texts share them is thinkable, and has never been seen."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()  # what to do about halves is encode's to say


class TokenCache:
    """The `capacity` texts used last and their ids; the least recently used one makes room for a new one.

    encode: text -> ids, such as `tokenizer.encode`.  A cache belongs to one such function: another tokenizer, or other
    settings, need a cache of their own.  key: what a text is filed under.  Any number of threads may use a cache.
    hits, misses: how many calls found their text, and how many didn't.  Raises ValueError for a capacity below 1.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        capacity: int = 10_000,
        key: Callable[[str], Hashable] = whole_text,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._encode, self._capacity, self._key = encode, capacity, key
        self._entries: OrderedDict[Hashable, tuple[int, ...]] = OrderedDict()  # the least recently used comes first
        self._lock = threading.Lock()
        self.hits = self.misses = 0

    def encode(self, text: str) -> list[int]:
        """The text's ids, from the cache if it has them. The list is the caller's own: changing it changes no entry.

        Looking up and storing happen under the lock; encoding doesn't, for a long text must not make all others wait.

        >>> cache = TokenCache(lambda text: list(text.encode()), capacity=2)
        >>> [cache.encode(text) for text in ("a", "b", "a", "c", "a")]  # "c" takes the place of "b"
        [[97], [98], [97], [99], [97]]
        >>> cache.hits, cache.misses
        (2, 3)
        """
        # exercise 4.6: look up self._key(text); on a miss call self._encode and store, and keep to the capacity
        #   OrderedDict: move_to_end(key) marks an entry as used, popitem(last=False) removes the one used longest ago
        key = self._key(text)
        with self._lock:
            if key in self._entries:
                self.hits += 1
                self._entries.move_to_end(key)
                return list(self._entries[key])
            self.misses += 1
        ids = self._encode(text)
        with self._lock:
            self._entries[key] = tuple(ids)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        return list(ids)
        # end

    def __len__(self) -> int:
        return len(self._entries)
