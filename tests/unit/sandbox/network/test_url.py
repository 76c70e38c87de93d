"""A URL has one meaning, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.errors import PalyraError
from palyra.sandbox.network.url import HostNotPublic, UrlInvalid, UrlTarget, parse, resolve_redirect

GOOD = {
    "https://example.org": UrlTarget("https", "example.org", 443, "/"),
    "HTTP://EXAMPLE.org:8080/a?b=c#d": UrlTarget("http", "example.org", 8080, "/a?b=c"),
    "https://example.org?x": UrlTarget("https", "example.org", 443, "/?x"),
    "https://1.2.3.4/": UrlTarget("https", "1.2.3.4", 443, "/"),
    "https://[2606:4700:0::1111]/": UrlTarget("https", "2606:4700::1111", 443, "/"),
    "https://bücher.example/ä?ö": UrlTarget("https", "xn--bcher-kva.example", 443, "/%C3%A4?%C3%B6"),
    "https://example.org/a%20b": UrlTarget("https", "example.org", 443, "/a%20b"),
    "https://a_b.example.org/@x:y": UrlTarget("https", "a_b.example.org", 443, "/@x:y"),
}
REFUSED = (
    "",
    "example.org",
    "//example.org/",
    "ftp://example.org/",
    "file:///etc/passwd",
    "gopher://example.org/",
    "javascript:alert(1)",
    "https:///path",
    "https://",
    "https://user@example.org/",
    "https://user:pass@example.org/",
    "https://example.org@127.0.0.1/",
    "https://example.org\\@127.0.0.1/",
    "https://127.0.0.1\\.example.org/",
    "https://example.org /",
    "https://exam\tple.org/",
    "https://exam\nple.org/",
    "https://example.org/\r\nHost: inside",
    "https://exam\u200bple.org/",
    "https://example.org./",
    "https://example..org/",
    "https://.example.org/",
    "https://-example.org/",
    "https://" + "a" * 64 + ".org/",
    "https://" + "a." * 130 + "org/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://0x7f.0.0.1/",
    "https://127.1/",
    "https://127.0.1/",
    "https://1.2.3.4.5/",
    "https://1.2.3.256/",
    "https://1.2.3.04/",
    "https://example.0x7f/",
    "https://1.2.3.4./",
    "https://[::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[::1/",
    "https://::1/",
    "https://[1.2.3.4]/",
    "https://[::ffff:127.0.0.1.1]/",
    "https://example.org:0/",
    "https://example.org:65536/",
    "https://example.org:/",
    "https://example.org:80:80/",
    "https://example.org:\uff18\uff10/",
    "https://exa%6dple.org/",
    "https://example.org/" + "x" * 9000,
)
INSIDE = (
    "http://localhost/",
    "http://LOCALHOST:7717/",
    "http://x.localhost/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "http://printer.local/",
    "http://metadata.google.internal/",
    "http://router/",
    "http://metadata/",
    "http://nas.home.arpa/",
)


@pytest.mark.parametrize("text", GOOD)
def test_a_good_url_is_taken_apart(text: str) -> None:
    assert parse(text) == GOOD[text]
    assert parse(parse(text).url) == GOOD[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_could_mean_something_else_is_refused(text: str) -> None:
    with pytest.raises(UrlInvalid):
        parse(text)


@pytest.mark.parametrize("text", INSIDE)
def test_names_of_the_inside_are_refused(text: str) -> None:
    with pytest.raises(HostNotPublic):
        parse(text)


def test_wide_digits_are_no_way_to_an_address() -> None:
    # They become plain digits when the name is encoded, so the address is judged as any other.
    assert parse("http://\uff11\uff12\uff17.0.0.1/").host == "127.0.0.1"


def test_a_redirect_is_read_like_any_url() -> None:
    start = parse("https://example.org/a/b?c")
    assert resolve_redirect(start, "../d").url == "https://example.org/d"
    assert resolve_redirect(start, "//other.example/x").url == "https://other.example/x"
    with pytest.raises(UrlInvalid):
        resolve_redirect(start, "https://user@127.0.0.1/")
    with pytest.raises(HostNotPublic):
        resolve_redirect(start, "//localhost/")
    with pytest.raises(UrlInvalid):
        resolve_redirect(start, "file:///etc/passwd")


@given(
    st.text(max_size=60).map("http://".__add__) | st.from_regex(r"https?://[0-9a-fx.:\[\]%@\\]{1,20}/?", fullmatch=True)
)
def test_nothing_breaks_and_what_passes_is_plain(text: str) -> None:
    try:
        target = parse(text)
    except PalyraError:
        return
    assert target.url.isascii()
    assert target.url.isprintable()
    assert "@" not in target.authority
    assert parse(target.url) == target
