"""The file of keys: what it may hold, what is found by a key, and a bad line is named without giving a key away."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from shared.serving.guard.keys import Key, KeyFileError, KeyRing, hash_key, new_key


def write(folder: Path, *lines: str) -> Path:
    path = folder / "keys.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def entry(name: str, key: str, **limits) -> str:
    return json.dumps({"name": name, "sha256": sha256(key.encode()).hexdigest(), **limits})


def test_keys_of_a_file_and_of_the_environment(tmp_path):
    alice = entry("alice", "sk-a", requests_per_minute=60, max_waiting=4)
    path = write(tmp_path, "# who may call", "", alice, entry("root", "sk-r", admin=True))
    ring = KeyRing.load(path, api_key="sk-env", admin_key="sk-op")
    assert [key.name for key in ring.keys] == ["alice", "root", "default", "admin"]
    alice = ring.find("sk-a")
    assert (alice.requests_per_minute, alice.tokens_per_minute, alice.max_waiting, alice.admin) == (60, None, 4, False)
    assert ring.find("sk-r").admin
    assert ring.find("sk-op").admin
    assert not ring.find("sk-env").admin
    assert len(KeyRing.load()) == 0


def test_a_digest_may_be_written_in_capitals(tmp_path):
    path = write(tmp_path, json.dumps({"name": "a", "sha256": sha256(b"sk-a").hexdigest().upper()}))
    assert KeyRing.load(path).find("sk-a").name == "a"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "must be an object"),
        ('{"sha256": "x"}', "name is missing"),
        ('{"name": "", "sha256": "x"}', "name is missing"),
        ('{"name": "a"}', "64 hexadecimal digits"),
        ('{"name": "a", "sha256": "' + "g" * 64 + '"}', "64 hexadecimal digits"),
        ('{"name": "a", "key": "sk-secret"}', "aren't kept in the clear"),
        (entry("sk-secret", "k"), "name begins with sk-"),
        (entry("a", ""), "sha256 is that of an empty text"),
        ('{"name": "a", "sk-secret": "x", "sha256": "' + "a" * 64 + '"}', "field 2 is no setting"),
        ('{"name": "a", "name": "b"}', "a field is there twice"),
        ("[" * 100_000, "too many brackets"),
        (entry("a", "k", requests_per_minute="sk-secret"), "requests_per_minute must be a number above 0"),
        (entry("a", "k", requests_per_hour=3), "field 3 is no setting"),
        (entry("a", "k", requests_per_minute=0), "requests_per_minute must be a number above 0"),
        (entry("a", "k", requests_per_minute=True), "requests_per_minute must be a number above 0"),
        (entry("a", "k", tokens_per_minute=-1), "tokens_per_minute must be a number above 0"),
        (entry("a", "k", max_waiting=1.5), "max_waiting must be a whole number"),
        (entry("a", "k", admin="yes"), "admin must be true or false"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, says):
    path = write(tmp_path, "# keys", entry("fine", "sk-fine"), line)
    with pytest.raises(KeyFileError, match=says) as error:
        KeyRing.load(path)
    assert f"{path}, line 3" in str(error.value)
    assert "sk-secret" not in str(error.value)


def test_the_same_twice_and_no_file(tmp_path):
    for lines, says in (
        ((entry("a", "x"), entry("a", "y")), "the same name"),
        ((entry("a", "x"), entry("b", "x")), "the same key is there twice"),
    ):
        with pytest.raises(KeyFileError, match=says):
            KeyRing.load(write(tmp_path, *lines))
    with pytest.raises(KeyFileError, match="can't be read"):
        KeyRing.load(tmp_path / "none.jsonl")
    (tmp_path / "keys.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeyFileError, match="can't be read"):
        KeyRing.load(tmp_path / "keys.jsonl")


def test_nothing_is_no_key():
    """`Authorization: Bearer`, with nothing behind it, against the hash that an unset variable gives."""
    for digest in (sha256(b"").hexdigest(), sha256(b"k").hexdigest().upper(), "é", "", None):
        with pytest.raises(ValueError, match="sha256"):
            KeyRing([Key("a", digest)])
    ring = KeyRing([Key("a", hash_key("k"))])
    assert [ring.find(presented) for presented in ("", b"", "\ud800")] == [None] * 3


def test_new_keys():
    made = {new_key() for _ in range(50)}
    assert len(made) == 50
    assert all(len(key) > 40 and key.isascii() for key in made)
    assert hash_key("é") == hash_key("é".encode()) == sha256("é".encode()).hexdigest()
    assert KeyRing([Key("a", hash_key("é"))]).find("é".encode()).name == "a"
