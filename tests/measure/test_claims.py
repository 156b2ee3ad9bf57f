"""Claims: checked, printed, shown in a notebook, and collected from executed notebooks."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from shared.measure.claims import CLAIMS, MIME, claim, collect


def test_there_are_35():
    assert list(CLAIMS) == list(range(1, 36))
    assert all(len(text) > 20 for text in CLAIMS.values())


def test_printed(capsys):
    claim(7, measured="12 times at 256 tokens", verdict="holds")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"Claim 7: {CLAIMS[7]}", "measured: 12 times at 256 tokens", "verdict:  holds"]


@pytest.mark.parametrize("number", [0, 36, "7", 7.0, True, None])
def test_no_such_claim(number):
    with pytest.raises(ValueError, match="1 to 35"):
        claim(number, measured="x", verdict="holds")


@pytest.mark.parametrize("verdict", ["", "Holds", "holds when ", "holds when", "true", None, "does not hold at all"])
def test_no_such_verdict(verdict):
    with pytest.raises(ValueError, match="verdict"):
        claim(7, measured="x", verdict=verdict)


@pytest.mark.parametrize("measured", ["", "  ", None, 3])
def test_nothing_measured(measured):
    with pytest.raises(ValueError, match="measured"):
        claim(7, measured=measured, verdict="holds")


def executed(folder: Path, *sources: str) -> Path:
    """A notebook with these cells, run by a real kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(notebook, timeout=60).execute()
    folder.mkdir()
    nbformat.write(notebook, folder / "notebook.ipynb")
    return folder / "notebook.ipynb"


def test_collected_from_executed_notebooks(tmp_path):
    first = executed(
        tmp_path / "ch09_kv_cache",
        "from shared.measure.claims import claim",
        'claim(29, "0.98 to 1.03 times", "does not hold")\nclaim(7, "12 times at 256 tokens", "holds when n is large")',
        "print('claim 1')",
    )
    second = executed(
        tmp_path / "ch01_numpy_mlp", 'from shared.measure.claims import claim\nclaim(18, "0.66", "holds")'
    )
    output = json.loads(first.read_text())["cells"][1]["outputs"][0]
    assert "".join(output["data"]["text/plain"]).startswith("Claim 29: Temperature")
    assert output["data"][MIME]["number"] == 29
    assert collect([second, first]) == [
        {"number": 7, "claim": CLAIMS[7], "measured": "12 times at 256 tokens", "verdict": "holds when n is large",
         "chapter": "ch09_kv_cache"},
        {"number": 18, "claim": CLAIMS[18], "measured": "0.66", "verdict": "holds", "chapter": "ch01_numpy_mlp"},
        {"number": 29, "claim": CLAIMS[29], "measured": "0.98 to 1.03 times", "verdict": "does not hold",
         "chapter": "ch09_kv_cache"},
    ]  # fmt: skip


def test_broken_notebooks(tmp_path):
    file = tmp_path / "notebook.ipynb"
    with pytest.raises(ValueError, match="can't be read as a notebook"):
        collect([file])
    file.write_text("{}")
    with pytest.raises(ValueError, match="can't be read as a notebook"):
        collect([file])
    payload = {"number": 99, "measured": "x", "verdict": "holds"}
    file.write_text(json.dumps({"cells": [{}, {"outputs": [{"data": {MIME: payload}}]}]}))
    with pytest.raises(ValueError, match=r"cell 2: not a valid claim: number"):
        collect([file])
