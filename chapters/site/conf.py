"""Sphinx's settings for the web book; `python -m chapters book` puts the pages together and runs it."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

project = html_title = "Your Own Parts"
copyright = "2026 The authors of Your Own Parts, MIT licence"
language = "en"
linkcheck_ignore = [r"http://(127\.0\.0\.1|localhost)\b"]  # the reader's own server
root_doc = "index"
extensions = ["myst_nb"]

nb_execution_mode = "off"  # the notebooks come executed, from solutions/
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show the imports and settings", "Hide the imports and settings"
myst_enable_extensions = ["attrs_block"]  # no mathematics: MathJax would come from another address
myst_heading_anchors = 4
highlight_language = "none"  # a block that names no language is a diagram
suppress_warnings = [
    "myst.header",  # the answers' pages go from their title to the exercises, ###; the page has h2 there
    "mystnb.unknown_mime_type",  # a claim, kept as data beside the sentence that is shown
]

html_theme = "furo"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["book.css"]
html_copy_source = html_show_sourcelink = html_show_sphinx = html_use_index = html_domain_indices = False
html_theme_options: dict[str, Any] = {"top_of_page_buttons": []}
pygments_style, pygments_dark_style = "tango", "github-dark"


def skip_answers(app: Sphinx, page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    """Make "next" lead from chapter to chapter, past the answers, which nobody should meet by accident."""
    relations = app.env.collect_relations()  # page -> parent, previous, next
    for key, way in (("prev", 1), ("next", 2)):
        other = relations.get(page, (None, None, None))[way]
        while other and other.startswith("solutions/"):
            other = relations[other][way]
        context[key] = other and {"link": context["pathto"](other), "title": app.env.titles[other].astext()}


def label_cells(_app: Sphinx, page: nodes.document) -> None:
    """Put its column's heading into each cell of a wide table; book.css shows it where rows are stacked, on a phone."""
    for table in page.findall(nodes.table):
        headings, *rows = [[cell for cell in row if isinstance(cell, nodes.entry)] for row in table.findall(nodes.row)]
        for row in rows if len(headings) > 2 else ():
            for heading, cell in list(zip(headings, row, strict=False))[1:]:
                if isinstance(cell.next_node(), nodes.paragraph):
                    cell[0].insert(0, nodes.inline("", f"{heading.astext()}: ", classes=["column"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-read", label_cells)
    app.connect("html-page-context", skip_answers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
