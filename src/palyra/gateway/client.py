"""The way in for programs on the same machine: finds the daemon of a home and speaks to its HTTP door.

Everything here blocks, and everything has a timeout. Only the standard library and msgspec are used, since the command
line pays for each import at every start.
"""

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from palyra.config import Home
from palyra.core.errors import Broken, PalyraError, Unavailable
from palyra.core.events import Mode
from palyra.core.message import Accepted
from palyra.core.session import Session, SessionRef
from palyra.core.usage import Usage
from palyra.core.version import VERSION

ANSWER_SECONDS = 30.0
PATIENCE_SECONDS = 30.0
"""How long a daemon that went away is waited for: a restart takes a few seconds."""
PAUSE_SECONDS = 0.2
MAX_PROBLEM_BYTES = 64 * 1024
ROOT = "/console/v1"
ADMIN_ROOT = "/admin/v1"

Query = Mapping[str, str | int | None]
T = TypeVar("T")


class DaemonUnreachable(Unavailable):
    """The daemon does not answer. `palyra logs` says what it was doing, `palyra restart` starts it anew."""


class NotRunning(DaemonUnreachable):
    """No daemon runs for this home. Start it with `palyra up`."""


class AnswerUnreadable(Broken):
    """The daemon's answer can not be understood; it may be of another version. Restart it with `palyra restart`."""


