"""A page is read as a person would read it aloud."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.sandbox.html.text import read_page

PAGE = """<!doctype html><html><head><title>A  page</title><style>p { color: red }</style>
<script>document.write("<p>no</p>")</script></head><body><nav><a href="/home">Home</a></nav>
<h1>Heading &amp; more</h1><p>One <b>two</b>
three.</p><ul><li>first<li>second <a href="https://other.example/x#y">link</a></ul>
<img src="a.png" alt="a cat"><noscript>no</noscript>
<a href="javascript:alert(1)">run</a><a href="#top">top</a></body>"""


def test_a_page_becomes_text() -> None:
    title, text = read_page(PAGE, url="https://example.org/a")
    assert title == "A page"
    assert text.split("\n") == [
        "Home <https://example.org/home>",
        "",
        "# Heading & more",
        "",
        "One two",
        "three.",
        "",
        "- first",
        "- second link <https://other.example/x>",
        "",
        "[image: a cat]",
        "runtop",
    ]


def test_a_page_that_never_closes_anything_is_read() -> None:
    assert read_page("<head><title>T</title><p>one<p>two", url="https://example.org/")[1] == "one\ntwo"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("a < b and <b>c</b> > d", "a < b and c > d"),
        ("<p title='a > b'>one</p>two", "one\ntwo"),
        (
            '<a class=x href=/y>one</a> <A HREF = "/z?a=1&amp;b=2">two</A>',
            "one <https://e.org/y> two <https://e.org/z?a=1&b=2>",
        ),
        ('<a title=" href=/no">one</a>', "one"),
        ("one<!-- <p>no</p> -->two<!-->three<?no?><!no>four", "onetwothreefour"),
        ("<![CDATA[ one ]]>two<![x", "two"),
        ("one<script>if (a </b) '<p>'</script >two<style>p</style>three", "onetwothree"),
        ("one <b", "one <b"),
        ("one <a href='x", "one <a href='x"),
        ("one</>two</ no>three", "onetwothree"),
        ("<svg><svg>no</svg>no</svg>one", "one"),
        ("&lt;&#65;&#x42;&" + "#9" + "9" * 5000 + ";", "<AB\ufffd"),
    ],
)
def test_what_browsers_read_is_read(html: str, text: str) -> None:
    assert read_page(html, url="https://e.org/")[1] == text


@pytest.mark.parametrize("end", ["", ">", "'>", '">', "-->"])
@pytest.mark.parametrize(
    "unit",
    ["<", "</", "<!", "<!--", "<![", "<?", "<a ", "<a b", "<a b='", '<a b="', "<a b=", "<a/", "<!x [", "<script", "&#"],
)
def test_no_page_takes_long_because_nothing_in_it_ends(unit: str, end: str) -> None:
    """Whoever looks for the end of each of them needs a hundred billion steps, and the test its whole time."""
    read_page(unit * (400_000 // len(unit)) + end, url="https://example.org/")


@given(st.text(alphabet="<>/ab!-\"'= &;#\n", max_size=200))
def test_no_page_breaks_it(html: str) -> None:
    read_page(html, url="https://example.org/")
