"""Serve other sources under the names of the readers' modules: the reference, an answer, a mistake."""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from chapters.exercises import Book


class Variants(MetaPathFinder, Loader):
    """Serves modules from memory, in place of the reader's files."""

    def __init__(self) -> None:
        self.sources: dict[str, tuple[str, str]] = {}  # module name -> (file name, source)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The served text for a name in `sources`; for any other, None, and Python looks on."""
        if name not in self.sources:
            return None
        return importlib.util.spec_from_file_location(name, self.sources[name][0], loader=self)

    def create_module(self, spec: ModuleSpec) -> None:
        """None, which has Python make an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the served text as the module; tracebacks name its file."""
        file, source = self.sources[module.__name__]
        exec(compile(source, file, "exec"), module.__dict__)


def serve_reference(book: Book) -> None:
    """From now on, in this process, the readers' modules are the finished ones of shared/."""
    variants = Variants()
    for module in book.modules:
        variants.sources[module.view_name] = (str(module.source), module.source.read_text(encoding="utf-8"))
    sys.meta_path.insert(0, variants)
