"""Pictures that come in the body, as `data:` URLs, or are named there by where they are."""

import base64
import binascii
import hashlib
import re

from palyra.core.prompt import Image
from palyra.gateway.http.openai.errors import ParameterRefused

MOST_BYTES = 5 * 1024 * 1024
MOST_PICTURES = 20
LINK = "link"
"""Stands for the type of a picture that is yet to be fetched."""

_DATA = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_BEGINNINGS = (
    ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ("image/gif", re.compile(rb"GIF8[79]a")),
    ("image/webp", re.compile(rb"RIFF.{4}WEBP", re.DOTALL)),
)


class Pictures:
    """The pictures of one request, by their digests."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        """The addresses of those that are yet to be fetched, and where they stand in the request."""

    def read(self, url: str, *, param: str) -> Image:
        """Take a picture in, or raise `ParameterRefused` saying what is wrong with it."""
        if url[:8].lower().startswith(("http://", "https://")):
            self.links.setdefault(url, param)
            self._count(param)
            return Image(digest=url, media_type=LINK, size=0)
        head = _DATA.match(url[:100])
        if head is None:
            raise ParameterRefused(
                param, "A picture must be a URL such as data:image/png;base64,…, or https://example.org/a.png."
            )
        try:
            content = base64.b64decode(url[head.end() :], validate=True)
        except (binascii.Error, ValueError):
            raise ParameterRefused(param, "The picture is no valid base64.") from None
        image = taken_in(content, param=param)
        self.found[image.digest] = content
        self._count(param)
        return image

    def _count(self, param: str) -> None:
        if len(self.found) + len(self.links) > MOST_PICTURES:
            raise ParameterRefused(param, f"A request may have {MOST_PICTURES} pictures at the most.")


def taken_in(content: bytes, *, param: str, where: str = "") -> Image:
    """Return what is known of a picture, or raise `ParameterRefused`; `where` says which one, if that is not plain."""
    if len(content) > MOST_BYTES:
        raise ParameterRefused(param, "A picture may have 5 MiB at the most. Make it smaller.")
    media_type = next((name for name, begins in _BEGINNINGS if begins.match(content)), None)
    if media_type is None:
        raise ParameterRefused(
            param, f"The picture{where} is none that models understand: send PNG, JPEG, GIF or WebP."
        )
    return Image(digest=hashlib.sha256(content).hexdigest(), media_type=media_type, size=len(content))


def is_link(image: Image) -> bool:
    """Tell whether a picture is yet to be fetched; its digest is its address."""
    return image.media_type == LINK
