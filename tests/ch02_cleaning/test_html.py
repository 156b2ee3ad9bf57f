"""Exercise 2.3: judged by pages whose text is known, by html.parser, and by how the time grows."""

import html
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch02_cleaning import cleaning
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from tests.ch02_cleaning.clock import growth


def stripped(page: str) -> str:
    got = cleaning.strip_html(page)
    expect(got is not None, because=NO_RESULT)
    expect(isinstance(got, str), because=f"a text is wanted, not a {type(got).__name__}")
    return got


@exercise("2.3")
def test_blocks_part_words():
    got = stripped("<p>one</p><p>two</p><ul><li>three<li>four</ul>five<br>six")
    expect_equal(
        got.split(),
        ["one", "two", "three", "four", "five", "six"],
        because="a paragraph, a list item or a <br> starts a new line: without a line break in its place the "
        "words before and after it grow together",
    )


@exercise("2.3")
def test_a_block_leaves_a_line_break():
    got = stripped("<p>one</p><p>two")
    expect(
        "\n" in got,
        because="in the place of a block's tag comes a line break, not a space: the next word begins a new line",
    )
    expect_equal(
        got,
        "\none\n\ntwo",
        because="each tag of a block, <p> as well as </p>, leaves one line break, and all of them stay: runs "
        "of them, and those at the ends, are for normalise_whitespace, which comes later",
    )


@exercise("2.3")
def test_inline_tags_leave_nothing():
    got = stripped('in<b>ter</b>nal <a href="x">li</a>nk <code>f</code>()')
    expect_equal(
        got,
        "internal link f()",
        because="<b>, <a> and <code> stand inside a word as easily as around it: in their place comes "
        "nothing, not a space",
    )


@exercise("2.3")
def test_capitals_make_no_difference():
    expect_equal(
        stripped("<P>one</P><Div>two<B>!</B></DIV>").split(),
        ["one", "two!"],
        because="<P> is <p>: look names up in lower case",
    )


@exercise("2.3")
def test_entities_come_last():
    page = "&lt;b&gt; makes bold &amp; is &quot;inline&quot;"
    got = stripped(page)
    expect(
        got != page,
        because="the entities were not decoded at all: &lt; should become <. html.unescape does that, as the last step",
    )
    expect_equal(
        got,
        '<b> makes bold & is "inline"',
        because="&lt;b&gt; is how a page shows the reader <b>: if entities are turned into characters before "
        "the tags are removed, it is taken for a tag and the text is lost",
    )


@exercise("2.3")
def test_entities_are_decoded_once():
    expect_equal(
        stripped("write &amp;lt; for &lt;"),
        "write &lt; for <",
        because="&amp;lt; shows the reader &lt;: decoded twice, it becomes <, which the page didn't say",
    )


@exercise("2.3")
def test_comparisons_and_generics_are_text():
    for text in (
        "if a < b and c > d: stop",
        "List<String> names",
        "x<y && y>z",
        "std::vector<int> v",
        "<your-name>",
        "1 <2> 3",
        "->",
        "a <- b",
        "<>",
        "<<EOF",
        "</",
        "<",
    ):
        expect_equal(
            stripped(text),
            text,
            because=f"{text!r} holds no HTML element: remove what is in BLOCKS or INLINE and leave the rest; "
            "a pattern like <[^>]*> takes everything from < to the next >",
        )


@exercise("2.3")
def test_only_a_tag_is_cut_off_at_the_end():
    text = "if x <y and z=3"
    expect_equal(
        stripped(text),
        text,
        because=f"CUT_TAG matches the end of {text!r}, from '<y' on, and y is no element: ask the same "
        "question there as for TAG, or text at the end of a page is lost",
    )