class RemoteError(PalyraError):
    """The daemon refused."""

    # The daemon's code, not that of this class: it names the fact, and clients match on it.
    code: str  # type: ignore[misc]

    def __init__(self, code: str, detail: str, *, status: int, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.status = status
        self.retry_after = retry_after


class Daemon(Struct, frozen=True, kw_only=True):
    """What a running daemon says of itself in its home folder."""

    pid: int
    address: str
    version: str
    started_at: datetime
    certificate: str | None = None
    """The file with the certificate that it shows, if it speaks TLS."""


class Target(Struct, frozen=True):
    """Where to knock, with which token, and which certificate must be shown there."""

    address: str
    token: str
    certificate: str | None = None


class Run(Struct, frozen=True, kw_only=True):
    """A run as the daemon lists it."""

    run_id: str
    session_id: str
    agent_id: str
    status: str
    input: str
    accepted_seq: int
    last_seq: int
    accepted_at: datetime
    reason: str | None = None
    limit_reached: str | None = None
    parent_run_id: str | None = None
    ended_at: datetime | None = None
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cancel_requested: bool = False


class Runs(Struct, frozen=True, kw_only=True):
    """A page of runs, the latest first, and where the next one begins."""

    runs: tuple[Run, ...]
    next_cursor: str | None = None


class Sessions(Struct, frozen=True, kw_only=True):
    """A page of sessions, the latest first, and where the next one begins."""

    sessions: tuple[Session, ...]
    next_cursor: str | None = None


class Hit(Struct, frozen=True, kw_only=True):
    """A place where a search found something."""

    session_id: str
    tape_seq: int
    title: str | None
    text: str


class Said(Struct, frozen=True, kw_only=True):
    """A message of a session."""

    tape_seq: int
    role: str
    text: str
    at: datetime
    run_id: str | None = None


class _Problem(Struct):
    code: str = "error"
    detail: str = ""
    title: str = ""
    retry_after: float | None = None


def is_held(home: Home) -> bool:
    """Tell whether a living daemon holds this home. The record that a killed one left behind proves nothing."""
    try:
        lock = os.open(home.lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared, so that two of us who look in the same moment do not take one another for a daemon.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def find_daemon(home: Home) -> Daemon | None:
    """Return what the living daemon of this home says of itself; None if there is none, or it is only just starting."""
    if not is_held(home):
        return None
    try:
        daemon = msgspec.json.decode(home.daemon.read_bytes(), type=Daemon)
        # The holder may be so young that the record is still that of one which was killed.
        os.kill(daemon.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return daemon


def find_target(home: Home) -> Target:
    """Return where the daemon of this home answers."""
    daemon = find_daemon(home)
    if daemon is None:
        raise NotRunning
    try:
        return Target(daemon.address, home.token.read_text().strip(), daemon.certificate)
    except OSError as error:
        raise DaemonUnreachable(f"The token {home.token} can not be read: {error.strerror}.") from error


class Client:
    """Speaks to one daemon. The target is looked up for each request: a restarted daemon may answer elsewhere."""

    def __init__(
        self,
        find: Callable[[], Target],
        *,
        root: str = ROOT,
        answer_seconds: float = ANSWER_SECONDS,
        patience: float = 0.0,
    ) -> None:
        """`patience` is how many seconds a daemon that is away is waited for; requests are then sent again."""
        self._find = find
        self._root = root
        self._answer_seconds = answer_seconds
        self._patience = patience

    def status(self) -> dict[str, Any]:
        """Return what the daemon says of all its parts."""
        return self.ask(dict[str, Any], "GET", "/status")

    def resolve(self, ref: SessionRef) -> Session:
        """Return the session that is meant; it is created if it may be."""
        return self.ask(Session, "POST", "/sessions/resolve", body=ref, field="session")

    def sessions(self, *, archived: bool = False, limit: int = 50, cursor: str | None = None) -> Sessions:
        """Return a page of the sessions, the latest first."""
        query = {"archived": "true" if archived else "false", "limit": limit, "cursor": cursor}
        return self.ask(Sessions, "GET", "/sessions", query=query)

    def search(self, words: str, *, limit: int = 20) -> tuple[Hit, ...]:
        """Return where the words stand in what was said."""
        query: Query = {"q": words, "limit": limit}
        return self.ask(tuple[Hit, ...], "GET", "/sessions/search", query=query, field="hits")

    def session(self, session_id: str) -> Session:
        """Return the session of that id."""
        return self.ask(Session, "GET", f"/sessions/{session_id}", field="session")

    def rename(self, session_id: str, title: str) -> Session:
        """Give the session a title."""
        return self.ask(Session, "PATCH", f"/sessions/{session_id}", body={"title": title}, field="session")

    def change(self, session_id: str, verb: str) -> Session:
        """Archive, unarchive, reset or cleanup a session."""
        return self.ask(Session, "POST", f"/sessions/{session_id}/{verb}", body={}, field="session")

    def messages(self, session_id: str, *, limit: int = 20) -> tuple[Said, ...]:
        """Return what was said in a session, the latest first."""
        path = f"/sessions/{session_id}/messages"
        return self.ask(tuple[Said, ...], "GET", path, query={"limit": limit}, field="messages")

    def export(self, session_id: str, form: str) -> bytes:
        """Return the session as a document: `json` or `markdown`."""
        return self._request("GET", f"/sessions/{session_id}/export", query={"format": form})

    def send(
        self, text: str, session: SessionRef, *, mode: Mode, key: str | None = None, patience: float = PATIENCE_SECONDS
    ) -> Accepted:
        """Hand a message in. When the answer is lost it is sent again under the same key, so it is taken once only."""
        key = key or os.urandom(16).hex()
        body = {"text": text, "session": session, "mode": mode.value, "idempotency_key": key}
        return self.ask(Accepted, "POST", "/runs", body=body, patience=patience)

    def runs(self, *, session_id: str | None = None, limit: int = 20, cursor: str | None = None) -> Runs:
        """Return a page of the runs, the latest first."""
        return self.ask(Runs, "GET", "/runs", query={"session_id": session_id, "limit": limit, "cursor": cursor})

    def run(self, run_id: str) -> Run:
        """Return the run of that id."""
        return self.ask(Run, "GET", f"/runs/{run_id}", field="run")

    def cancel(self, run_id: str, *, reason: str | None = None) -> Run:
        """Ask for the run to be stopped."""
        return self.ask(Run, "POST", f"/runs/{run_id}/cancel", body={"reason": reason} if reason else {}, field="run")

    def open(
        self, method: str, path: str, *, query: Query | None = None, body: object = None, timeout: float
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request and return the connection with its answer, which was not refused. The caller closes it."""
        target = self._find()
        headers = {"Authorization": f"Bearer {target.token}", "User-Agent": f"palyra/{VERSION}"}
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        given = {name: value for name, value in (query or {}).items() if value is not None}
        connection = _connection(target, timeout)
        try:
            connection.request(method, _address(self._root + path, given), body=content, headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(response)
        except (OSError, HTTPException) as error:
            connection.close()
            raise DaemonUnreachable(
                f"The daemon at {target.address} does not answer ({_reason(error)})."
                " `palyra logs` says what it was doing, `palyra restart` starts it anew."
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _request(
        self, method: str, path: str, *, query: Query | None = None, body: object = None, patience: float | None = None
    ) -> bytes:
        wait = Patience(self._patience if patience is None else patience)
        while True:
            try:
                return self._request_once(method, path, query=query, body=body)
            except DaemonUnreachable as error:
                wait.after(error)
            except RemoteError as error:
                if error.code != "engine_closed":
                    raise
                wait.after(error)

    def _request_once(self, method: str, path: str, *, query: Query | None, body: object) -> bytes:
        connection, response = self.open(method, path, query=query, body=body, timeout=self._answer_seconds)
        try:
            return response.read()
        except (OSError, HTTPException) as error:
            raise DaemonUnreachable(f"The daemon's answer broke off ({_reason(error)}).") from error
        finally:
            connection.close()

    def tell(self, method: str, path: str) -> None:
        """Send a request whose answer holds nothing."""
        self._request(method, path)

    def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        field: str | None = None,
        patience: float | None = None,
    ) -> T:
        """Send a request and return its answer, or one field of it, as a value of that kind."""
        answer = self._request(method, path, query=query, body=body, patience=patience)
        try:
            if field is not None:
                parts = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
                answer = bytes(parts.get(field, answer))
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise AnswerUnreadable from error


class Patience:
    """Waits for a daemon that is away, up to a time in all."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def after(self, error: PalyraError) -> None:
        """Pause before the next attempt, or raise the error if the time is up."""
        if time.monotonic() >= self._ends:
            raise error
        time.sleep(PAUSE_SECONDS)


def _connection(target: Target, timeout: float) -> HTTPConnection:
    place = urlsplit(target.address)
    if place.scheme != "https":
        return HTTPConnection(place.netloc, timeout=timeout)
    # Imported here: few daemons speak TLS to their own machine, and every start would pay for it.
    import ssl
    from http.client import HTTPSConnection

    try:
        context = ssl.create_default_context(cafile=target.certificate)
    except OSError as error:
        raise DaemonUnreachable(
            f"The daemon's certificate {target.certificate} can not be read: {_reason(error)}."
        ) from error
    if target.certificate is not None:
        # The very certificate that the home names is asked for; its names are those that other machines use.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    return HTTPSConnection(place.netloc, timeout=timeout, context=context)


def _address(path: str, query: Query) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _refusal(response: HTTPResponse) -> RemoteError:
    content = response.read(MAX_PROBLEM_BYTES)
    try:
        problem = msgspec.json.decode(content, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem()
    detail = problem.detail or problem.title or f"The daemon answered {response.status} {response.reason}."
    return RemoteError(problem.code, detail, status=response.status, retry_after=problem.retry_after)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
