"""Turns an HTML page into text that a model can read: headings, paragraphs, lists, links."""

from html.parser import HTMLParser
from urllib.parse import urljoin

MOST_LINK_CHARS = 300

_UNREAD = frozenset({"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas"})
_BLOCKS = frozenset(
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header"
    " hr li main nav ol p pre section table tbody td tfoot th thead tr ul".split()
)
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())


def read_page(html: str, *, url: str) -> tuple[str, str]:
    """Return the title and the text of a page. Links stand behind their text, as addresses that can be fetched."""
    page = _Page(url)
    page.feed(html)
    page.close()
    lines = (" ".join(line.split()) for line in "".join(page.pieces).split("\n"))
    text: list[str] = []
    for line in lines:
        if line or (text and text[-1]):
            text.append(line)
    return " ".join("".join(page.title).split()), "\n".join(text).strip()


class _Page(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._url = url
        self._unread = ""
        self._depth = 0
        self._in_title = False
        self._link = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = not self.title
        if self._unread:
            self._depth += tag == self._unread
            return
        if tag in _UNREAD:
            self._unread, self._depth = tag, 1
            return
        if tag in _BLOCKS:
            self.pieces.append("\n")
        if tag == "li":
            self.pieces.append("- ")
        elif tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.pieces.append("#" * int(tag[1]) + " ")
        elif tag == "a":
            self._link = self._target(dict(attrs).get("href"))
        elif tag == "img" and (words := dict(attrs).get("alt")):
            self.pieces.append(f"[image: {words}]")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if self._unread:
            self._depth -= tag == self._unread
            if self._depth <= 0:
                self._unread = ""
            return
        if tag == "a" and self._link:
            self.pieces.append(f" <{self._link}>")
            self._link = ""
        if tag in _BLOCKS and tag not in _VOID:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._unread:
            self.pieces.append(data)

    def _target(self, href: str | None) -> str:
        try:
            link = urljoin(self._url, (href or "").strip())
        except ValueError:
            return ""
        plain = link.partition("#")[0]
        is_other = plain != self._url and plain.startswith(("http://", "https://")) and len(plain) <= MOST_LINK_CHARS
        return plain if is_other else ""
