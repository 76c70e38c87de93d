"""Requests and responses as bytes: JSON in, JSON or a problem document out."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.errors import PalyraError, Unavailable
from palyra.gateway.error_status import HTTP_STATUS, MethodNotAllowed, RequestInvalid, RequestTooLarge, nearest
from palyra.gateway.http.operation import Parameter

MAX_BODY_BYTES = 1024 * 1024

T = TypeVar("T")
_encode = msgspec.json.Encoder()


class ProblemDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as clients see it."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retry_after: float | None = None


def json_response(value: object, *, status: int = 200) -> Response:
    """Respond with a value as JSON."""
    return Response(_encode.encode(value), status_code=status, media_type="application/json")


def problem_response(error: PalyraError) -> Response:
    """Respond with an error."""
    status = nearest(HTTP_STATUS, error)
    wait = error.retry_after.total_seconds() if isinstance(error, Unavailable) else None
    document = ProblemDocument(
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


async def read_body(request: Request, kind: type[T]) -> T:
    """Decode the body as JSON of a type, and read at most the limit."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise RequestTooLarge
    try:
        return msgspec.json.decode(bytes(data) or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise RequestInvalid(f"The body of the request is not valid: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"The body of the request is not JSON in UTF-8: {error}.") from None


def number(request: Request, parameter: Parameter) -> int:
    """Read an integer query parameter; its default, or 0, if it is not set."""
    text = request.query_params.get(parameter.name)
    if text is None:
        return int(parameter.default or 0)
    # Sixteen digits are more than any tape will have, and fewer than the databases' integers hold.
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise RequestInvalid(f"{parameter.name} must be an integer, not {text[:40]!r}.")
    return int(text) if parameter.maximum is None else max(1, min(int(text), parameter.maximum))


def cursor(request: Request, decode: Callable[[str], T]) -> T | None:
    """Read the cursor of a page."""
    text = request.query_params.get("cursor")
    return None if text is None else decode(text)


def flag(request: Request, name: str) -> bool:
    """Read a boolean query parameter; False if it is not set."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise RequestInvalid(f"{name} is true or false.")
    return text == "true"
