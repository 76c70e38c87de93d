"""HTTP calls of a client, with only the standard library and msgspec. All calls block, and all have a timeout."""

from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from palyra.core.version import VERSION
from palyra.gateway.client.errors import DaemonUnreachable, RemoteError, reason_of, refused, unreachable
from palyra.gateway.client.target import DaemonTarget
from palyra.gateway.client.tls import context_for

MAX_PROBLEM_BYTES = 64 * 1024

Query = Mapping[str, str | int | None]


class _Problem(Struct):
    code: str = "error"
    detail: str = ""
    title: str = ""
    retry_after: float | None = None


class HttpCalls:
    """Calls one daemon. The target is looked up for each request: a restarted daemon may use another address."""

    def __init__(self, find: Callable[[], DaemonTarget], *, root: str, seconds: float) -> None:
        self._find = find
        self._root = root
        self._seconds = seconds

    def ask(self, method: str, path: str, *, query: Query | None = None, body: object = None) -> bytes:
        """Send a request and return its response; raise if the daemon refused it."""
        target = self._find()
        headers = {"Authorization": f"Bearer {target.token}", "User-Agent": f"palyra/{VERSION}"}
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        given = {name: value for name, value in (query or {}).items() if value is not None}
        connection = _connection(target, self._seconds)
        try:
            connection.request(method, _address(self._root + path, given), body=content, headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(response, target)
            return _content(response)
        except (OSError, HTTPException) as error:
            raise unreachable(target.address, reason_of(error)) from error
        finally:
            connection.close()


def _connection(target: DaemonTarget, timeout: float) -> HTTPConnection:
    place = urlsplit(target.address)
    if not target.tls:
        return HTTPConnection(place.netloc, timeout=timeout)
    from http.client import HTTPSConnection

    return HTTPSConnection(place.netloc, timeout=timeout, context=context_for(target))


def _address(path: str, query: Query) -> str:
    # An id may be typed by a person: the daemon refuses characters that a URL cannot have.
    spelled = quote(path, safe="/%:;,=+@!$&'()*~?", errors="replace")
    return f"{spelled}?{urlencode(query)}" if query else spelled


def _content(response: HTTPResponse) -> bytes:
    try:
        return response.read()
    except (OSError, HTTPException) as error:
        raise DaemonUnreachable(f"The daemon's answer broke off ({reason_of(error)}).") from error


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
