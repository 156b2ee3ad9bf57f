"""Exercises 2.3, 2.4 and 2.6: judged by pages whose text is known, by html.parser, by addresses made by hand, and by
how the time grows."""

import html
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch02_cleaning import cleaning
from chapters.judge import NO_RESULT, exercise, expect, expect_equal, expect_raises
from tests.ch02_cleaning.clock import cpu_seconds, growth

# 2.3 strip_html


def stripped(page: str) -> str:
    got = cleaning.strip_html(page)
    expect(got is not None, because=NO_RESULT)
    expect(isinstance(got, str), because=f"a text is wanted, not a {type(got).__name__}")
    return got


@exercise("2.3")
def test_blocks_part_words():
    got = stripped("<p>one</p><p>two</p><ul><li>three<li>four</ul>five<br>six")
    expect_equal(got.split(), ["one", "two", "three", "four", "five", "six"],
                 because="a paragraph, a list item or a <br> starts a new line: without a line break in its place the "
                         "words before and after it grow together")


@exercise("2.3")
def test_a_block_leaves_a_line_break():
    got = stripped("<p>one</p><p>two")
    expect("\n" in got, because="in the place of a block's tag comes a line break, not a space: the next word begins a "
                                "new line")
    expect_equal(got, "\none\n\ntwo",
                 because="each tag of a block, <p> as well as </p>, leaves one line break, and all of them stay: runs "
                         "of them, and those at the ends, are for normalise_whitespace, which comes later")


@exercise("2.3")
def test_inline_tags_leave_nothing():
    got = stripped('in<b>ter</b>nal <a href="x">li</a>nk <code>f</code>()')
    expect_equal(got, "internal link f()",
                 because="<b>, <a> and <code> stand inside a word as easily as around it: in their place comes "
                         "nothing, not a space")


@exercise("2.3")
def test_capitals_make_no_difference():
    expect_equal(stripped("<P>one</P><Div>two<B>!</B></DIV>").split(), ["one", "two!"],
                 because="<P> is <p>: look names up in lower case")


@exercise("2.3")
def test_entities_come_last():
    page = "&lt;b&gt; makes bold &amp; is &quot;inline&quot;"
    got = stripped(page)
    expect(got != page, because="the entities were not decoded at all: &lt; should become <. html.unescape does that, "
                                "as the last step")
    expect_equal(got, '<b> makes bold & is "inline"',
                 because="&lt;b&gt; is how a page shows the reader <b>: if entities are turned into characters before "
                         "the tags are removed, it is taken for a tag and the text is lost")


@exercise("2.3")
def test_entities_are_decoded_once():
    expect_equal(stripped("write &amp;lt; for &lt;"), "write &lt; for <",
                 because="&amp;lt; shows the reader &lt;: decoded twice, it becomes <, which the page didn't say")


@exercise("2.3")
def test_comparisons_and_generics_are_text():
    for text in ("if a < b and c > d: stop", "List<String> names", "x<y && y>z", "std::vector<int> v", "<your-name>",
                 "1 <2> 3", "->", "a <- b", "<>", "<<EOF", "</", "<"):
        expect_equal(stripped(text), text,
                     because=f"{text!r} holds no HTML element: remove what is in BLOCKS or INLINE and leave the rest; "
                             "a pattern like <[^>]*> takes everything from < to the next >")


@exercise("2.3")
def test_only_a_tag_is_cut_off_at_the_end():
    text = "if x <y and z=3"
    expect_equal(stripped(text), text,
                 because=f"CUT_TAG matches the end of {text!r}, from '<y' on, and y is no element: ask the same "
                         "question there as for TAG, or text at the end of a page is lost")


@exercise("2.3")
def test_hidden_parts_go_with_what_is_in_them():
    page = ('one<script type="text/javascript">if (a < b) { write("<p>no</p>") }</script>'
            "<STYLE>p > b { color: red }</STYLE><!-- <b>no</b> > <script>no</script> --><svg><text>no</text></svg>two")
    expect_equal(stripped(page).split(), ["one", "two"],
                 because="what stands in a script, a style or a comment is not for the reader: it goes, together with "
                         "its tags; _without_hidden does that, before the tags are looked at")


@exercise("2.3")
def test_attributes_may_hold_anything():
    page = """<a title="a > b" href='x>y'>one</a><p class=x data-y="1">two</p><img src="i.png"/><br/>three"""
    expect_equal(stripped(page).split(), ["one", "two", "three"],
                 because="a > inside quotes doesn't end a tag; TAG knows that")


