"""Exercise 4.6: judged by what is encoded again, and when."""

import threading
from collections import OrderedDict

import pytest

from chapters.ch04_tokenizer import token_cache
from chapters.judge import exercise, expect, expect_equal


class Encoder:
    """Text -> bytes, and a record of what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.asked.append(str(text))
        return list(text.encode())


def asked(texts: str, capacity: int) -> str:
    """Which of these one-letter texts, asked for in this order, had to be encoded."""
    encoder = Encoder()
    cache = token_cache.TokenCache(encoder, capacity)
    for text in texts:
        cache.encode(text)
    return "".join(encoder.asked)


@exercise("4.6")
def test_the_same_text_is_encoded_once():
    encoder = Encoder()
    cache = token_cache.TokenCache(encoder)
    got = [cache.encode("hello") for _ in range(3)]
    expect_equal(got, [list(b"hello")] * 3, because="a hit must give the ids that the miss gave, as a list")
    expect_equal(encoder.asked, ["hello"], because="the second and third time the ids come from the cache")


@exercise("4.6")
def test_hits_and_misses_are_counted():
    cache = token_cache.TokenCache(Encoder())
    for text in ("a", "b", "a", "a"):
        cache.encode(text)
    expect_equal((cache.hits, cache.misses), (2, 2), because="a, b are misses; a, a are hits")


@exercise("4.6")
def test_no_ids_are_an_entry_too():
    cache = token_cache.TokenCache(lambda text: [])
    got = [cache.encode("") for _ in range(2)]
    expect_equal(got, [[], []], because="the text's ids are an empty list, both times")
    expect_equal(
        (cache.hits, cache.misses),
        (1, 1),
        because="the second time the text is in the cache, with no ids. An empty entry counts as false: 'if found := "
        "...' takes it for a miss; ask whether the key is in self._entries",
    )


class Colliding(str):
    """Texts that all have the same hash. For ordinary ones it happens by chance, one day, and can't be repeated."""

    __slots__ = ()
    __eq__ = str.__eq__

    def __hash__(self) -> int:
        return 42


@exercise("4.6")
def test_equal_hashes_are_not_equal_texts():
    cache = token_cache.TokenCache(Encoder())
    got = [cache.encode(Colliding("yours")), cache.encode(Colliding("mine"))]
    expect_equal(
        got,
        [list(b"yours"), list(b"mine")],
        because="two texts with the same hash got the same ids: somebody is answered from another one's text. "
        "The key must be the text (self._key), not hash(text): a dict hashes it by itself, and then "
        "compares",
    )


@exercise("4.6")
def test_the_key_function_is_used():
    cache = token_cache.TokenCache(Encoder(), key=str.lower)
    cache.encode("A")
    cache.encode("a")
    expect_equal(cache.hits, 1, because="texts are filed under self._key(text), which may be a digest of the text")


@exercise("4.6")
def test_it_is_bounded():
    cache = token_cache.TokenCache(Encoder(), capacity=10)
    for i in range(1000):
        cache.encode(str(i))
    expect_equal(
        len(cache),
        10,
        because="after 1000 different texts a cache for 10 holds 10; one that only grows takes the server's "
        "memory in the end",
    )


@exercise("4.6")
def test_the_least_recently_used_goes():
    expect_equal(
        asked("abcab", 2),
        "abcab",
        because="c takes a's place and then a takes b's: with room for two nothing is found here. If fewer were "
        "encoded, the newest entry was removed, or the bound is off by one",
    )
    expect_equal(
        asked("abacaba", 2),
        "abcb",
        because="a is used again and again and must stay; mark it as used at every hit (move_to_end), or else the "
        "oldest entry goes, however popular it is",
    )


@exercise("4.6")
def test_the_newest_stays():
    expect_equal(
        asked("abcc", 2),
        "abc",
        because="c has just come in and is asked for again: when there is no room, the entry used longest ago "
        "goes (popitem(last=False)), not the newest",
    )


@exercise("4.6")
@pytest.mark.parametrize("earlier", [0, 1])
def test_callers_cannot_change_the_cache(earlier):
    cache = token_cache.TokenCache(Encoder())
    for _ in range(earlier):
        cache.encode("abc")
    ids = cache.encode("abc")
    ids.append(999)
    expect_equal(
        cache.encode("abc"),
        list(b"abc"),
        because="the caller appended to its list, as generation does, and the next caller gets the change: hand "
        "out a copy, on a hit and on a miss",
    )


