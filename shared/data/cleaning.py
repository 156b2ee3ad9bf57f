"""Cleaners: pure functions from text to text that do one thing each.

All of them take time in proportion to the text's length, whatever is in it. All but `strip_html` change nothing when
they are applied a second time.
"""

import html
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

# The elements of the HTML Living Standard, and the old ones that are still met.
_BLOCKS = """
address article aside blockquote body br caption center col colgroup dd details dialog dir div dl dt fieldset
figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html legend li link main menu
meta nav noframes noscript ol optgroup option p pre search section summary table tbody td template tfoot th thead
title tr ul
"""
_INLINE = """
a abbr acronym applet area audio b base basefont bdi bdo big button canvas cite code data datalist del dfn em embed
font i iframe img input ins kbd label map mark meter object output param picture progress q rp rt ruby s samp script
select slot small source span strike strong style sub sup svg textarea time track tt u var video wbr
"""
BLOCKS, INLINE = frozenset(_BLOCKS.split()), frozenset(_INLINE.split())
ENDLESS_ENTITY = re.compile(r"&#\d{8,}+;?")  # html.unescape raises for thousands of digits
# A tag ends at the first > outside quotes, or at any > when the quotes don't match. It holds no <: each character is
# then looked at from one < only, which keeps the search linear.
TAG = re.compile(r"""</?([a-z][a-z0-9]*)(?:[\s/](?:"[^"<]*"|'[^'<]*'|[^<>"'])*+|[\s/][^<>]*)?>""", re.IGNORECASE)
CUT_TAG = re.compile(r"<([a-z][a-z0-9]*)\s[^<>=]*+=[^<>]*+\Z", re.IGNORECASE)  # the text ends inside a tag
DECLARATION = re.compile(r"<!doctype[^<>]*>|<\?xml[^<>]*>|<!\[CDATA\[|\]\]>", re.IGNORECASE)
HIDDEN = re.compile(r"<!--|<(script|style|svg)\b[^<>]*>", re.IGNORECASE)
HIDDEN_END = {
    "<!--": re.compile(r"--!?>"),
    "svg": re.compile(r"</svg\b[^<>]*>", re.IGNORECASE),
    "script": re.compile(r"</script\b[^<>]*>", re.IGNORECASE),
    "style": re.compile(r"</style\b[^<>]*>", re.IGNORECASE),
}
HTML_START = re.compile(
    r"\s*+<(?:!--|(?:!doctype\s+html|html|head|body|article|section|div|table|tr|td|h[1-6]|p|ul|ol|li|dl|dt|pre|"
    r"blockquote|span)\b)",
    re.IGNORECASE,
)

# Escape sequences of terminals; then what isn't white space and can't be seen: control characters, zero-width spaces,
# soft hyphens, marks that turn the reading direction around, halves of surrogate pairs, code points that are no
# characters. Joiners (U+200C, U+200D) stay: Persian words and emoji are spelled with them.
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\))")
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)

IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)")
IPV6 = re.compile(r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?(?![\w:]|\.\d)", re.IGNORECASE)
VERSION = re.compile(r"(?:\bv|\bver\.?|versions?|releases?|[=<>~!]=)\s*\Z", re.IGNORECASE)  # what stands before 1.2.3.4
PHONE = re.compile(
    r"(?<![\w.+/=-])(?<!<IP>)(?<!<EMAIL>)(?<!<PHONE>)(?:"  # not after a mask: what is masked already stays as it is
    r"\+\d{1,3}(?:[ -]?\(\d{1,4}\))?(?:[ -]?\d{2,5}){2,5}"  # international: +44 1632 960123
    r"|\(\d{3}\) ?\d{3}[ -]\d{4}|\d{3}-\d{3}-\d{4}|\d{3}\.\d{3}\.\d{4}"  # North America: (202) 555-0143
    r"|\(?0\d{2,4}\)?[ -]\d{3,4}[ -]?\d{3,4}"  # with a trunk 0: 020 7946 0123
    r")(?![\w/-]|\.\d|<(?:IP|EMAIL|PHONE)>)"
)


def strip_html(text: str) -> str:
    """The text a reader of this HTML sees: tags, comments, scripts and styles go, entities become characters.

    A tag is what HTML knows as one; `a < b`, `List<String>` and `<your-name>` stay.  Elements that stand on their own
    (BLOCKS) leave a line break, so that words don't grow together; the others leave nothing.  Markup may be malformed.
    For HTML only, and once: `&lt;b&gt;` becomes `<b>`, and a second pass would take that for a tag.

    >>> strip_html("<p>if a < b: <b>stop</b><!-- why? --><p>&lt;b&gt; is bold")
    '\\nif a < b: stop\\n<b> is bold'
    """

    # exercise 2.3: hidden parts first (use _without_hidden), then tags (TAG, CUT_TAG), and the entities at the very end
    #   a tag in BLOCKS becomes "\n", one in INLINE ""; anything else that looks like a tag stays as it is
    def replace(tag: re.Match[str]) -> str:
        name = tag[1].lower()
        return "\n" if name in BLOCKS else "" if name in INLINE else str(tag[0])

    text = _without_hidden(text)
    text = CUT_TAG.sub(replace, TAG.sub(replace, text))
    return html.unescape(ENDLESS_ENTITY.sub("\ufffd", text))
    # end


def is_html(text: str) -> bool:
    """Whether this looks like an HTML page or a piece of one, and not like text that talks about HTML.

    It starts with a tag that pages start with, or closes three block elements.
    """
    if HTML_START.match(text):
        return True
    closed = 0
    for tag in TAG.finditer(text):
        closed += tag[0].startswith("</") and tag[1].lower() in BLOCKS
        if closed == 3:
            return True
    return False


def remove_control_characters(text: str) -> str:
    """Without terminal escape sequences and without characters that can't be seen. White space of any kind stays.

    >>> remove_control_characters("\\x1b[31mred\\x1b[0m \\x00and\\u200b blue\\n")
    'red and blue\\n'
    """
    return INVISIBLE.sub("", ESCAPES.sub("", text))


def normalise_unicode(text: str) -> str:
    """The text in Unicode's form NFC (UAX #15): each accented letter one character where there is one.

    NFC changes how a text is stored and not what it says. NFKC would also turn x² into x2, ½ into 1⁄2, and ™ into TM:
    good for a search key, and a loss for a text. More than 30 combining marks in a row are cut to 30, as in UAX #15's
    stream-safe format: sorting them takes quadratic time, inside one C call that no time limit interrupts.

    >>> normalise_unicode("cafe\\u0301 x²") == "caf\\u00e9 x²"
    True
    """
    return text if text.isascii() else unicodedata.normalize("NFC", _many_marks().sub(r"\1", text))


def normalise_whitespace(text: str) -> str:
    """One kind of line break, one kind of space, no spaces at a line's end, at most one empty line in a row.

    Indentation stays, for it carries meaning in code; a tab counts up to the next multiple of 4.  Inside a line any run
    of white space becomes one space.

    >>> normalise_whitespace("one\\u00a0 two \\r\\n\\r\\n\\r\\n\\tthree\\n")
    'one two\\n\\n    three'
    """
    lines = []
    for line in text.splitlines():
        words = line.split()
        indent = len(line[: len(line) - len(line.lstrip())].expandtabs(4))
        lines.append(" " * indent + " ".join(words) if words else "")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def find_emails(text: str) -> list[tuple[int, int]]:
    """Where the e-mail addresses are, as (start, end), in linear time.  Not quoted local parts, not bare host names.

    A local part of letters, digits and _ . % + - that doesn't begin with a sign; @; labels of letters, digits, _ and -
    with a dot after each; at the end two letters or more: a@b.org is an address, C = A@B.T has none.

    >>> text = "Write to ada@example.org, or to <bob.b+x@mail.example.co.uk>."
    >>> [text[start:end] for start, end in find_emails(text)]
    ['ada@example.org', 'bob.b+x@mail.example.co.uk']
    """
    # exercise 2.4: \w . % + -, the first of them \w; @; labels of \w and - with a dot after each; two letters or more
    #   let there be one way to read any string; and let what was read once, in vain, not be read again from its middle
    pattern = r"\w[\w.%+-]*(@(?:[\w-]+\.)+[^\W\d_]{2,})?"  # takes a run of such characters whole, with an @ or without
    return [match.span() for match in re.finditer(pattern, text) if match[1]]
    # end


def mask_pii(text: str) -> str:
    """E-mail addresses, IP addresses and telephone numbers become <EMAIL>, <IP> and <PHONE>; what is around them stays.

    Masked by shape: names and street addresses have none, and are not found.  Left alone: 127.0.0.1, 0.0.0.0 and ::1,
    which are nobody's; version numbers, dates, and numbers that only might be telephone numbers.

    >>> mask_pii("Ask ada@example.org (+44 1632 960123), not 192.0.2.7. Since 1.2.3, 2024-01-15.")
    'Ask <EMAIL> (<PHONE>), not <IP>. Since 1.2.3, 2024-01-15.'
    """
    pieces, position = [], 0
    for start, end in find_emails(text) if "@" in text else ():
        pieces += [text[position:start], "<EMAIL>"]
        position = end
    text = "".join([*pieces, text[position:]])
    for pattern in (IPV6, IPV4):
        text = pattern.sub(_mask_ip, text)
    return PHONE.sub(lambda match: "<PHONE>" if 8 <= sum(map(str.isdigit, match[0])) <= 15 else match[0], text)


def truncate_by_tokens(
    text: str, max_tokens: int, encode: Callable[[str], Sequence[int]], decode: Callable[[Sequence[int]], str]
) -> str:
    """The beginning of the text that `encode` turns into at most max_tokens tokens. Never cuts a character in two.

    decode(encode(text)) must be text; a byte-level tokenizer does that, one that changes its input doesn't: ValueError.

    >>> utf8 = lambda text: list(text.encode())  # a token for each byte: é has two
    >>> truncate_by_tokens("café!", 4, utf8, lambda ids: bytes(ids).decode(errors="replace"))
    'caf'
    """
    if max_tokens < 0:
        raise ValueError(f"max_tokens must be at least 0, not {max_tokens}")
    # exercise 2.6: decode the first max_tokens ids; while that isn't how the text begins, take one id less
    #   a character has at most 4 bytes, and so at most 4 tokens: after 3 steps back something else is wrong
    #   half a character decodes to U+FFFD, which may stand in the text itself: count what you give back once more
    ids = encode(text)
    if len(ids) <= max_tokens:
        return text
    for n in range(max_tokens, max(max_tokens - 4, -1), -1):
        head = decode(ids[:n])
        if text.startswith(head) and len(encode(head)) <= max_tokens:
            return head
    raise ValueError("decode(encode(text)) isn't the text: this tokenizer can't be used to cut it")
    # end


def _without_hidden(text: str) -> str:
    """Without comments, scripts, styles and drawings. One that is never closed loses its mark and keeps its content."""
    pieces, position, open_ended = [], 0, set()
    for start in HIDDEN.finditer(text):
        if start.start() < position:
            continue  # inside the one just removed
        kind = (start[1] or start[0]).lower()
        inside = start.start() + 2 if kind == "<!--" else start.end()  # <!--> is a whole comment
        end = None if kind in open_ended else HIDDEN_END[kind].search(text, inside)
        if end is None:
            open_ended.add(kind)  # none further on either: not looking again keeps this linear
        pieces += [text[position : start.start()], "" if kind == "<!--" else "\n"]
        position = end.end() if end else start.end()
    return DECLARATION.sub("", "".join([*pieces, text[position:]]))


def _mask_ip(match: re.Match[str]) -> str:
    found: str = match[0]
    try:
        address = ipaddress.ip_address(found)
    except ValueError:
        return found
    if address.version == 4 and VERSION.search(match.string, max(0, match.start() - 12), match.start()):
        return found
    if address.version == 6 and found.count(":") < 3:  # x[1::2] is a slice
        return found
    return found if address.is_loopback or address.is_unspecified else "<IP>"


@cache
def _many_marks() -> re.Pattern[str]:
    marks = "".join(chr(c) for c in range(0x300, 0x1E94B) if unicodedata.combining(chr(c)))
    return re.compile(f"([{marks}]{{30}})[{marks}]+")
