"""HTTP calls of a client, with only the standard library and msgspec. All calls block, and all have a timeout."""

from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from palyra.core.version import VERSION
from palyra.gateway.client.errors import (
    DaemonResponseInvalid,
    DaemonUnreachable,
    RemoteError,
    reason_of,
    refused,
    retry_until_reachable,
    unreachable,
)
from palyra.gateway.client.target import DaemonTarget
from palyra.gateway.client.tls import context_for

MAX_PROBLEM_BYTES = 64 * 1024

Query = Mapping[str, str | int | bool | None]

T = TypeVar("T")


class _Problem(Struct):
    code: str = DaemonResponseInvalid.code
    detail: str = ""
    title: str = ""
    retry_after: float | None = None


class HttpCalls:
    """Calls one daemon. The target is looked up for each request: a restarted daemon may use another address."""

    def __init__(self, find: Callable[[], DaemonTarget], *, seconds: float, timeout: float) -> None:
        """`timeout` is how many seconds to wait for an unreachable daemon; requests are then sent again."""
        self._find = find
        self._seconds = seconds
        self._timeout = timeout

    def get(self, kind: type[T], path: str, query: Query | None = None) -> T:
        """Read something."""
        return _decoded(kind, self._request("GET", path, query=query))

    def post(self, kind: type[T], path: str, body: object = None) -> T:
        """Create something, or act on it."""
        return _decoded(kind, self._request("POST", path, body=body))

    def put(self, kind: type[T], path: str, body: object) -> T:
        """Replace something."""
        return _decoded(kind, self._request("PUT", path, body=body))

    def patch(self, kind: type[T], path: str, body: object) -> T:
        """Change something."""
        return _decoded(kind, self._request("PATCH", path, body=body))

    def download(self, path: str, query: Query | None = None) -> bytes:
        """Return a document as the raw bytes that the daemon sends."""
        return self._request("GET", path, query=query)

    def _request(self, method: str, path: str, *, query: Query | None = None, body: object = None) -> bytes:
        return retry_until_reachable(lambda: self._attempt(method, path, query=query, body=body), seconds=self._timeout)

    def _attempt(self, method: str, path: str, *, query: Query | None, body: object) -> bytes:
        target = self._find()
        headers = {"Authorization": f"Bearer {target.token}", "User-Agent": f"palyra/{VERSION}"}
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        connection = _connection(target, self._seconds)
        try:
            connection.request(method, _address(path, query or {}), body=content, headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(response, target)
            return _content(response)
        except (OSError, HTTPException) as error:
            raise unreachable(target.address, reason_of(error)) from error
        finally:
            connection.close()


def _connection(target: DaemonTarget, timeout: float) -> HTTPConnection:
    parts = urlsplit(target.address)
    if not target.tls:
        return HTTPConnection(parts.netloc, timeout=timeout)
    from http.client import HTTPSConnection

    return HTTPSConnection(parts.netloc, timeout=timeout, context=context_for(target))


def segment(text: str) -> str:
    """Return an id or a name as one segment of a path. A person may have typed it: the daemon refuses what is wrong."""
    return quote(text, safe="", errors="replace")


def _address(path: str, query: Query) -> str:
    values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    present = {name: value for name, value in values.items() if value is not None}
    return f"{path}?{urlencode(present)}" if present else path


def _decoded(kind: type[T], content: bytes) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise DaemonResponseInvalid from error


def _content(response: HTTPResponse) -> bytes:
    try:
        return response.read()
    except (OSError, HTTPException) as error:
        raise DaemonUnreachable(
            f"The daemon closed the connection before its response was complete ({reason_of(error)})."
        ) from error


def _refusal(response: HTTPResponse, target: DaemonTarget) -> RemoteError:
    content = response.read(MAX_PROBLEM_BYTES)
    try:
        problem = msgspec.json.decode(content, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem()
    detail = problem.detail or problem.title or f"The daemon answered {response.status} {response.reason}."
    return refused(
        problem.code,
        detail,
        status=response.status,
        token_file=target.token_file,
        retry_after=problem.retry_after,
    )
