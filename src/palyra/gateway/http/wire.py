"""Requests and answers as bytes: JSON in, JSON or a problem document out."""

from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.errors import PalyraError, Unavailable
from palyra.gateway.cursor import to_position
from palyra.gateway.status import HTTP_STATUS, MethodNotAllowed, RequestMalformed, RequestTooLarge, nearest

MAX_BODY_BYTES = 1024 * 1024
MAX_PAGE = 500

T = TypeVar("T")
_encode = msgspec.json.Encoder()


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as clients see it."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retry_after: float | None = None


def reply(value: object, *, status: int = 200) -> Response:
    """Answer with a value as JSON."""
    return Response(_encode.encode(value), status_code=status, media_type="application/json")


def problem(error: PalyraError) -> Response:
    """Answer with an error."""
    status = nearest(HTTP_STATUS, error)
    wait = error.retry_after.total_seconds() if isinstance(error, Unavailable) else None
    document = Problem(
        type=f"urn:palyra:error:{error.code}",
        title=error.code.replace("_", " "),
        status=status,
        code=error.code,
        detail=error.detail,
        retry_after=wait,
    )
    headers = {"retry-after": str(max(1, round(wait)))} if wait is not None else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    return Response(_encode.encode(document), status, headers=headers, media_type="application/problem+json")


async def body(request: Request, kind: type[T]) -> T:
    """Read the body as JSON of a kind, never more of it than the limit."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise RequestTooLarge
    try:
        return msgspec.json.decode(bytes(data) or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise RequestMalformed(f"The request's body does not fit: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestMalformed(f"The request's body is no valid JSON in UTF-8: {error}.") from None


def number(request: Request, name: str, *, default: int, most: int | None = None) -> int:
    """Read a query parameter that counts something."""
    text = request.query_params.get(name)
    if text is None:
        return default
    # Sixteen digits are more than any tape will have, and fewer than the databases' integers hold.
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise RequestMalformed(f"{name} must be a whole number, not {text[:40]!r}.")
    return int(text) if most is None else max(1, min(int(text), most))


def cursor(request: Request) -> tuple[int, str] | None:
    """Read where the page before this one ended."""
    text = request.query_params.get("cursor")
    return None if text is None else to_position(text)
