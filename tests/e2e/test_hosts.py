"""Requests that name another host, or come from a page of another origin, reach nothing: on every route and method."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from palyra.gateway.error_status import GrpcStatus
from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon, NotServing
from tests.support.http2_client import Wire, framed
from tests.support.stalling_clients import addresses, grpc_address

PAGE = "https://app.example.com"
EVIL = "https://evil.example.com"
SESSIONS = "/palyra.v1.GatewayService/ListSessions"
HEALTH = "/grpc.health.v1.Health/Check"


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    """A daemon with a name of its own, and a page that may speak to it."""
    made = new_sqlite_daemon()
    made.home.path.mkdir(mode=0o700)
    made.home.config.write_text(f'[http]\nallowed_hosts = ["palyra.example.com"]\nallowed_origins = ["{PAGE}"]\n')
    return made.start()


def bearer(daemon: Daemon) -> dict[str, str]:
    return {"authorization": f"Bearer {daemon.token}"}


def ask(daemon: Daemon, method: str, path: str, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, daemon.address + path, headers={**bearer(daemon), **sent}, verify=False)


def code_of(answer: httpx.Response) -> str:
    problem: Any = answer.json()
    return str(problem["error"]["code"] if "error" in problem else problem["code"])


def routes(daemon: Daemon) -> Iterator[tuple[str, str]]:
    document: Any = httpx.get(daemon.address + "/openapi.json", verify=False).json()
    yield from (("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json"), ("GET", "/nothing"))
    for path, methods in document["paths"].items():
        yield from ((method.upper(), path) for method in methods)


def test_no_route_serves_another_host_or_a_foreign_page(daemon: Daemon) -> None:
    tried = 0
    for method, path in routes(daemon):
        rebound = ask(daemon, method, path, host="evil.example.com:7717")
        assert (rebound.status_code, code_of(rebound)) == (421, "request_host_not_allowed"), path
        for headers in ({"origin": EVIL}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}):
            foreign = ask(daemon, method, path, **headers)
            assert (foreign.status_code, code_of(foreign)) == (403, "origin_not_allowed"), path
            assert "access-control-allow-origin" not in foreign.headers
        tried += 1
    assert tried > 60


def test_the_names_of_the_daemon_are_served(daemon: Daemon) -> None:
    port = addresses(daemon)[0][1]
    for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "palyra.example.com", "palyra.example.com:443"):
        assert ask(daemon, "GET", "/console/v1/sessions", host=host).status_code == 200, host
    own = f"localhost:{port}"
    assert ask(daemon, "GET", "/console/v1/sessions", host=own, origin=f"http://{own}").status_code == 200
    assert ask(daemon, "GET", "/console/v1/sessions", sec_fetch_site="none").status_code == 200


def test_an_allowed_page_may_ask_and_read_the_answer(daemon: Daemon) -> None:
    asked = {
        "origin": PAGE,
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type",
    }
    before = ask(daemon, "OPTIONS", "/v1/chat/completions", **asked)
    assert before.status_code == 204
    assert before.headers["access-control-allow-origin"] == PAGE
    assert before.headers["access-control-allow-methods"] == "POST"
    assert before.headers["access-control-allow-headers"] == "authorization,content-type"
    for path, status in (("/v1/models", 200), ("/v1/models/nothing", 404), ("/console/v1/sessions", 200)):
        answer = ask(daemon, "GET", path, origin=PAGE, sec_fetch_site="cross-site")
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["vary"] == "origin"
    refused = ask(daemon, "OPTIONS", "/v1/chat/completions", **{**asked, "origin": EVIL})
    assert refused.status_code == 403
    assert not any(name.startswith("access-control") for name in refused.headers)
    assert ask(daemon, "OPTIONS", "/v1/models").status_code == 405


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.0\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: evil.example.com\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\nhost: evil.example.com\r\n", 421),
        (b"GET http://evil.example.com/healthz HTTP/1.1\r\nhost: evil.example.com\r\n", 421),
        (b"GET /healthz HTTP/1.1\r\nhost:\r\n", 421),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\norigin: null\r\n", 400),
    ],
)
def test_a_host_is_named_once(daemon: Daemon, head: bytes, status: int) -> None:
    with socket.create_connection(addresses(daemon)[0], timeout=60) as client:
        client.sendall(head + b"connection: close\r\n\r\n")
        assert client.recv(4096).split()[1] == str(status).encode()


def test_grpc_calls_name_the_daemon_too(daemon: Daemon) -> None:
    with Wire(grpc_address(daemon)) as wire:
        for path in (SESSIONS, HEALTH, "/nothing"):
            for headers, code in (
                ({":authority": "evil.example.com"}, "request_host_not_allowed"),
                ({"origin": EVIL}, "origin_not_allowed"),
                ({"sec-fetch-site": "cross-site"}, "origin_not_allowed"),
            ):
                answer = wire.answer(wire.call(path, framed(b""), headers={**bearer(daemon), **headers}))
                assert (answer.status, answer.code) == (GrpcStatus.PERMISSION_DENIED, code)
        for headers in ({":authority": "palyra.example.com:443"}, {":authority": "127.0.0.1"}, {"origin": PAGE}):
            answer = wire.answer(wire.call(SESSIONS, framed(b""), headers={**bearer(daemon), **headers}))
            assert answer.status == 0


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ('allowed_hosts = ["palyra.example.com/x"]', "http.allowed_hosts"),
        ('allowed_origins = ["app.example.com"]', "http.allowed_origins"),
        ('allowed_origins = ["https://app.example.com/"]', "http.allowed_origins"),
        ('allowed_origins = ["*"]', "http.allowed_origins"),
    ],
)
def test_names_and_origins_are_checked_when_they_are_read(
    new_sqlite_daemon: NewDaemon, section: str, what: str
) -> None:
    made = new_sqlite_daemon()
    made.home.path.mkdir(mode=0o700)
    made.home.config.write_text(f"[http]\n{section}\n")
    with pytest.raises(NotServing) as caught:
        made.start()
    assert what in caught.value.output
