"""Exercise 14.7: judged by which key is found, and by what is compared on the way."""

import hashlib
import hmac
import secrets

import pytest

from chapters.ch14_service import keys
from chapters.judge import exercise, expect, expect_equal
from tests.ch14_service.scenes import survives

NAMES = ("alice", "bob", "carol", "dan")


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def ring() -> keys.KeyRing:
    return keys.KeyRing([keys.Key(name, digest_of(f"sk-{name}")) for name in NAMES])


def find(which: keys.KeyRing, presented: str | bytes) -> keys.Key | None:
    with survives("anybody may present anything; what is no key gives None"):
        return which.find(presented)


@exercise("14.7")
def test_each_key_is_found():
    which = ring()
    for name, key in zip(NAMES, which.keys, strict=True):
        got = find(which, f"sk-{name}")
        expect(
            got is key,
            because=f"{name}'s key should find {name}'s entry, and found {got!r}. The digest is hash_key of what was "
            "presented; and a key that was found must not be lost when the next one doesn't match",
        )


@exercise("14.7")
def test_wrong_keys_are_not():
    which = ring()
    for presented in ("", "sk-", "sk-alic", "sk-alicee", "SK-ALICE", "alice", "sk-alice ", "ключ"):
        expect_equal(find(which, presented), None, because=f"{presented!r} is nobody's key")
    expect_equal(
        find(which, digest_of("sk-alice")),
        None,
        because="the digest itself isn't the key: whoever steals the file of hashes mustn't get in with one of them. "
        "Hash what was presented, whatever it looks like",
    )
    expect_equal(find(keys.KeyRing(), "sk-alice"), None, because="a ring without keys lets nobody in")


@exercise("14.7")
def test_all_digits_count():
    digest = digest_of("sk-alice")
    for place in (0, 31, 63):
        other = digest[:place] + ("0" if digest[place] != "0" else "1") + digest[place + 1 :]
        expect_equal(
            find(keys.KeyRing([keys.Key("almost", other)]), "sk-alice"),
            None,
            because=f"the digests differ in digit {place + 1} of 64, so it's another key: compare all of them",
        )


@exercise("14.7")
def test_bytes_and_any_letters():
    which = keys.KeyRing([keys.Key("a", digest_of("clé-秘密")), keys.Key("b", digest_of("sk-bob"))])
    expect(find(which, "clé-秘密") is which.keys[0], because="a key may hold any letters; hash_key knows how")
    expect(find(which, b"sk-bob") is which.keys[1], because="keys may come as bytes, as they stood in the header")
    expect_equal(find(which, b"\xff\xfe"), None, because="bytes that are no text are nobody's key")


class Spy(str):
    """A digest that writes down whenever it's compared the ordinary way."""

    seen: list[str] = []

    def __eq__(self, other: object) -> bool:
        Spy.seen.append("==")
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        Spy.seen.append("==")
        return str.__ne__(self, other)

    __hash__ = str.__hash__


@exercise("14.7")
def test_all_are_compared_and_by_compare_digest(monkeypatch: pytest.MonkeyPatch):
    compared: list[int] = []
    real = hmac.compare_digest

    def compare(a, b) -> bool:
        compared.append(1)
        as_text = [str(each) if isinstance(each, str) else each for each in (a, b)]
        return real(*as_text)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    monkeypatch.setattr(secrets, "compare_digest", compare)
    which = keys.KeyRing([keys.Key(name, Spy(digest_of(f"sk-{name}"))) for name in NAMES])
    Spy.seen, counts = [], []
    for presented in ("sk-alice", "sk-dan", "sk-nobody", "sk-alice"):
        compared.clear()
        find(which, presented)
        counts.append(len(compared))
    expect(
        not Spy.seen,
        because="a digest was compared with ==, which stops at the first letter that differs, and so takes longer the "
        "more of it is right. hmac.compare_digest looks at all of it",
    )
    expect(
        any(counts),
        because="no digest was compared with hmac.compare_digest: a look-up in a set or a dict takes a time that "
        "depends on what is in it",
    )
    expect(
        counts[0] == len(NAMES),
        because=f"alice's key is the first of four, and only {counts[0]} were compared: whoever leaves at the "
        "first match tells by its haste which key it was. Go on to the end",
    )
    expect_equal(
        counts,
        [len(NAMES)] * 4,
        because="every key's digest is compared once, whoever asks, and whether it's the first time or not",
    )
