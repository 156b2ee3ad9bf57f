"""Exercise 10.5: judged by the properties that a name must have."""

import importlib.util
import random
from collections.abc import Sequence

import pytest

from chapters.ch10_paged_kv_cache import block_manager
from chapters.judge import NO_RESULT, Rejected, crash_means, exercise, expect, expect_equal

BEGIN = bytes(range(16))


def name(before: bytes, token_ids: Sequence[int]) -> bytes:
    given = list(token_ids)
    with crash_means("a name must be possible for any ids: 49,151 needs more than a byte or two with a sign"):
        got = block_manager.block_name(before, given)
    expect(given == list(token_ids), because="the ids were changed, and they belong to the request: only read them")
    expect(got is not None, because=NO_RESULT)
    expect(isinstance(got, bytes), because=f"a name is bytes; yours is of type {type(got).__name__}")
    return got


@pytest.fixture
def no_builtin_hash(monkeypatch):
    def refuse(value: object) -> int:
        raise Rejected(
            "hash() was called",
            "the built-in hash() is made for dictionaries: it differs from process to process for bytes and strings, "
            "and an answer from the wrong block is what two equal hashes cost. Take hashlib",
        )

    monkeypatch.setattr(block_manager, "hash", refuse, raising=False)


@exercise("10.5")
@pytest.mark.usefixtures("no_builtin_hash")
def test_the_same_is_called_the_same():
    expect_equal(
        name(BEGIN, [5, 6, 7, 8]),
        name(BEGIN, [5, 6, 7, 8]),
        because="the same tokens after the same beginning: one name",
    )
    spec = block_manager.__spec__
    again = importlib.util.module_from_spec(spec)  # as another process would load it
    spec.loader.exec_module(again)
    expect_equal(
        again.block_name(BEGIN, [5, 6, 7, 8]),
        name(BEGIN, [5, 6, 7, 8]),
        because="loaded anew, the module gives another name: nothing that differs from process to process may be in it",
    )


@exercise("10.5")
def test_other_tokens_another_name():
    expect(name(BEGIN, [5, 6, 7, 8]) != name(BEGIN, [5, 6, 7, 9]), because="other tokens must have another name")
    expect(
        name(BEGIN, [5, 6, 7, 8]) != name(BEGIN, [8, 7, 6, 5]),
        because="the order of the tokens counts: a sum, a set or sorted ids don't know it",
    )
    expect(
        name(BEGIN, [1, 23, 4]) != name(BEGIN, [12, 3, 4]),
        because="[1, 23] and [12, 3] are the same text when ids are written one behind the other: 123. Give each id "
        "as many bytes as every other",
    )


@exercise("10.5")
def test_large_ids():
    expect(
        name(BEGIN, [44]) != name(BEGIN, [300]) and name(BEGIN, [0]) != name(BEGIN, [65536]),
        because="ids reach beyond 255 and, in some vocabularies, beyond 65,535: with one or two bytes each, different "
        "ids become equal",
    )
    name(BEGIN, [49_151, 151_642])


@exercise("10.5")
def test_every_token_counts():
    tokens = list(range(100, 116))
    for place in range(16):
        other = [*tokens[:place], 7, *tokens[place + 1 :]]
        expect(
            name(BEGIN, tokens) != name(BEGIN, other),
            because=f"two blocks of sixteen tokens that differ at place {place} have the same name: all must be hashed",
        )


@exercise("10.5")
def test_the_beginning_is_in_the_name():
    expect(
        name(BEGIN, [5, 6]) != name(bytes(16), [5, 6]),
        because="after another beginning the same tokens have other keys and values (attention has mixed what came "
        "before into them), so they need another name: hash `before` as well",
    )


@exercise("10.5")
def test_a_chain_knows_the_order_of_its_blocks():
    a, b = [1, 2], [3, 4]
    expect(
        name(name(BEGIN, a), b) != name(name(BEGIN, b), a),
        because="block a and then b, or b and then a: the two ends have the same name. XOR and plus forget the order; "
        "hash the two together",
    )
    expect(
        name(name(BEGIN, a), a) != BEGIN,
        because="the same block twice leads back to the name before: XOR undoes itself",
    )


@exercise("10.5")
def test_sixteen_bytes():
    expect_equal(
        len(name(BEGIN, [5, 6])),
        16,
        because="16 bytes: with four of them, two of some 80,000 blocks share a name, and one request reads another's "
        "text; with as many as the tokens have, names grow along the chain",
    )
    expect_equal(len(name(name(BEGIN, [1] * 50), [2] * 50)), 16, because="a name doesn't grow along the chain")


@exercise("10.5")
def test_no_two_of_many():
    rng = random.Random(0)
    seen: dict[bytes, tuple[bytes, tuple[int, ...]]] = {}
    names = [BEGIN]
    for _ in range(2000):
        key = (rng.choice(names), tuple(rng.choice([0, 1, 2, 255, 256, 300]) for _ in range(3)))
        got = name(*key)
        expect(seen.setdefault(got, key) == key, because=f"{key} and {seen[got]} have the same name")
        names.append(got)
    columns = list(zip(*seen, strict=True))  # each of the bytes, over all names
    varied = {column for column in columns if len(set(column)) > 200}
    expect(
        len(varied) == 16,
        because=f"of a name's 16 bytes only {len(varied)} say something of their own: others repeat them, or take few "
        "values. A short hash (crc32, Python's hash) that is made longer stays short; take 16 bytes of a long one",
    )