@exercise("2.3")
def test_hidden_parts_go_with_what_is_in_them():
    page = (
        'one<script type="text/javascript">if (a < b) { write("<p>no</p>") }</script>'
        "<STYLE>p > b { color: red }</STYLE><!-- <b>no</b> > <script>no</script> --><svg><text>no</text></svg>two"
    )
    expect_equal(
        stripped(page).split(),
        ["one", "two"],
        because="what stands in a script, a style or a comment is not for the reader: it goes, together with "
        "its tags; _without_hidden does that, before the tags are looked at",
    )


@exercise("2.3")
def test_attributes_may_hold_anything():
    page = """<a title="a > b" href='x>y'>one</a><p class=x data-y="1">two</p><img src="i.png"/><br/>three"""
    expect_equal(
        stripped(page).split(), ["one", "two", "three"], because="a > inside quotes doesn't end a tag; TAG knows that"
    )


@exercise("2.3")
def test_malformed_markup_loses_no_text():
    cases = {
        "<p>one <b>two</p> three</b>": ["one", "two", "three"],
        "one </div></div> two": ["one", "two"],
        '<p class="open>one</p> two': ["one", "two"],
        "one <!-- never closed two": ["one", "never", "closed", "two"],
        "one <script>two": ["one", "two"],
        'one <a href="http://cut.o': ["one"],
        "one &unknown; two &amp three": ["one", "&unknown;", "two", "&", "three"],
    }
    for page, want in cases.items():
        expect_equal(
            stripped(page).split(),
            want,
            because=f"{page[:40]!r} isn't well formed; its text should come through all the same (CUT_TAG is "
            "for a page that ends inside a tag)",
        )


@exercise("2.3")
def test_an_endless_entity_is_no_character():
    page = "one &#" + "9" * 5000 + "; two"
    try:
        got = stripped(page)
    except ValueError as error:
        expect(
            False,
            because=f"a page with an entity of 5000 digits raised {error!r}: html.unescape makes an integer "
            "of the digits. Put ENDLESS_ENTITY.sub('\ufffd', text) before it",
        )
        raise
    expect_equal(
        got.split(),
        ["one", "\ufffd", "two"],
        because="an entity with thousands of digits is no character: ENDLESS_ENTITY finds such, and U+FFFD "
        "takes their place",
    )


@exercise("2.3")
def test_the_example():
    expect_equal(
        stripped("<p>if a < b: <b>stop</b><!-- why? --><p>&lt;b&gt; is bold"),
        "\nif a < b: stop\n<b> is bold",
        because="this is the docstring's example, to the letter",
    )


class SeenText(HTMLParser):
    """The oracle: what the standard library's parser takes for text, with a line break for each block."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.feed(page)
        self.close()

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.pieces += ["\n"] * (tag in ("p", "div", "li", "h1", "pre", "td"))

    handle_endtag = lambda self, tag: self.handle_starttag(tag, [])  # noqa: E731


WORDS = st.text(st.sampled_from('ab<>&";é'), min_size=1, max_size=6).map(html.escape)
TAGS = st.sampled_from(["p", "div", "li", "h1", "pre", "td", "b", "i", "code", 'a href="x > y"', "span class=z"])
PAGES = st.recursive(
    WORDS,
    lambda inner: st.tuples(TAGS, st.lists(inner, max_size=4)).map(
        lambda node: f"<{node[0]}>{''.join(node[1])}</{node[0].split()[0]}>"
    ),
)


@exercise("2.3")
@settings(max_examples=300, deadline=None, report_multiple_bugs=False)
@given(PAGES)
def test_pages_read_as_the_standard_library_reads_them(page):
    expect_equal(
        stripped(page).split(),
        "".join(SeenText(page).pieces).split(),
        because=f"{page!r}: the words should be those that html.parser finds",
    )


@exercise("2.3")
def test_html_takes_linear_time():
    for piece in ("<!--", "<script>", "<p", '<a "', "<a '\"", "&lt;", "<svg>-->", "<a =", "<b>"):
        times = growth(stripped, lambda n, piece=piece: piece * n, 600)
        expect(
            times < 30,
            because=f"8 times as many {piece!r} took {times:.0f} times as long: time that grows faster "
            "than the text lets one page hold everything up",
        )
