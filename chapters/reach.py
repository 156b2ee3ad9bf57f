"""What an exercise may use of its chapter, as far as names can tell."""

import ast

from chapters.exercises import Book, Exercise


def reach(exercise: Exercise, book: Book) -> set[str]:
    """The names that an exercise's function and its tests mention, those that stand behind these names, and so on."""
    views = [module.view for module in book.chapter_modules(exercise.chapter)]
    behind: dict[str, set[str]] = {}  # a function's, class's or constant's name -> the names in it
    new = set(exercise.title.split("."))
    for file in [*views, *book.tests(exercise.chapter).glob("*.py")]:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, SyntaxError):  # broken: `check` says so by itself
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                behind.setdefault(node.name, set()).update(mentioned(node))
                if f"exercise('{exercise.id}')" in map(ast.unparse, node.decorator_list):
                    new.add(node.name)
            elif isinstance(node, ast.ClassDef):  # whoever makes one runs its __init__; its methods are called by name
                own = [part for part in node.body if getattr(part, "name", "__").startswith("__")]
                behind.setdefault(node.name, set()).update(mentioned(*node.bases, *own))
        for part in tree.body:
            if isinstance(part, ast.Assign):
                for name in mentioned(*part.targets):
                    behind.setdefault(name, set()).update(mentioned(part.value))
    reached: set[str] = set()
    while new:
        reached |= new
        new = {inner for name in new for inner in behind.get(name, ())} - reached
    return reached


def mentioned(*nodes: ast.AST) -> set[str]:
    """Every name, attribute and parameter (a fixture, perhaps) in some syntax trees."""
    found = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg"}
    return {getattr(part, found[type(part)]) for node in nodes for part in ast.walk(node) if type(part) in found}