@exercise("2.3")
def test_malformed_markup_loses_no_text():
    cases = {"<p>one <b>two</p> three</b>": ["one", "two", "three"],
             "one </div></div> two": ["one", "two"],
             '<p class="open>one</p> two': ["one", "two"],
             "one <!-- never closed two": ["one", "never", "closed", "two"],
             "one <script>two": ["one", "two"],
             'one <a href="http://cut.o': ["one"],
             "one &unknown; two &amp three": ["one", "&unknown;", "two", "&", "three"]}
    for page, want in cases.items():
        expect_equal(stripped(page).split(), want,
                     because=f"{page[:40]!r} isn't well formed; its text should come through all the same (CUT_TAG is "
                             "for a page that ends inside a tag)")


@exercise("2.3")
def test_an_endless_entity_is_no_character():
    page = "one &#" + "9" * 5000 + "; two"
    try:
        got = stripped(page)
    except ValueError as error:
        expect(False, because=f"a page with an entity of 5000 digits raised {error!r}: html.unescape makes an integer "
                              "of the digits. Put ENDLESS_ENTITY.sub('\ufffd', text) before it")
        raise
    expect_equal(got.split(), ["one", "\ufffd", "two"],
                 because="an entity with thousands of digits is no character: ENDLESS_ENTITY finds such, and U+FFFD "
                         "takes their place")


@exercise("2.3")
def test_the_example():
    expect_equal(stripped("<p>if a < b: <b>stop</b><!-- why? --><p>&lt;b&gt; is bold"),
                 "\nif a < b: stop\n<b> is bold", because="this is the docstring's example, to the letter")


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
    expect_equal(stripped(page).split(), "".join(SeenText(page).pieces).split(),
                 because=f"{page!r}: the words should be those that html.parser finds")


@exercise("2.3")
def test_html_takes_linear_time():
    for piece in ("<!--", "<script>", "<p", '<a "', "<a '\"", "&lt;", "<svg>-->", "<a =", "<b>"):
        times = growth(stripped, lambda n, piece=piece: piece * n, 600)
        expect(times < 30, because=f"8 times as many {piece!r} took {times:.0f} times as long: time that grows faster "
                                   "than the text lets one page hold everything up")


# 2.4 find_emails


def spans(text: str) -> list[tuple[int, int]]:
    got = cleaning.find_emails(text)
    expect(got is not None, because=NO_RESULT)
    found = list(got)
    for span in found:
        expect(isinstance(span, list | tuple) and list(map(type, span)) == [int, int],
               because=f"each address is given as two numbers, (start, end), as match.span() has them; yours gave "
                       f"{span!r:.60}")
    return [tuple(span) for span in found]


def emails(text: str) -> list[str]:
    return [text[start:end] for start, end in spans(text)]


@exercise("2.4")
def test_positions_are_start_and_end():
    expect_equal(spans("to ada@example.org now"), [(3, 18)],
                 because="each address is given as (start, end), so that text[start:end] is it and nothing else")


@exercise("2.4")
def test_addresses_of_all_kinds_are_found():
    for address in ("a@example.org", "ada.lovelace@example.org", "bob_b+lists@mail.example.co.uk",
                    "x-y%z@a-b.example.com", "ADA@EXAMPLE.ORG", "ada99@1.example.net", "jürgen@bücher.example"):
        expect_equal(emails(f"Write to {address} today"), [address],
                     because=f"{address} is an address: local parts hold dots, plus, minus, per cent, digits and "
                             "letters of any language; domains have two labels or more")
    expect_equal(emails("ada@example.org,bob@example.com;<cy@example.net>"),
                 ["ada@example.org", "bob@example.com", "cy@example.net"], because="there are three addresses in it")


@exercise("2.4")
def test_punctuation_around_is_not_part_of_it():
    for before, after in ((" ", "."), ("(", ")"), ("<", ">"), ('"', '",'), ("mailto:", "?"), (" ", "!"),
                          (" ...", "..."), (" ", ", ")):
        got = emails(f"Ask{before}ada@example.org{after}")
        expect(got or not before.endswith("."),
               because=f"in 'Ask{before}ada@example.org{after}' the address wasn't found: a lookbehind such as "
                       "(?<![\\w.%+-]) forbids to begin after a dot. Let the pattern step over the signs before the "
                       "address, [.%+-]*(\\w…), and take that group's span")
        expect_equal(got, ["ada@example.org"],
                     because=f"in 'Ask{before}ada@example.org{after}' the signs around the address belong to the "
                             "sentence: a domain ends with letters, and a local part begins with a letter, digit or _")


