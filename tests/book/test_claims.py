"""Every claim is measured by some executed notebook, and one that isn't is named."""

import pytest
from typer.testing import CliRunner

from chapters import readme
from chapters.__main__ import app
from chapters.exercises import Book
from chapters.regions import BookError
from shared.measure.claims import CLAIMS


def test_all_are_measured():
    assert {row["number"] for row in readme.claims(Book())} == set(range(1, 36))
    shown = CliRunner().invoke(app, ["claims"], catch_exceptions=False).output
    assert "all 35 claims are measured" in shown
    assert "Temperature" in shown


def test_one_that_is_missing(monkeypatch):
    row = {"claim": "a claim", "measured": "5", "verdict": "holds", "chapter": "ch00_baseline"}
    monkeypatch.setattr(readme, "claims", lambda book: [{"number": n, **row} for n in CLAIMS if n not in (7, 24)])
    with pytest.raises(BookError, match="not measured by any executed notebook: claim 7, 24"):
        CliRunner().invoke(app, ["claims", "--check"], catch_exceptions=False)
