"""Reads one HTTP response from a connection, within limits."""

import asyncio
import zlib
from dataclasses import dataclass, field

import httptools

from palyra.core.errors import Unavailable

BLOCK_BYTES = 64 * 1024
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 200


class HttpResponseInvalid(Unavailable):
    """The response is not valid HTTP."""


@dataclass(slots=True)
class HttpResponse:
    """A response: its status, its headers with names in lower case, and its body as far as it was read."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    is_complete: bool = True
    """The body was not cut, neither at the limit nor by the peer."""

    def header(self, name: str) -> str:
        """Return the first header of that name, or an empty string."""
        return next((value for match, value in self.headers if match == name), "")


async def read_response(reader: asyncio.StreamReader, *, head_only: bool, max_bytes: int) -> HttpResponse:
    """Read a response to its end, or until the body reaches its limit."""
    taking = _ResponseParser(max_bytes=max_bytes, head_only=head_only)
    parser = httptools.HttpResponseParser(taking)
    taking.parser = parser
    idle = used = 0
    try:
        while not taking.is_done:
            piece = await reader.read(BLOCK_BYTES)
            if not piece:
                taking.end()
                break
            parser.feed_data(piece)
            # Headers, also those after the body, and the framing between its chunks.
            idle = idle + len(piece) if len(taking.response.body) == used else 0
            used = len(taking.response.body)
            if idle > MAX_HEADER_BYTES and not taking.is_done:
                raise HttpResponseInvalid("The headers of the response are too long.")
    except httptools.HttpParserUpgrade:
        raise HttpResponseInvalid("The server wants to switch to another protocol.") from None
    except httptools.HttpParserError as error:
        if not taking.is_done:
            raise HttpResponseInvalid(f"The response is not valid HTTP: {error}.") from error
    if not taking.has_headers:
        raise HttpResponseInvalid("The connection was closed before a response came.")
    return _unpacked(taking.response, max_bytes)


class _ResponseParser:
    """Receives the parser's events."""

    parser: httptools.HttpResponseParser

    def __init__(self, *, max_bytes: int, head_only: bool) -> None:
        self.response = HttpResponse()
        self.has_headers = False
        self.is_done = False
        self._most_bytes = max_bytes
        self._head_only = head_only
        self._body = bytearray()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.response.headers) < MAX_HEADERS:
            self.response.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200:
            # An informational response; the final one follows.
            self.response.headers.clear()
            return
        self.response.status = status
        self.has_headers = True
        self.is_done = self._head_only

    def on_body(self, piece: bytes) -> None:
        room = self._most_bytes - len(self._body)
        self._body += piece[:room]
        if len(piece) > room:
            self.response.is_complete = False
            self.is_done = True
        self.response.body = self._body  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        self.is_done = self.has_headers

    def end(self) -> None:
        """Handle the end of the connection: too early, if the peer had announced more."""
        if self.response.header("content-length") or self.response.header("transfer-encoding"):
            self.response.is_complete = False


def _unpacked(response: HttpResponse, max_bytes: int) -> HttpResponse:
    """Undo compression that was not requested, if the encoding is known."""
    body = bytes(response.body)
    coding = response.header("content-encoding").strip().lower()
    if coding in ("gzip", "x-gzip", "deflate") and body:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            body = unpacker.decompress(body, max_bytes)
        except zlib.error:
            raise HttpResponseInvalid("The response is compressed and cannot be decompressed.") from None
        response.is_complete = response.is_complete and unpacker.eof and not unpacker.unused_data
    elif coding not in ("", "identity"):
        raise HttpResponseInvalid(f"The response is compressed as {coding!r}, which was not requested.")
    response.body = body
    return response
