"""A page is read as a person would read it aloud."""

from hypothesis import given
from hypothesis import strategies as st

from palyra.sandbox.readable import read_page

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


@given(st.text(alphabet="<>/ab!-\"'= &;#\n", max_size=200))
def test_no_page_breaks_it(html: str) -> None:
    read_page(html, url="https://example.org/")
