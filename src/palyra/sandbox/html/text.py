"""Turns an HTML page into text that a model can read: headings, paragraphs, lists, links."""

from urllib.parse import urljoin

from palyra.sandbox.html.tokenizer import HtmlTag, HtmlText, tokens, unescape

MAX_LINK_CHARS = 300
MAX_LINKS = 5000
"""The maximum number of links shown for one page."""

_UNREAD = frozenset({"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas"})
_BLOCKS = frozenset(
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header"
    " hr li main nav ol p pre section table tbody td tfoot th thead tr ul".split()
)
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())


def read_page(html: str, *, url: str) -> tuple[str, str]:
    """Return the title and the text of a page. Links follow their text, as addresses that can be fetched."""
    page = _PageText(url)
    page.feed(html)
    lines = (" ".join(line.split()) for line in "".join(page.pieces).split("\n"))
    text: list[str] = []
    for line in lines:
        if line or (text and text[-1]):
            text.append(line)
    return " ".join("".join(page.title).split()), "\n".join(text).strip()


class _PageText:
    """Collects the readable text from tags and texts."""

    def __init__(self, url: str) -> None:
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._url = url
        self._unread = ""
        self._depth = 0
        self._in_title = False
        self._link = ""
        self._links = 0

    def feed(self, html: str) -> None:
        """Process a full page."""
        for result in tokens(html):
            match result:
                case HtmlText(words):
                    self._take_text(unescape(words))
                case HtmlTag(name, attributes, is_end=False):
                    self._take_start(name, attributes)
                case HtmlTag(name):
                    self._take_end(name)

    def _take_start(self, tag: str, attributes: dict[str, str]) -> None:
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
            self._link = self._target(unescape(attributes.get("href", "")))
        elif tag == "img" and (words := unescape(attributes.get("alt", ""))):
            self.pieces.append(f"[image: {words}]")

    def _take_end(self, tag: str) -> None:
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

    def _take_text(self, words: str) -> None:
        if self._in_title:
            self.title.append(words)
        elif not self._unread:
            self.pieces.append(words)

    def _target(self, href: str) -> str:
        self._links += 1
        if self._links > MAX_LINKS or len(href) > MAX_LINK_CHARS:
            return ""
        try:
            link = urljoin(self._url, href.strip())
        except ValueError:
            return ""
        plain = link.partition("#")[0]
        is_other = plain != self._url and plain.startswith(("http://", "https://")) and len(plain) <= MAX_LINK_CHARS
        return plain if is_other else ""
