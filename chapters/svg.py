"""Small pictures as SVG text: boxes, bars and words on a ground of their own, legible on light and on dark pages."""

from collections.abc import Iterable
from xml.sax.saxutils import escape

# One a chapter, from 0: equally light, with white and with the light ground in a contrast of 4.5 and more.
COLORS = ("#a44f42", "#9e5720", "#8b5e00", "#756800", "#577322", "#2d7943", "#007b62", "#007a7f", "#007596", "#276da4",
          "#5267ae", "#705da7", "#875497", "#984e7e", "#a24c61")  # fmt: skip
STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.ground { fill: #f6f5f1; } .band { fill: #ebe9e2; } .arrow { stroke: #5c6066; fill: none; stroke-width: 1.5; }
.quiet { fill: #54585f; } .strong { font-weight: 600; } .on { fill: #ffffff; font-weight: 600; }
@media (prefers-color-scheme: dark) {
text { fill: #e8e6e1; } .ground { fill: #1d2026; } .band { fill: #282c34; } .arrow { stroke: #a3a8b0; }
.quiet { fill: #b4b8bf; } .on { fill: #ffffff; }
}
"""
CHARACTER = 0.55  # the mean width of a letter in parts of the font's size, rather too wide than too narrow


def picture(width: int, height: float, title: str, description: str, body: Iterable[str]) -> str:
    """The whole file. title and description are for those who can't see it, and for who points at it."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width * 1.4:g}" '
        f'height="{height * 1.4:g}" role="img" aria-labelledby="title description">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(description)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height:g}" rx="10"/>',
        *body,
        "</svg>",
        "",
    ])  # fmt: skip


def rect(x: float, y: float, width: float, height: float, fill: str = "", kind: str = "", opacity: float = 1) -> str:
    """A box with round corners; `kind` is a class of STYLE, `fill` a colour."""
    look = f' class="{kind}"' if kind else f' fill="{fill}"'
    look += f' fill-opacity="{opacity:g}"' if opacity != 1 else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{min(5, width / 2):g}"{look}/>'


def text(x: float, y: float, words: str, size: float = 12, kind: str = "", anchor: str = "start") -> str:
    """A line of text whose baseline is at y; anchor: start, middle or end is at x."""
    look = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{look}>{escape(words)}</text>'


def up(x: float, y: float) -> str:
    """An arrow that points up, its tip at (x, y), 14 high."""
    return f'<path class="arrow" d="M{x:g} {y + 14:g}V{y:g}m-4 5 4-5 4 5"/>'


def wrapped(words: Iterable[str], width: float, size: float = 12, between: str = ", ") -> list[str]:
    """Words on as few lines as `width` allows, in order; no word is cut."""
    lines: list[str] = []
    for word in words:
        joined = f"{lines[-1]}{between}{word}" if lines else word
        if lines and len(joined) * size * CHARACTER <= width:
            lines[-1] = joined
        else:
            if lines:
                lines[-1] += between.rstrip()
            lines.append(word)
    return lines
