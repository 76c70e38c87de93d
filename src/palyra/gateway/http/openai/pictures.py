"""Pictures that come in the body, as `data:` URLs."""

import base64
import binascii
import hashlib
import re

from palyra.core.prompt import Image
from palyra.gateway.http.openai.errors import ParameterRefused

MOST_BYTES = 5 * 1024 * 1024
MOST_PICTURES = 20

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

    def read(self, url: str, *, param: str) -> Image:
        """Take a picture in, or raise `ParameterRefused` saying what is wrong with it."""
        head = _DATA.match(url[:100])
        if head is None:
            raise ParameterRefused(
                param,
                "A picture must be in the request itself, as data:image/png;base64,…: nothing is fetched for a caller."
                if url[:8].lower().startswith(("http://", "https://"))
                else "A picture must be a URL such as data:image/png;base64,….",
            )
        try:
            content = base64.b64decode(url[head.end() :], validate=True)
        except (binascii.Error, ValueError):
            raise ParameterRefused(param, "The picture is no valid base64.") from None
        if len(content) > MOST_BYTES:
            raise ParameterRefused(param, "A picture may have 5 MiB at the most. Make it smaller.")
        media_type = next((name for name, begins in _BEGINNINGS if begins.match(content)), None)
        if media_type is None:
            raise ParameterRefused(param, "The picture is none that models understand: send PNG, JPEG, GIF or WebP.")
        digest = hashlib.sha256(content).hexdigest()
        self.found[digest] = content
        if len(self.found) > MOST_PICTURES:
            raise ParameterRefused(param, f"A request may have {MOST_PICTURES} pictures at the most.")
        return Image(digest=digest, media_type=media_type, size=len(content))
