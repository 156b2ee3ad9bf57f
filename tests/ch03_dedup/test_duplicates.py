"""Texts in memory, from end to end: against a comparison of all pairs, one with one."""

import random
import unicodedata
from itertools import combinations

import pytest

from shared.data.corpus import docstring_documents
from shared.data.duplicates import exact_duplicates, fingerprint, near_duplicates

Pairs = dict[tuple[int, int], float]


def plain_shingles(text: str, n: int, chinese: bool) -> set[tuple[str, ...]]:
    words = list("".join(text.split())) if chinese else text.split()
    return {tuple(words[i : i + n]) for i in range(len(words)) if i == 0 or i + n <= len(words)}


def compare_all(texts: list[str], threshold: float, n: int = 5, chinese: bool = False) -> Pairs:
    """Every pair of different texts whose Jaccard similarity reaches the threshold."""
    sets = [plain_shingles(text, n, chinese) for text in texts]
    found = {}
    for (i, a), (j, b) in combinations(enumerate(sets), 2):
        if texts[i].strip() != texts[j].strip() and min(len(a), len(b)) >= threshold * max(len(a), len(b)):
            shared = len(a & b)
            similarity = shared / (len(a) + len(b) - shared) if a or b else 1.0
            if similarity >= threshold:
                found[i, j] = similarity
    return found


def edited(words: list[str], edits: int, rng: random.Random, new: list[str]) -> list[str]:
    """Replace a word (which changes up to five shingles) or add one at the end (which changes one), so many times."""
    words = list(words)
    for _ in range(edits):
        at = rng.randrange(2 * len(words))
        words[min(at, len(words)) : at + 1] = [rng.choice(new)]
    return words


def family(lengths: list[int], rng: random.Random, sep: str = " ", letters: str = "") -> list[str]:
    """Texts and edited copies of them, in random order, no two of them equal."""
    vocabulary = list(letters) or [f"w{i}" for i in range(3000)]
    texts = []
    for length in lengths:
        words = rng.choices(vocabulary, k=length)
        copies = [edited(words, rng.randrange(1, 3 + length // 40), rng, vocabulary) for _ in range(4)]
        texts += [sep.join(words), *map(sep.join, copies)]
    texts = list(dict.fromkeys(texts))
    rng.shuffle(texts)
    return texts


def check(texts: list[str], threshold: float, want: Pairs, least_recall: float = 0.99, **settings) -> None:
    found = near_duplicates(texts, threshold, **settings)
    pairs = {(i, j): similarity for i, j, similarity in found.pairs}
    assert pairs.keys() <= want.keys(), "a pair below the threshold was returned"
    assert all(abs(similarity - want[pair]) < 1e-12 for pair, similarity in pairs.items())
    assert len(pairs) >= least_recall * len(want), f"{len(pairs)} of {len(want)} pairs found"


@pytest.fixture(scope="module")
def real_texts() -> list[str]:
    texts = [record["text"] for record in docstring_documents(1500)]
    return [text for text in dict.fromkeys(map(str.strip, texts)) if text.isascii()]


@pytest.mark.parametrize("threshold", [0.5, 0.85, 1.0])
def test_real_documents(real_texts, threshold):
    texts = real_texts
    want = compare_all(texts, threshold)
    assert threshold == 1.0 or len(want) > 5
    check(texts, threshold, want)


@pytest.mark.parametrize("threshold", [0.6, 0.85])
@pytest.mark.parametrize("lengths", [[9, 12, 20] * 40, [60] * 60, [400, 1500] * 15])
def test_short_and_long_texts(lengths, threshold):
    texts = family(lengths, random.Random(len(lengths)))
    want = compare_all(texts, threshold)
    assert len(want) > 20
    check(texts, threshold, want)


def test_chinese_by_characters():
    texts = family([120] * 40, random.Random(3), sep="", letters="数据清洗去重近似文本哈希签名带宽阈值集合")
    want = compare_all(texts, 0.85, chinese=True)
    assert len(want) > 20
    check(texts, 0.85, want)


def test_code():
    body = (
        "def area(width, height):\n    if width < 0:\n        raise ValueError(width)\n    return width * height\n" * 6
    )
    texts = [body, body.replace("    ", "\t"), body.replace("area", "AREA", 1), "import os\n" * 5]
    assert [(i, j) for i, j, _ in near_duplicates(texts, 0.8).pairs] == [(0, 1), (0, 2), (1, 2)]
    assert near_duplicates(texts, 0.8).kept == [0, 0, 0, 3]


def test_threshold_one_wants_the_same_shingles():
    texts = ["a b c d e f", "a  b c d\ne f", "a b c d e g", "x y z x y z x y z x", "x y z x y z x y z x y"]
    found = near_duplicates(texts, 1.0, ngram=3)
    assert found.pairs == [(0, 1, 1.0), (3, 4, 1.0)]
    assert found.kept == [0, 0, 2, 3, 3]


def test_empty_and_one_word_texts():
    texts = ["", "one", "two", " \n", "one ", "", "\x00", "数"]
    found = near_duplicates(texts)
    assert found.kept == [0, 1, 2, 0, 1, 0, 0, 7]
    assert near_duplicates([]).kept == []
    assert near_duplicates([""]).kept == [0]
    assert near_duplicates(["one"], num_perm=1).kept == [0]


def test_a_candidate_is_no_duplicate():
    """With one number in a band nearly everything is a candidate."""
    texts = family([30] * 20, random.Random(5))
    found = near_duplicates(texts, 0.9, num_perm=4)
    assert {(i, j) for i, j, _ in found.pairs} <= compare_all(texts, 0.9).keys()


def test_chains_are_one_cluster():
    words = [f"w{i}" for i in range(100)]
    texts = [" ".join([*words[:k], *(f"v{i}" for i in range(k, 100))]) for k in range(100, 60, -1)]
    found = near_duplicates(texts)
    assert set(found.kept) == {0}
    assert (0, 39) not in {(i, j) for i, j, _ in found.pairs}


def test_many_equal_texts_cost_little():
    texts = ["the same text again and again " * 10] * 20_000 + ["another"]
    found = near_duplicates(texts)
    assert found.kept == [0] * 20_000 + [20_000]
    assert found.candidates == 0


def test_exact_duplicates():
    accented = "caf\u00e9"
    texts = [accented, "b", unicodedata.normalize("NFD", accented), "  b\n", "B", "a b", "a  b"]
    assert exact_duplicates(texts) == [0, 1, 0, 1, 4, 5, 6]
    assert fingerprint(texts[0]) == fingerprint(texts[2]) != fingerprint(texts[1])
    assert fingerprint("abc").hex().startswith("ba7816bf8f01cfea414140de5dae2223")  # FIPS 180-2, appendix B.1
    assert len(fingerprint("\ud800")) == 32


@pytest.mark.parametrize("threshold", [0, -1, 1.5, float("nan"), None, "0.85", True])
def test_threshold_is_checked(threshold):
    with pytest.raises(ValueError, match="threshold is a Jaccard similarity above 0 and up to 1"):
        near_duplicates(["a"], threshold)


@pytest.mark.parametrize(("name", "value"), [("num_perm", 0), ("ngram", 0), ("num_perm", 1.5), ("ngram", None)])
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=name):
        near_duplicates(["a"], **{name: value})
