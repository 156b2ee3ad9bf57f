"""The token cache's keys, and the time that one endless pretoken takes."""

import hashlib
import time

import pytest

from shared.data.token_cache import TokenCache, sha256
from shared.data.tokenizer import Tokenizer, TokenizerError, merge_long


def test_the_digest_is_sha256():
    assert sha256("café") == hashlib.sha256(b"caf\xc3\xa9").digest()


def test_what_is_wrong_with_a_text_is_for_the_tokenizer_to_say():
    """A lone surrogate has no UTF-8; with a digest as the key the answer must be the same as without."""
    tokenizer = Tokenizer({byte: bytes([byte]) for byte in range(256)}, [])
    for cache in (TokenCache(tokenizer.encode), TokenCache(tokenizer.encode, key=sha256)):
        with pytest.raises(TokenizerError, match="half a character"):
            cache.encode("a\ud800")
        assert len(cache) == 0
    assert sha256("\ud800") != sha256("\ud801")


def test_one_endless_pretoken_takes_no_quadratic_time():
    ranks = {(b" " * 2**k, b" " * 2**k): k for k in range(7)}

    def seconds(n: int) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            assert merge_long(b" " * n, ranks) == [b" " * 128] * (n // 128)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(64 * 1024) < 16 * seconds(8 * 1024)  # 8 times the text; in quadratic time it would be 64
