"""A door that answers as it is told: a small HTTP server on a real socket, and a home that it seems to live in."""

import fcntl
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from palyra.config import Home
from palyra.core.events import TapeEvent
from palyra.gateway.follow import Line, read_line
from tests.support.builders import AGENT, ANA, RUN, SESSION

TOKEN = "palyra_secret"


@dataclass(frozen=True, slots=True)
class Result:
    """What a command came to."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came in."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    token: str | None


@dataclass(slots=True)
class Answer:
    """What the door says."""

    body: bytes = b"{}"
    status: int = 200
    kind: str = "application/json"
    cut: bool = False
    """The connection is dropped in the middle: more was promised than is sent."""


@dataclass
class Door:
    """Gives each address its answers in order, the last one for ever."""

    address: str = ""
    seen: list[Seen] = field(default_factory=list)
    _answers: defaultdict[tuple[str, str], deque[Answer]] = field(default_factory=lambda: defaultdict(deque))

    def says(self, method: str, path: str, *answers: object, status: int = 200) -> None:
        """Answer requests for `/console/v1/PATH` so."""
        for answer in answers:
            given = answer if isinstance(answer, Answer) else Answer(msgspec.json.encode(answer), status)
            self._answers[method, path].append(given)

    def streams(self, path: str, *parts: list[str], cut: bool = False) -> None:
        """Answer with a stream for each part; all but the last are cut off, and the last if so told."""
        for number, frames in enumerate(parts, 1):
            body = "".join(frames).encode()
            self.says("GET", path, Answer(body, kind="text/event-stream", cut=cut or number < len(parts)))

    def asked(self, method: str, path: str) -> list[Seen]:
        """Return the requests for that address."""
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def answer(self, seen: Seen) -> Answer:
        self.seen.append(seen)
        queue = self._answers[seen.method, seen.path]
        if not queue:
            return problem("route_not_found", f"The test has no answer for {seen.method} {seen.path}.", status=404)
        return queue.popleft() if len(queue) > 1 else queue[0]


def problem(code: str, detail: str, *, status: int, retry_after: float | None = None) -> Answer:
    """Return a problem document."""
    document = {"type": f"urn:palyra:error:{code}", "title": code, "status": status, "code": code, "detail": detail}
    if retry_after is not None:
        document["retry_after"] = retry_after
    return Answer(json.dumps(document).encode(), status, "application/problem+json")


def entry(seq: int, event: TapeEvent, *, run_id: str | None = RUN) -> str:
    """Return an entry's JSON."""
    content = msgspec.json.encode(event).decode()
    run = json.dumps(run_id)
    return f'{{"session_id":"{SESSION}","run_id":{run},"tape_seq":{seq},"run_seq":{seq},"event":{content}}}'


def frame(seq: int, event: TapeEvent) -> str:
    """Return an entry as a server-sent event."""
    return f"id: {seq}\nevent: {event.__struct_config__.tag}\ndata: {entry(seq, event)}\n\n"


def line(event: TapeEvent, *, seq: int = 1, run_id: str | None = RUN) -> Line:
    """Return an entry as the client reads it."""
    return read_line(entry(seq, event, run_id=run_id).encode())


def a_session(**changes: object) -> dict[str, object]:
    """Return a session as the daemon shows it."""
    session = {
        "session_id": SESSION,
        "principal": ANA,
        "agent_id": AGENT,
        "key": None,
        "label": None,
        "title": "Hello",
        "created_at": "2026-01-02T03:04:05Z",
        "updated_at": "2026-01-02T03:04:05Z",
        "archived_at": None,
        "reset_seq": 0,
        "active_run_id": None,
        "parent_session_id": None,
    }
    return session | changes


def a_run(**changes: object) -> dict[str, object]:
    """Return a run as the daemon shows it."""
    run = {
        "run_id": RUN,
        "session_id": SESSION,
        "agent_id": AGENT,
        "status": "done",
        "input": "Hello.",
        "reason": None,
        "limit_reached": None,
        "parent_run_id": None,
        "accepted_seq": 1,
        "last_seq": 6,
        "accepted_at": "2026-01-02T03:04:05Z",
        "ended_at": "2026-01-02T03:04:07.5Z",
        "turns": 1,
        "tool_calls": 0,
        "usage": {"input_tokens": 3, "output_tokens": 4},
        "cancel_requested": False,
    }
    return run | changes


def a_message(role: str = "user", text: str = "Hello.", *, seq: int = 2) -> dict[str, object]:
    """Return a message as the daemon shows it."""
    return {"tape_seq": seq, "run_id": RUN, "role": role, "text": text, "at": "2026-01-02T03:04:05Z"}


@contextmanager
def open_door() -> Iterator[Door]:
    """Serve on a free port."""
    door = Door()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            url = urlsplit(self.path)
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            token = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
            path = url.path.removeprefix("/console/v1")
            answer = door.answer(Seen(self.command, path, dict(parse_qsl(url.query)), body, token))
            self.send_response(answer.status)
            self.send_header("content-type", answer.kind)
            if answer.status != 204:
                self.send_header("content-length", str(len(answer.body) + (100 if answer.cut else 0)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(answer.body)
            self.close_connection = True

        do_GET = do_POST = do_PATCH = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        door.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield door
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def lived_in(path: Path, address: str) -> Iterator[Home]:
    """Make a home that a daemon at that address seems to hold."""
    home = Home(path)
    path.mkdir(mode=0o700, parents=True)
    home.token.write_text(f"{TOKEN}\n")
    home.token.chmod(0o600)
    record = {"pid": os.getpid(), "address": address, "version": "0.1.0", "started_at": "2026-01-02T03:04:05+00:00"}
    home.daemon.write_text(json.dumps(record))
    lock = os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield home
    finally:
        os.close(lock)