@exercise("4.6")
def test_a_long_text_keeps_nobody_waiting():
    started, may_finish = threading.Event(), threading.Event()

    def encode(text: str) -> list[int]:
        if text == "long":
            started.set()
            may_finish.wait(10)
        return [len(text)]

    cache = token_cache.TokenCache(encode)
    cache.encode("known")
    slow = threading.Thread(target=cache.encode, args=("long",))
    quick = threading.Thread(target=cache.encode, args=("known",))
    slow.start()
    started.wait(10)
    quick.start()
    quick.join(2)
    waited = quick.is_alive()
    may_finish.set()
    slow.join()
    quick.join()
    expect(started.is_set(), because="the text that isn't in the cache must be encoded with self._encode")
    expect(
        not waited,
        because="while one thread encodes a long text, another can't get at ids that are there already: "
        "encode outside the lock",
    )


@exercise("4.6")
def test_nothing_is_stored_before_it_is_known():
    started, may_finish = threading.Event(), threading.Event()
    got: list[object] = []

    def encode(text: str) -> list[int]:
        started.set()
        may_finish.wait(10)
        return [len(text)]

    def ask() -> None:
        try:
            got.append(cache.encode("long"))
        except Exception as error:  # raised below, in the test's own thread
            got.append(error)
            started.set()

    cache = token_cache.TokenCache(encode)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    started.wait(10)
    threads[1].start()
    threads[1].join(0.1)
    may_finish.set()
    for thread in threads:
        thread.join()
    for error in got:
        if isinstance(error, Exception):
            raise error
    expect_equal(
        got,
        [[4], [4]],
        because="while one thread was encoding the text another one asked for it, and got an entry without its ids: "
        "store it when the ids are there, not at the miss",
    )


class Held(OrderedDict):
    """Entries that note which methods were called while nobody held the lock."""

    def __init__(self, lock: threading.Lock, unheld: list[str]) -> None:
        super().__init__()
        self.lock, self.unheld = lock, unheld


def noting(name: str):
    def method(self: Held, *arguments, **named):
        if not self.lock.locked():
            self.unheld.append(name)
        return getattr(OrderedDict, name)(self, *arguments, **named)

    return method


for _name in ("__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__", "get", "pop", ""
              "popitem",
              "move_to_end", "setdefault", "keys", "values", "items"):  # fmt: skip
    setattr(Held, _name, noting(_name))


class Counting(token_cache.TokenCache):
    """A cache that notes whether hits or misses were counted while nobody held the lock."""

    unheld: list[str] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        if self.unheld is not None and name in ("hits", "misses") and not self._lock.locked():
            self.unheld.append(name)
        super().__setattr__(name, value)


@exercise("4.6")
def test_everything_shared_is_touched_under_the_lock():
    """A race hardly ever shows; whether the lock is held shows every time."""
    cache, entries, counts = Counting(Encoder(), capacity=1), [], []
    cache._entries = Held(cache._lock, entries)
    cache.unheld = counts
    for text in ("a", "a", "b", "b"):
        cache.encode(text)
    expect(
        not entries,
        because=f"self._entries was used ({', '.join(dict.fromkeys(entries))}) while the lock was not held. Two "
        "threads that change it at once can break the order of its entries: look up and store inside 'with "
        "self._lock:'",
    )
    expect(
        not counts,
        because=f"self.{', self.'.join(dict.fromkeys(counts))} counted while the lock was not held. += reads, adds and "
        "writes, and of two threads at once one is forgotten: count inside 'with self._lock:'",
    )


@exercise("4.6")
def test_many_threads():
    cache = token_cache.TokenCache(lambda text: [int(text)], capacity=8)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for i in range(2000):
            text = str((i * seed) % 16)
            try:
                if cache.encode(text) != [int(text)]:
                    wrong.append(text)
            except Exception as error:  # any error at all is what this test looks for
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in wrong:
        if isinstance(error, Exception):
            raise error
    expect_equal(wrong, [], because="with four threads some calls got another text's ids")
    expect_equal(cache.hits + cache.misses, 8000, because="every call is a hit or a miss, with four threads too")
    expect(len(cache) <= 8, because="the bound must hold with four threads too")
