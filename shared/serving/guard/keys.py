"""API keys: known by their hashes alone, compared in constant time, each with its limits."""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMITS = ("requests_per_minute", "tokens_per_minute", "max_waiting")
LOWEST, HIGHEST = 1e-3, 1e9  # of a limit; beyond them there is a mistake, or numbers that can't be reckoned with


class KeyFileError(ValueError):
    """A key file that can't be used; the message names the file and the line."""


@dataclass(frozen=True)
class Key:
    """Who may call, and how much. digest: hash_key of the key, which itself is kept nowhere. Limits of None: none."""

    name: str
    digest: str
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_waiting: int | None = None
    admin: bool = False


def hash_key(presented: str | bytes) -> str:
    """SHA-256, as 64 hexadecimal digits; a str in UTF-8. No salt and no slow hash: keys are long and random, so that
    nobody can guess them one by one, as one can the passwords that people think of."""
    data = presented.encode(errors="surrogatepass") if isinstance(presented, str) else presented
    return hashlib.sha256(data).hexdigest()


def new_key() -> str:
    """A new key of 256 random bits."""
    return "sk-" + secrets.token_urlsafe(32)


def check_digest(digest: Any) -> str:
    """The digest. Raises ValueError unless it may be a key's."""
    if not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
        raise ValueError("sha256 must be the key's SHA-256 in 64 hexadecimal digits (printf %s KEY | sha256sum)")
    if digest == hash_key(""):  # what that command makes of a variable that isn't set
        raise ValueError("sha256 is that of an empty text, which everybody can present; was KEY empty?")
    return str(digest)


class KeyRing:
    """All keys of a server. Raises ValueError when two have the same name or are the same, or a digest is no key's."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)
        for key in self.keys:
            check_digest(key.digest)
        if len({key.name for key in self.keys}) < len(self.keys):
            raise ValueError("two keys have the same name; names tell callers apart in logs, metrics and the queue")
        if len({key.digest for key in self.keys}) < len(self.keys):
            raise ValueError("the same key is there twice, under two names")

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, presented: str | bytes) -> Key | None:
        """The key whose digest is that of what was presented, or None; nothing at all is nobody's key.

        Takes the same time for any key of the ring and for none: its hash is compared with every key's digest, by
        hmac.compare_digest, which looks at all digits even if the first are different.
        """
        if not presented:
            return None
        # exercise 14.7: hash_key of what was presented; compare it with every digest, also after one was found
        digest, found = hash_key(presented), None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found
        # end

    @classmethod
    def load(cls, path: Path | None = None, api_key: str | None = None, admin_key: str | None = None) -> "KeyRing":
        """The keys of a file, and those of the environment: api_key (named "default") and admin_key ("admin").

        The file has a JSON object a line: {"name": "alice", "sha256": "…", "requests_per_minute": 60}; beside the name
        and the hash any of requests_per_minute, tokens_per_minute, max_waiting and admin. Empty lines and those that
        begin with # are passed over. Raises KeyFileError, which repeats nothing of the file but the names of the fields
        above: anything else might be a key, put in the wrong place.
        """
        keys = [] if path is None else read_keys(path)
        keys += [Key("default", hash_key(api_key))] if api_key else []
        keys += [Key("admin", hash_key(admin_key), admin=True)] if admin_key else []
        try:
            return cls(keys)
        except ValueError as error:
            raise KeyFileError(f"{path or 'API_KEY and ADMIN_KEY'}: {error}") from None


def read_keys(path: Path) -> list[Key]:
    """The keys of a file. Raises KeyFileError."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # some editors put a mark before the first line
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: can't be read: {error}") from None
    keys = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                keys.append(_parse(json.loads(line, object_pairs_hook=_once_each)))
            except json.JSONDecodeError as error:
                raise KeyFileError(f"{path}, line {number}: not JSON: {error.msg}") from None
            except RecursionError:
                raise KeyFileError(f"{path}, line {number}: not a key: too many brackets") from None
            except ValueError as error:
                raise KeyFileError(f"{path}, line {number}: {error}") from None
    return keys


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object's fields. Raises ValueError when one is there twice, since only the last would count."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is there twice; keep one of them")
    return fields


def _parse(entry: Any) -> Key:
    """A line of the file as a Key. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError('must be an object, as {"name": "alice", "sha256": "…"}')
    name, digest = entry.get("name"), entry.get("sha256")
    if not isinstance(name, str) or not name:
        raise ValueError("name is missing: a text that tells this caller from others")
    if name.startswith("sk-"):
        raise ValueError("name begins with sk-, as keys do, and names are shown in logs; give it a name that is no key")
    if "key" in entry:
        raise ValueError("key: keys aren't kept in the clear; write the hash as sha256 (printf %s KEY | sha256sum)")
    digest = check_digest(digest.lower() if isinstance(digest, str) else digest)
    for place, field in enumerate(entry, start=1):
        if field not in ("name", "sha256", "admin", *LIMITS):
            raise ValueError(
                f"field {place} is no setting; beside name and sha256 there are {', '.join(LIMITS)}, admin"
            )
    if type(entry.get("admin", False)) is not bool:
        raise ValueError("admin must be true or false")
    for field in LIMITS:
        value = entry.get(field)
        number = isinstance(value, int | float) and not isinstance(value, bool) and LOWEST <= value <= HIGHEST
        if value is not None and not (number and (field != "max_waiting" or isinstance(value, int))):
            kind = "a whole number" if field == "max_waiting" else "a number"
            raise ValueError(f"{field} must be {kind} above 0, from {LOWEST} to {HIGHEST:,.0f}")
    return Key(name, digest, admin=entry.get("admin", False), **{field: entry.get(field) for field in LIMITS})
