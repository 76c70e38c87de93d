"""A large response that is produced while it is sent, no faster than the client reads it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from palyra.gateway.http.client_presence import while_connected


class StreamedDownload:
    """Sends pieces as they are produced. A failure before the first is an ordinary error.

    A later failure truncates the response.
    """

    def __init__(self, pieces: AsyncGenerator[bytes, None], *, media: str, name: str) -> None:
        self._pieces = pieces
        self._headers = {
            "content-type": media,
            "content-disposition": f'attachment; filename="{name}"',
            "cache-control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        start = {"type": "http.response.start", "status": 200, "headers": raw}
        async with aclosing(self._pieces) as pieces, while_connected(receive):
            begun = False
            # A HEAD request gets the headers, or the error, without waiting for the rest.
            async for piece in pieces:
                if not begun:
                    await send(start)
                    begun = True
                    if scope["method"] == "HEAD":
                        break
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
