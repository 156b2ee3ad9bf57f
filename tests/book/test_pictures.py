"""The README's pictures: the stack holds every part once, bars are as long as their numbers, and all can be read."""

import json
import re
from xml.etree import ElementTree

import pytest

from chapters import ROOT, scoreboard_picture, stack_picture, svg
from chapters.exercises import Book
from chapters.regions import BookError

SVG = "{http://www.w3.org/2000/svg}"
GROUNDS = {"light": "#f6f5f1", "dark": "#1d2026"}


def luminance(color: str) -> float:
    """WCAG 2's relative luminance of #rrggbb."""
    parts = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_part_stands_in_the_stack_once():
    book = Book()
    picture = stack_picture.draw(book)
    told = ElementTree.fromstring(picture).find(f"{SVG}desc").text
    for chapter in {module.chapter for module in book.modules}:
        names = re.findall(rf"chapter {chapter}, [^(]*\(([^)]*)\)", told)
        found = [part.replace(" ", "_").lower() for name in names for part in name.split(", ")]
        assert sorted(found) == sorted(m.source.stem for m in book.modules if m.chapter == chapter), chapter


def test_a_package_without_a_layer(monkeypatch):
    monkeypatch.setattr(stack_picture, "BESIDE", ("observability",))
    with pytest.raises(BookError, match="shared/measure"):
        stack_picture.draw(Book())


def test_words_stay_in_the_picture():
    """By the width of DejaVu Sans, the widest of the usual fonts: 0.56 of the size for a letter, on average."""
    for drawn in (stack_picture.draw(Book()), scoreboard_picture.draw()):
        root = ElementTree.fromstring(drawn)
        width = float(root.get("viewBox").split()[2])
        for text in root.iter(f"{SVG}text"):
            left, long = float(text.get("x")), 0.56 * float(text.get("font-size")) * len(text.text)
            left -= {"middle": long / 2, "end": long}.get(text.get("text-anchor"), 0)
            assert left >= 0, text.text
            assert left + long <= width, text.text


def test_the_pictures_say_what_they_show():
    for drawn in (stack_picture.draw(Book()), scoreboard_picture.draw()):
        root = ElementTree.fromstring(drawn)
        assert root.get("role") == "img"
        assert len(root.find(f"{SVG}title").text) > 20
        assert len(root.find(f"{SVG}desc").text) > 100


def test_colours_can_be_read_on_and_told_from_both_grounds():
    assert len(svg.COLORS) == len(set(svg.COLORS)) == len(Book().folders)
    for color in svg.COLORS:
        assert contrast(color, "#ffffff") >= 4.5, color
        assert contrast(color, GROUNDS["light"]) >= 3, color
        assert contrast(color, GROUNDS["dark"]) >= 2.5, color
    assert all(ground in svg.STYLE for ground in GROUNDS.values())


def test_words_are_wrapped_and_not_cut():
    assert svg.wrapped(["one", "two", "three"], 60, size=10) == ["one, two,", "three"]
    assert svg.wrapped(["a word that is too long"], 10) == ["a word that is too long"]
    assert svg.wrapped([], 10) == []


def test_bars_are_as_long_as_their_numbers(tmp_path):
    shared = {"model": "tiny", "threads": 2, "requests": 3}
    rows = [
        {"name": "naive", "chapter": 0, "output_tok_s": 2.0, "ttft_p50_s": 8.0, **shared},
        {"name": "cached", "chapter": 9, "output_tok_s": 8.0, "ttft_p50_s": 0.5, **shared},
    ]
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "benchmarks.json").write_text(json.dumps({"--stack all": {"rows": rows}}))
    root = ElementTree.fromstring(scoreboard_picture.draw(tmp_path))
    bars = [rect for rect in root.iter(f"{SVG}rect") if float(rect.get("x", 0)) > 100]
    widths = [float(bar.get("width")) for bar in bars]
    assert widths[1] == pytest.approx(4 * widths[0])
    assert widths[2] == pytest.approx(16 * widths[3], rel=0.01)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"2.0", "8.0", "8.0 s", "0.50 s", "naive", "cached"} <= set(texts)
    assert any("3 requests at once · tiny · 2 CPU threads" in text for text in texts)


@pytest.mark.parametrize(
    "kept", [{}, {"--stack all": {}}, {"--stack all": {"rows": []}}, {"--stack all": {"rows": [1]}}]
)
def test_nothing_to_draw(tmp_path, kept):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "benchmarks.json").write_text(json.dumps(kept))
    with pytest.raises(BookError, match="bench --stack all --keep"):
        scoreboard_picture.draw(tmp_path)


def test_the_files_are_the_latest():
    assert (ROOT / "solutions" / "stack.svg").read_text(encoding="utf-8") == stack_picture.draw(Book())
    assert (ROOT / "solutions" / "scoreboard.svg").read_text(encoding="utf-8") == scoreboard_picture.draw(ROOT)
