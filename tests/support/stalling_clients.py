"""Clients that connect and then keep the server waiting, each in another way."""

import json
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import httpx
from h2.connection import H2Connection
from hyperframe.frame import HeadersFrame, SettingsFrame

from tests.support.daemon import Daemon, Json
from tests.support.http2_client import CONFIG, Wire, framed, head

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = SettingsFrame(0).serialize()
SECONDS = 60.0


def _refused_call() -> bytes:
    """Return a call without a token, whose answer nobody waits for."""
    http2 = H2Connection(CONFIG)
    http2.initiate_connection()
    http2.send_headers(1, head("/palyra.v1.GatewayService/ListSessions"))
    http2.send_data(1, framed(b""), end_stream=True)
    return http2.data_to_send()


def _wrong(path: str, *headers: str) -> bytes:
    lines = (f"GET {path} HTTP/1.1", "host: localhost", "authorization: Bearer palyra_wrong", *headers, "", "")
    return "\r\n".join(lines).encode()


HTTP = {
    "nothing": b"",
    "half a method": b"GE",
    "half a head": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ",
    "half a body": b"POST /console/v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
    "half a body with a wrong token": _wrong("/console/v1/runs", "content-length: 100") + b"{",
    "half a chunk": b"POST /console/v1/runs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n64\r\n{",
    "a stream without a token": b"GET /console/v1/approvals/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a wrong token": _wrong("/console/v1/sessions"),
    "a request that needs no token": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "many requests at once": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20 + b"GET /hea",
}
"""What HTTP clients send before they fall silent."""
GRPC = {
    "nothing": b"",
    "half a preface": PREFACE[:10],
    "a preface without settings": PREFACE,
    "half a settings frame": PREFACE + SETTINGS[:5],
    "settings": PREFACE + SETTINGS,
    "a head that does not end": PREFACE + SETTINGS + HeadersFrame(1, data=b"\x83\x86").serialize(),
    "a call without a token": _refused_call(),
}
"""The same for gRPC."""


def addresses(daemon: Daemon) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return where the daemon answers over HTTP and over gRPC."""
    http = urlsplit(daemon.address)
    host, _, port = grpc_address(daemon).rpartition(":")
    return (str(http.hostname), int(http.port or 0)), (host.strip("[]"), int(port))


def grpc_address(daemon: Daemon) -> str:
    """Return where the daemon answers over gRPC."""
    return str(json.loads(daemon.home.daemon.read_text())["grpc"])


def answers(daemon: Daemon) -> None:
    """Assert that somebody with a token is served over both APIs, on new connections."""
    token = {"authorization": f"Bearer {daemon.token}"}
    answer = httpx.get(f"{daemon.address}/console/v1/sessions", headers=token, timeout=SECONDS, verify=False)
    assert answer.status_code == 200, answer.text
    if not daemon.address.startswith("https"):
        with Wire(grpc_address(daemon)) as wire:
            call = wire.call("/palyra.v1.GatewayService/ListSessions", framed(b""), headers=token)
            assert wire.answer(call).status == 0


def figures(daemon: Daemon) -> dict[str, int]:
    """Return what the status says of connections."""
    token = {"authorization": f"Bearer {daemon.token}"}
    answer: Json = httpx.get(f"{daemon.address}/admin/v1/status", headers=token, timeout=SECONDS, verify=False).json()
    return dict(answer["connections"])


@contextmanager
def many_descriptors(number: int) -> Iterator[None]:
    """Let this process have so many descriptors for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(hard, number)) if hard != resource.RLIM_INFINITY else max(soft, number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def crowd(address: tuple[str, int], sends: bytes, number: int) -> Iterator[list[socket.socket]]:
    """Connect so many times and send the same on each; they stay until the end."""
    with ExitStack() as stack:
        stack.enter_context(many_descriptors(number + 1_024))
        clients = []
        for _ in range(number):
            client = stack.enter_context(socket.create_connection(address, timeout=SECONDS))
            with suppress(OSError):  # it may have had to make room already
                client.sendall(sends)
            clients.append(client)
        yield clients


def closed(client: socket.socket) -> bool:
    """Read to the end of a connection, which the server closes."""
    client.settimeout(SECONDS)
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except (ConnectionError, ssl.SSLError):
        return True
    return True
