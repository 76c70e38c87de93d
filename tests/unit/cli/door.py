"""A door that answers as it is told: HTTP and gRPC servers on real sockets, and a home that they seem to live in."""

import fcntl
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import grpc
import msgspec
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.pb import vault_pb2
from palyra.home import Home

TOKEN = "palyra_secret"
METHODS = {
    method.name: method
    for file in (pb.DESCRIPTOR, vault_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
GRPC = "gRPC"
"""The method of a request that came over gRPC; its path is the name of the call, its body the message."""


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


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the gRPC door. Without a code of ours it is what gRPC itself says when a connection breaks."""

    status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    detail: str = "Socket closed"
    code: str | None = None
    retry_after_ms: int | None = None

    def trailing(self) -> tuple[tuple[str, str], ...]:
        wait = () if self.retry_after_ms is None else (("retry-after-ms", str(self.retry_after_ms)),)
        return () if self.code is None else (("palyra-error-code", self.code), *wait)


CUT = Refusal()


@dataclass(frozen=True, slots=True)
class Stream:
    """Entries, and how the stream ends: cleanly, with an error, or only when the caller leaves."""

    entries: list[pb.TapeEntry]
    end: Refusal | None = None
    stays: bool = False


@dataclass
class Door:
    """Gives each address its answers in order, the last one for ever."""

    address: str = ""
    grpc: str = ""
    seen: list[Seen] = field(default_factory=list)
    _answers: defaultdict[tuple[str, str], deque[Any]] = field(default_factory=lambda: defaultdict(deque))

    def says(self, method: str, path: str, *answers: object, status: int = 200) -> None:
        """Answer requests for `/console/v1/PATH` so."""
        for answer in answers:
            given = answer if isinstance(answer, Answer) else Answer(msgspec.json.encode(answer), status)
            self._answers[method, path].append(given)

    def tells(self, call: str, *answers: Message | Refusal | Stream | bytes) -> None:
        """Answer calls over gRPC so."""
        self._answers[GRPC, call].extend(answers)

    def streams(self, call: str, *parts: list[pb.TapeEntry], cut: bool = False) -> None:
        """Answer with a stream for each part; all but the last are cut off, and the last if so told."""
        for number, entries in enumerate(parts, 1):
            self.tells(call, Stream(entries, CUT if cut or number < len(parts) else None))

    def forget(self, call: str) -> None:
        """Take back the first answer, which the last one for ever would be behind."""
        self._answers[GRPC, call].popleft()

    def asked(self, method: str, path: str) -> list[Seen]:
        """Return the requests for that address."""
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def called(self, call: str) -> list[Any]:
        """Return the messages of those calls."""
        return [seen.body for seen in self.asked(GRPC, call)]

    def answer(self, seen: Seen) -> Any:
        """Take a request and return what to say; None if the test has nothing."""
        self.seen.append(seen)
        queue = self._answers[seen.method, seen.path]
        return queue.popleft() if len(queue) > 1 else queue[0] if queue else None


def problem(code: str, detail: str, *, status: int, retry_after: float | None = None) -> Answer:
    """Return a problem document."""
    document = {"type": f"urn:palyra:error:{code}", "title": code, "status": status, "code": code, "detail": detail}
    if retry_after is not None:
        document["retry_after"] = retry_after
    return Answer(json.dumps(document).encode(), status, "application/problem+json")


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
            missing = problem("route_not_found", f"The test has no answer for {self.command} {path}.", status=404)
            answer = door.answer(Seen(self.command, path, dict(parse_qsl(url.query)), body, token)) or missing
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

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, open_grpc(door):
        door.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield door
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def open_grpc(door: Door, *, at: str = "127.0.0.1:0", tls: tuple[bytes, bytes] | None = None) -> Iterator[None]:
    """Serve the door's calls, on a free port or a certain one; with a private key and its certificate, over TLS."""
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, handlers=[_Calls(door)], options=[("grpc.so_reuseport", 0)])
        if tls is None:
            port = server.add_insecure_port(at)
        else:
            port = server.add_secure_port(at, grpc.ssl_server_credentials([tls]))
        server.start()
        door.grpc = f"127.0.0.1:{port}"
        try:
            yield
        finally:
            server.stop(None).wait()


class _Calls(grpc.GenericRpcHandler):
    """Serves every method of the service with what the test has said."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        name = handler_call_details.method.rpartition("/")[2]
        method = METHODS[name]
        metadata: Any = handler_call_details.invocation_metadata
        token = dict(metadata).get("authorization", "").removeprefix("Bearer ") or None
        read = GetMessageClass(method.input_type).FromString

        def answer(request: Message, context: grpc.ServicerContext) -> Any:
            given = self._door.answer(Seen(GRPC, name, {}, request, token))
            if given is None:
                given = Refusal(grpc.StatusCode.UNKNOWN, f"The test has no answer for {name}.")
            if isinstance(given, Refusal):
                _refuse(context, given)
            return given

        def stream(request: Message, context: grpc.ServicerContext) -> Iterator[pb.TapeBatch]:
            given = answer(request, context)
            for entry in given.entries:
                yield pb.TapeBatch(entries=[entry])
            if given.end is not None:
                _refuse(context, given.end)
            if given.stays:
                left = threading.Event()
                if context.add_callback(left.set):
                    left.wait()

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(
                stream, request_deserializer=read, response_serializer=pb.TapeBatch.SerializeToString
            )
        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=read,
            response_serializer=lambda given: given if isinstance(given, bytes) else given.SerializeToString(),
        )


def _written(given: Message | bytes) -> bytes:
    return given if isinstance(given, bytes) else given.SerializeToString()


def _refuse(context: grpc.ServicerContext, refusal: Refusal) -> None:
    context.set_trailing_metadata(refusal.trailing())
    context.abort(refusal.status, refusal.detail)


@contextmanager
def lived_in(path: Path, address: str, *, grpc_at: str = "127.0.0.1:1") -> Iterator[Home]:
    """Make a home that a daemon at those addresses seems to hold."""
    home = Home(path)
    path.mkdir(mode=0o700, parents=True)
    home.token.write_text(f"{TOKEN}\n")
    home.token.chmod(0o600)
    record = {
        "pid": os.getpid(),
        "address": address,
        "grpc": grpc_at,
        "version": "0.1.0",
        "started_at": "2026-01-02T03:04:05+00:00",
    }
    home.daemon.write_text(json.dumps(record))
    lock = os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield home
    finally:
        os.close(lock)
