"""Requests from web pages (CORS): the headers that a browser sends, and those that let a page read the response."""

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Message, Scope

from palyra.gateway.allowed_hosts import RequestOrigin
from palyra.gateway.error_status import RequestInvalid

PREFLIGHT_SECONDS = 600
_EXPOSED = b"retry-after, x-palyra-run-id, x-palyra-session-id, x-request-id"


def request_origin(scope: Scope) -> RequestOrigin:
    """Return which host a request names, and which page sent it."""
    data: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in (b"host", b"origin", b"sec-fetch-site"):
            if name in data:
                raise RequestInvalid(f"The request has more than one header {name.decode()!r}.")
            data[name] = value
    host, origin, fetch_site = (
        data[name].decode("latin-1") if name in data else None for name in (b"host", b"origin", b"sec-fetch-site")
    )
    if host is None and scope.get("http_version") != "1.0":
        raise RequestInvalid("The request has no header 'host'.")
    local = scope.get("server") or (None,)
    return RequestOrigin(host, origin, fetch_site, scope["scheme"], local[0])


def is_preflight(scope: Scope) -> bool:
    """Return whether this is a CORS preflight request."""
    return scope["method"] == "OPTIONS" and "access-control-request-method" in HTTPConnection(scope).headers


def preflight(scope: Scope) -> Response:
    """Answer a preflight: an allowed page may send anything; the token decides what it may do."""
    requested_headers = HTTPConnection(scope).headers
    headers = {
        "access-control-allow-methods": requested_headers["access-control-request-method"],
        "access-control-allow-headers": requested_headers.get("access-control-request-headers", ""),
        "access-control-max-age": str(PREFLIGHT_SECONDS),
    }
    if requested_headers.get("access-control-request-private-network") == "true":
        headers["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=headers)


def permit(message: Message, origin: bytes) -> Message:
    """Let pages of an allowed origin read a response."""
    if message["type"] != "http.response.start":
        return message
    more = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]
    return {**message, "headers": [*message.get("headers", ()), *more]}
