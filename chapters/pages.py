"""The web book's pages: the executed notebooks, the answers and what stands beside them, made ready for Sphinx."""

import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from chapters.regions import BookError

PICTURES = {".png", ".svg", ".jpg", ".gif", ".webp"}
FRONT, ANSWERS = "index.md", "Hints and answers"
BESIDE = {  # caption in the menu -> pages, those of them that exist
    "Look up": ["chapters/GLOSSARY.md", "chapters/TROUBLESHOOTING.md"],
    "The repository": ["shared/README.md", "data/README.md", "CONTRIBUTING.md"],
    "Running it for others": ["shared/serving/deploy/README.md", "shared/observability/rules/RUNBOOK.md"],
}
MENU = "\n\n```{{toctree}}\n:hidden:\n{caption}\n{entries}\n```\n"

SOLVED = """
{{.solved}}
The chapter with every exercise solved, as it was last executed. To write the parts yourself, work in the notebook:
`python -m chapters notebook {}`.
"""
# an exercise's answer on its page, to the next heading
ANSWER = re.compile(r"^```python answer.*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)
FOLDED = "<details><summary>The answer, and common mistakes</summary>\n\n{}\n\n</details>\n\n"

MARKDOWN = re.compile(
    r"""
    ^(?P<fence>[ ]*(?:`{3,}|~{3,})).*\n(?:.*\n)*?(?P=fence)[ ]*$  # a block of code, left alone
    | (?P<ticks>`+)[^`](?:.|\n)*?(?<!`)(?P=ticks)(?!`)             # code in a line, too
    | (?P<mark>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<link>[^()\s]+)\)
    | (?P<tag><(?:a|img|source)\s[^>]*>)
    """,
    re.MULTILINE | re.VERBOSE,
)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ATTRIBUTE = re.compile(r'\b(?P<name>href|src|srcset)="(?P<link>[^"]+)"')


class Pages:
    """The book's pages below `folder`, each at its path in the repository, so that links between them hold."""

    def __init__(self, root: Path, folder: Path, repository: str = ""):
        self.root, self.folder, self.repository = root, folder, repository.rstrip("/")
        self.chapters = sorted(path.name for path in (root / "chapters").glob("ch[0-9][0-9]_*") if path.is_dir())
        self.pages = {"README.md": FRONT, ".": FRONT}  # what a link in the repository names -> the page that shows it
        for name in self.chapters:
            for shown in ("chapters/{}/notebook.ipynb", "chapters/{}", "solutions/{}/notebook.ipynb"):
                self.pages[shown.format(name)] = f"chapters/{name}/notebook.ipynb"
        beside = [f"solutions/{name}/README.md" for name in self.chapters]
        for page in [*beside, *(page for pages in BESIDE.values() for page in pages)]:
            if (root / page).is_file():
                self.pages[page] = page
                self.pages.setdefault(str(PurePosixPath(page).parent), page)
        self.problems: list[str] = []

    def write(self) -> None:
        """Write every page. Raises BookError for a notebook that isn't there, and for links that lead nowhere."""
        missing = [name for name in self.chapters if not (self.root / "solutions" / name / "notebook.ipynb").is_file()]
        if missing:
            raise BookError(
                "\n".join(
                    f"solutions/{name}/notebook.ipynb is missing; make it: python -m chapters execute {int(name[2:4])}"
                    for name in missing
                )
            )
        for name in self.chapters:
            self._notebook(name)
        for page in sorted({page for page in self.pages.values() if page.endswith(".md")}):
            self._markdown(page)
        if self.problems:
            raise BookError("\n".join(self.problems))

    def _markdown(self, page: str) -> None:
        source = "README.md" if page == FRONT else page
        text = self._relink((self.root / source).read_text(encoding="utf-8"), source)
        if page.startswith("solutions/"):
            text = re.sub(r"\A# (Chapter \d+).*", rf"---\nnosearch: true\n---\n# \1: {ANSWERS.lower()}", text)
            text = ANSWER.sub(lambda found: FOLDED.format(found[0]), text)
        if page == FRONT:
            text += self._menu("Chapters", [f"chapters/{name}/notebook.ipynb" for name in self.chapters])
            for caption, pages in BESIDE.items():
                text += self._menu(caption, [page for page in pages if page in self.pages])
        self._save(page, text)

    def _notebook(self, name: str) -> None:
        page, answers = f"chapters/{name}/notebook.ipynb", f"solutions/{name}/README.md"
        notebook = json.loads((self.root / "solutions" / name / "notebook.ipynb").read_text(encoding="utf-8"))
        heading, cells = "", notebook["cells"]
        for cell in cells:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                cell["source"] = self._relink(source, page)
                heading = [heading, *HEADING.findall(MARKDOWN.sub("", source))][-1]
            else:
                cell["metadata"].setdefault("mystnb", {})["image"] = {"alt": _describe(source, heading)}
        cells[0]["source"] = re.sub(r"\A#.*\n", rf"\g<0>{SOLVED.format(int(name[2:4]))}", cells[0]["source"])
        next(cell for cell in cells if cell["cell_type"] == "code")["metadata"]["tags"] = ["hide-input"]
        if answers in self.pages:
            end = f"[{ANSWERS}](/{answers}) to this chapter's exercises." + self._menu("", [answers], ANSWERS)
            cells.append({"cell_type": "markdown", "id": "answers", "metadata": {}, "source": end})
        self._save(page, json.dumps(notebook))

    def _menu(self, caption: str, pages: list[str], title: str = "") -> str:
        """A part of the menu at the side; none without pages."""
        paths = [f"/{page.rpartition('.')[0]}" for page in pages]
        entries = "\n".join(f"{title} <{path}>" if title else path for path in paths)
        return MENU.format(caption=caption and f":caption: {caption}\n", entries=entries) if pages else ""

    def _save(self, page: str, text: str) -> None:
        path = self.folder / "pages" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _relink(self, text: str, page: str) -> str:
        """The text with its links turned into the book's; a file that is no page is only named."""

        def replace(found: re.Match[str]) -> str:
            if found["tag"]:
                return ATTRIBUTE.sub(lambda at: self._attribute(at, page), found[0])
            if not found["link"]:
                return found[0]
            link, words = self._resolve(found["link"], page, raw=False), self._relink(found["text"], page)
            if link:
                return f"{found['mark']}[{words}]({link})"
            file = found["link"].partition("#")[0]
            return words if file in words else f"{words} (`{file}`)"

        return MARKDOWN.sub(replace, text)

    def _attribute(self, found: re.Match[str], page: str) -> str:
        link = self._resolve(found["link"], page, raw=True)
        return f'{found["name"]}="{link}"' if link else ""

    def _resolve(self, link: str, page: str, raw: bool) -> str | None:
        """Where a link on a page leads in the book, None for nowhere. raw: in HTML, which Sphinx passes by."""
        path, _, fragment = link.partition("#")
        anchor = f"#{_slug(unquote(fragment))}" if fragment else ""
        if re.match(r"[a-z]+:", link):
            return link
        here = PurePosixPath(page).parent
        target = os.path.normpath(here / path) if path else page
        if target in self.pages:
            shown = self.pages[target]
            way = os.path.relpath(shown, PurePosixPath(self.pages.get(page, page)).parent)
            return (f"{way.rpartition('.')[0]}.html" if raw else way) + anchor if path else anchor
        file = self.root / target
        if not file.exists() or target.startswith(".."):
            self.problems.append(f"{page}: a link to {link}, which is not in the repository")
        elif file.suffix in PICTURES:
            for kind in ("pages", "as_is") if raw else ("pages",):
                copy = self.folder / kind / target
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
            return path
        return f"{self.repository}/blob/main/{target}{anchor}" if self.repository else None


def _slug(fragment: str) -> str:
    """A heading's anchor in the book, from Jupyter's or from GitHub's: 5.1-RMSNorm -> 51-rmsnorm."""
    return re.sub(r"[^\w-]", "", fragment.lower())


def _describe(source: str, heading: str) -> str:
    """A figure's text for those who can't see it, from its axes' labels and the heading above."""
    labels = [re.findall(rf'{axis}(?:=|\()"([^"]+)"', source) for axis in ("ylabel", "xlabel")]
    axes = " over ".join(label[0] for label in labels if label)
    return re.sub("[*`]", "", f"Figure: {axes}; {heading}" if axes else f"Figure: {heading}")
