"""Splits HTML into tags and texts, mostly as browsers do, in time linear in its length.

The parser of the standard library reads on to the end of the page from each tag that does not end: a page of two
megabytes blocks it for hours. Here nothing is searched for again that was not found once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape as _unescape

_RAW = frozenset({"script", "style", "iframe", "noembed", "noframes", "xmp"})
"""Elements that contain no tags: they end where they are closed."""

_NAME = re.compile(r"[A-Za-z][^\s/>]*+")
_SPACE = re.compile(r"[\s/]*+")
_ATTRIBUTE = re.compile(r"=?[^\s/>=]*+")
_EQUALS = re.compile(r"\s*+=\s*+")
_BARE = re.compile(r"[^\s>]*+")
_LONG_NUMBER = re.compile(r"&#[0-9]{9,}+;?")
"""Not a character, and longer than what Python converts to a number."""


@dataclass(frozen=True, slots=True)
class HtmlTag:
    """The start or the end of an element, with its name and its attribute names in lower case."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class HtmlText:
    """The text between tags, as it is written."""

    words: str


def unescape(text: str) -> str:
    """Return a text with `&amp;` and the like replaced by their characters."""
    return _unescape(_LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text


def tokens(html: str) -> Iterator[HtmlTag | HtmlText]:
    """Yield tags and texts. Something that begins like a tag and never ends is text."""
    scan = _HtmlScanner(html)
    begun = at = 0
    while (at := html.find("<", at)) >= 0:
        tag, end = scan.markup(at)
        if end == at:
            # Only a character, as in a < b.
            at += 1
            continue
        if at > begun:
            yield HtmlText(html[begun:at])
        if end < 0:
            begun = at if tag is None and not html.startswith(("<!", "<?"), at) else len(html)
            break
        if tag is not None:
            yield tag
            if tag.name in _RAW and not tag.is_end:
                end = scan.end_of_raw(tag.name, end)
        begun = at = end
    if begun < len(html):
        yield HtmlText(html[begun:])


class _HtmlScanner:
    """Finds where things end in a page. What is not found from one offset is not found from a later one either."""

    def __init__(self, html: str) -> None:
        self._html = html
        self._gone: set[str] = set()

    def markup(self, at: int) -> tuple[HtmlTag | None, int]:
        """Return the tag that begins here, if it is one, and where it ends: here if it is not a tag, -1 if never."""
        html = self._html
        if html.startswith("<!--", at):
            # As in browsers, this one may be as short as <!-->.
            return None, self._behind("-->", at + 2)
        if html.startswith(("<!", "<?"), at):
            return None, self._behind(">", at)
        is_end = html.startswith("</", at)
        name = _NAME.match(html, at + 1 + is_end)
        if name is None:
            return (None, self._behind(">", at)) if is_end else (None, at)
        attributes, end = self._attributes(name.end())
        return (HtmlTag(name[0].lower(), attributes, is_end), end) if end >= 0 else (None, -1)

    def end_of_raw(self, name: str, at: int) -> int:
        """Return where an element that contains no tags is closed: the end of the page if it is not."""
        match = re.compile(f"</{name}(?=[\\s/>])", re.IGNORECASE).search(self._html, at)
        return match.start() if match is not None else len(self._html)

    def _attributes(self, at: int) -> tuple[dict[str, str], int]:
        """Return the attributes from here on and where the tag ends, -1 if it does not."""
        html, values = self._html, dict[str, str]()
        if ">" in self._gone or self._behind(">", at) < 0:
            return values, -1
        while True:
            at = _ends(_SPACE, html, at)
            if at >= len(html):
                return values, -1
            if html[at] == ">":
                return values, at + 1
            begin, at = at, _ends(_ATTRIBUTE, html, at)
            name, value = html[begin:at].lower(), ""
            if (equals := _EQUALS.match(html, at)) is not None:
                value, at = self._value(equals.end())
            values.setdefault(name, value)

    def _value(self, at: int) -> tuple[str, int]:
        quote = self._html[at : at + 1]
        if quote in ("'", '"') and (end := self._behind(quote, at + 1)) >= 0:
            return self._html[at + 1 : end - 1], end
        end = _ends(_BARE, self._html, at)
        return self._html[at:end], end

    def _behind(self, text: str, at: int) -> int:
        """Return the offset after the next such text, -1 if there is none."""
        index = -1 if text in self._gone else self._html.find(text, at)
        if index < 0:
            self._gone.add(text)
            return -1
        return index + len(text)


def _ends(pattern: re.Pattern[str], html: str, at: int) -> int:
    match = pattern.match(html, at)
    return match.end() if match is not None else at
