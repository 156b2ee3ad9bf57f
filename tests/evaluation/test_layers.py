"""Evaluation stands below inference: generation is handed in as a function."""

import ast
from pathlib import Path

import shared.evaluation

ALLOWED = {"data", "model", "training", "evaluation", "measure"}


def test_imports_run_with_the_arrow():
    files = sorted(Path(shared.evaluation.__file__).parent.glob("*.py"))
    assert len(files) >= 7
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("chapters"), f"{file.name} imports {name}"
                if name.startswith("shared."):
                    assert name.split(".")[1] in ALLOWED, f"{file.name} imports {name}"
