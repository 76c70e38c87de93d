"""Images of a request: in the body as `data:` URLs, or named by URL."""

import base64
import binascii
import hashlib
import re

from palyra.core.model.prompt import Image
from palyra.gateway.http.openai.errors import ParameterUnsupported

MAX_BYTES = 5 * 1024 * 1024
MAX_PICTURES = 20
LINK = "link"
"""The media type of an image that is not fetched yet."""

_DATA = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_BEGINNINGS = (
    ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ("image/gif", re.compile(rb"GIF8[79]a")),
    ("image/webp", re.compile(rb"RIFF.{4}WEBP", re.DOTALL)),
)


class RequestImages:
    """The images of one request, by digest."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        """The URLs of images that are not fetched yet, and their parameter in the request."""

    def read(self, url: str, *, param: str) -> Image:
        """Add an image, or raise `ParameterUnsupported` saying what is wrong with it."""
        if url[:8].lower().startswith(("http://", "https://")):
            self.links.setdefault(url, param)
            self._count(param)
            return Image(digest=url, media_type=LINK, size=0)
        head = _DATA.match(url[:100])
        if head is None:
            raise ParameterUnsupported(
                param, "An image must be a URL such as data:image/png;base64,… or https://example.org/a.png."
            )
        try:
            content = base64.b64decode(url[head.end() :], validate=True)
        except (binascii.Error, ValueError):
            raise ParameterUnsupported(param, "The image is not valid base64.") from None
        image = read_image(content, param=param)
        self.found[image.digest] = content
        self._count(param)
        return image

    def _count(self, param: str) -> None:
        if len(self.found) + len(self.links) > MAX_PICTURES:
            raise ParameterUnsupported(param, f"A request may have at most {MAX_PICTURES} images.")


def read_image(content: bytes, *, param: str, where: str = "") -> Image:
    """Return the image's metadata, or raise `ParameterUnsupported`; `where` says which image, if that is not clear."""
    if len(content) > MAX_BYTES:
        raise ParameterUnsupported(param, "An image may have at most 5 MiB. Make it smaller.")
    media_type = next((name for name, begins in _BEGINNINGS if begins.match(content)), None)
    if media_type is None:
        raise ParameterUnsupported(
            param, f"The format of the image{where} is not supported. Send PNG, JPEG, GIF or WebP."
        )
    return Image(digest=hashlib.sha256(content).hexdigest(), media_type=media_type, size=len(content))


def is_link(image: Image) -> bool:
    """Return whether an image is not fetched yet; its digest is then its URL."""
    return image.media_type == LINK