@exercise("2.4")
def test_other_uses_of_the_sign_are_left_alone():
    for text in ("@property", "a @ b", "x@y", "root@localhost", "lodash@4.17.21", "@user said", "a@", "3 apples @ 1.50",
                 "me@example.", "C = A@B.T"):
        expect_equal(emails(text), [],
                     because=f"{text!r} holds no address: a domain has a dot, and after the last dot two letters or "
                             "more")


@exercise("2.4")
def test_a_long_name_takes_no_time():
    name = "sphx_glr_auto_examples_model_selection"  # a real documentation file holds it
    for length in (16, 22):
        seconds = cpu_seconds(lambda length=length: cleaning.find_emails(name[:length] + " "), repeats=1)
        expect(seconds < 0.1,
               because=f"a word of {length} letters and no @ took {seconds:.1f} s, and each letter more doubles it: a "
                       "+ inside a repeated group, as in (\\w+[.-]?)+, gives 2**n ways to read n letters, and all are "
                       "tried. Let there be one way only")


@exercise("2.4")
def test_finding_takes_linear_time():
    test_a_long_name_takes_no_time()  # else the texts below would take for ever
    for piece in ("a", "a.", "a-", ".", "%", "a@", "a@b.", "a@bb.", "@", "a@bb.c1 "):
        times = growth(cleaning.find_emails, lambda n, piece=piece: piece * n, 1000)
        expect(times < 30,
               because=f"8 times as many {piece!r} took {times:.0f} times as long. If the search may begin at every "
                       "letter of a word, each time it reads on to the word's end: a lookbehind such as (?<![\\w.%+-]) "
                       "allows the first only")


# 2.6 truncate_by_tokens


def utf8(text: str) -> list[int]:
    return list(text.encode())


def from_utf8(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def cut(text: str, max_tokens: int) -> str:
    try:
        return cleaning.truncate_by_tokens(text, max_tokens, utf8, from_utf8)
    except ValueError as error:
        expect(False, because=f"cutting {text!r} to {max_tokens} tokens raised {error!r}: a character has up to 4 "
                              "tokens here, so up to 3 steps back are needed; and no tokens is a text too, the empty "
                              "one")
        raise


@exercise("2.6")
def test_a_text_that_fits_stays():
    for text, n in (("", 0), ("abc", 3), ("abc", 100), ("né", 3)):
        expect_equal(cut(text, n), text, because=f"{text!r} has {len(utf8(text))} tokens: with {n} allowed it stays "
                                                 "whole")


@exercise("2.6")
def test_a_long_text_is_cut():
    expect_equal(cut("abcdef", 4), "abcd", because="each letter is one token here, so 4 letters stay")
    expect_equal(cut("abcdef", 0), "", because="no tokens, no text")
    expect_equal(cut("ééé", 4), "éé", because="tokens are counted, not characters: é has two here")


@exercise("2.6")
def test_no_character_is_cut_in_two():
    for text, n, want in (("café!", 4, "caf"), ("a한b", 3, "a"), ("a😀b", 4, "a"), ("a😀b", 5, "a😀"), ("😀", 3, "")):
        expect_equal(cut(text, n), want,
                     because=f"{text!r} cut to {n} tokens ends in the middle of a character, and decodes to \ufffd "
                             "there: go back to where that character begins")


@exercise("2.6")
def test_a_replacement_character_of_the_text_stays():
    expect_equal(cut("a\ufffdbc", 4), "a\ufffd",
                 because="this \ufffd stands in the text itself: compare with the text, and don't strip the character")


@exercise("2.6")
def test_half_a_replacement_character_is_no_whole_one():
    expect_equal(cut("a\ufffdbc", 3), "a",
                 because="\ufffd has 3 tokens here, and 2 of them decode to a whole \ufffd again: 'a\ufffd' is how "
                         "the text begins, and has 4 tokens where 3 are allowed. Encode what you would return once "
                         "more, and count")


@exercise("2.6")
def test_a_tokenizer_that_changes_texts_is_refused():
    with expect_raises(ValueError, because="a tokenizer that turns everything to lower case doesn't give the text "
                                           "back: its pieces are not the beginning of it, and cutting with it would "
                                           "change it"):
        cleaning.truncate_by_tokens("HELLO WORLD, HELLO", 9, lambda text: utf8(text.lower()), from_utf8)


@exercise("2.6")
@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(st.text(st.sampled_from("aé한😀\ufffd\u0301 "), max_size=20), st.integers(0, 40))
def test_the_longest_beginning_that_fits(text, max_tokens):
    want = max((text[:i] for i in range(len(text) + 1) if len(utf8(text[:i])) <= max_tokens), key=len)
    expect_equal(cut(text, max_tokens), want,
                 because=f"{text!r} with {max_tokens} tokens: the longest beginning with at most so many is wanted")
