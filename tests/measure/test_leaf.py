"""shared/measure is a leaf: it imports no other layer of shared/, and nothing of chapters/."""

import ast
from pathlib import Path

import shared.measure


def test_imports_no_other_layer():
    for file in Path(shared.measure.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                ours = name.split(".")[0] in ("shared", "chapters")
                assert not ours or name.startswith("shared.measure"), f"{file.name} imports {name}"
