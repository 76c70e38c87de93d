"""Clients that keep the daemon waiting: they cost nobody else anything, and are closed in time."""

import json
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import httpx
import pytest

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from tests.e2e.conftest import NewDaemon
from tests.support.command import palyra
from tests.support.daemon import Daemon, Watcher, until
from tests.support.http2_client import Wire, framed
from tests.support.needs import OPENSSL, needs
from tests.support.stalling_clients import GRPC, HTTP, SECONDS, addresses, answers, closed, crowd, figures, grpc_address
from tests.support.web_site import certificate

CROWD = 1_500
SERVICE = "/palyra.v1.GatewayService"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that gives clients one second, for all tests that do not count."""
    folder = tmp_path_factory.mktemp("hasty")
    script = folder / "script.json"
    script.write_text(json.dumps({"default": [{"do": "text", "text": "You said: {input}"}]}))
    daemon = Daemon(
        folder / "home",
        output=folder / "output",
        model_provider="scripted",
        model_script=script,
        gateway_connect_timeout_seconds=1,
    )
    try:
        yield daemon.start()
        assert [line for line in daemon.log() if line["level"] == "error"] == []
    finally:
        daemon.close()


def bearer(daemon: Daemon) -> dict[str, str]:
    return {"authorization": f"Bearer {daemon.token}"}


# -- without a token


@pytest.mark.parametrize("variant", HTTP)
def test_who_shows_no_token_over_http_is_closed_in_time(hasty: Daemon, variant: str) -> None:
    before = figures(hasty)["timed_out"]
    with crowd(addresses(hasty)[0], HTTP[variant], 20) as clients:
        assert all(map(closed, clients))
    assert figures(hasty)["timed_out"] >= before + 20


@pytest.mark.parametrize("variant", GRPC)
def test_who_shows_no_token_over_grpc_is_closed_in_time(hasty: Daemon, variant: str) -> None:
    before = figures(hasty)["timed_out"]
    with crowd(addresses(hasty)[1], GRPC[variant], 20) as clients:
        assert all(map(closed, clients))
    assert figures(hasty)["timed_out"] >= before + 20


@pytest.mark.parametrize("after", ["", "\r\n\r\n"], ids=["a head", "a body behind a refusal"])
def test_who_sends_byte_by_byte_is_closed_in_time(hasty: Daemon, after: str) -> None:
    with socket.create_connection(addresses(hasty)[0], timeout=SECONDS) as client:
        head = f"POST /console/v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000{after}"
        client.sendall(head.encode())
        drip(client, b"1")


def test_half_a_head_is_told_that_its_time_is_over(hasty: Daemon) -> None:
    with socket.create_connection(addresses(hasty)[0], timeout=SECONDS) as client:
        client.sendall(HTTP["half a head"])
        said = b""
        while piece := client.recv(65536):
            said += piece
    assert said.startswith(b"HTTP/1.1 408 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "request_timeout"


@needs(OPENSSL)
def test_a_handshake_that_does_not_go_on_is_closed_in_time(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    made, key = certificate(tmp_path, "localhost")
    daemon = new_sqlite_daemon(http_tls_certificate=made, http_tls_key=key, gateway_connect_timeout_seconds=1).start()
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    for address in addresses(daemon):
        for opening in (b"", hello):
            with crowd(address, opening, 20) as clients:
                assert all(map(closed, clients))
        context = ssl.create_default_context(cafile=made)
        context.check_hostname = False
        context.set_alpn_protocols(["h2"] if address == addresses(daemon)[1] else ["http/1.1"])
        with context.wrap_socket(socket.create_connection(address, timeout=SECONDS)) as established:
            assert closed(established)
    until(lambda: figures(daemon)["open"] == 1)
    answers(daemon)


# -- with a crowd


def test_a_crowd_without_a_token_shuts_out_nobody_who_has_one(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    session_id = daemon.send("hello")["session_id"]
    http, grpc = addresses(daemon)
    attach = framed(pb.AttachSessionRequest(session_id=session_id).SerializeToString())
    events = f"{daemon.address}/console/v1/sessions/{session_id}/events"
    with ExitStack() as stack:
        stream = stack.enter_context(httpx.stream("GET", events, headers=bearer(daemon), timeout=SECONDS, verify=False))
        wire = stack.enter_context(Wire(grpc_address(daemon)))
        attached = wire.call(f"{SERVICE}/AttachSession", attach, headers=bearer(daemon))
        wire.until(lambda: bool(wire.answers[attached].body))
        stack.enter_context(crowd(http, HTTP["half a head"], CROWD))
        stack.enter_context(crowd(grpc, GRPC["settings"], CROWD))
        for _ in range(5):
            answers(daemon)
        assert "connections" in palyra(daemon, "status")
        assert "You said: again" in palyra(daemon, "run", "-m", "again", "--session", session_id)
        now = figures(daemon)
        assert now["open"] <= now["limit"] // 4 + now["authenticated"]
        assert now["evicted"] >= 2 * CROWD - now["limit"] // 4
        # Whoever was there before still is, and hears of what happens.
        assert any("again" in line for line in stream.iter_lines())
        wire.until(lambda: b"again" in wire.answers[attached].body)


def test_few_descriptors_are_shared_out_and_more_are_taken_if_they_may_be(new_sqlite_daemon: NewDaemon) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    daemon = new_sqlite_daemon()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        daemon.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE) == (min(hard, 8192), hard)
    daemon.stop()

    daemon.start()
    used = figures(daemon)["descriptors"]
    # As if the machine had run out of them: nothing can be accepted until somebody lets go of some.
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (used + 20, hard))
    with crowd(addresses(daemon)[0], HTTP["half a head"], 200):
        before = cpu_seconds(daemon)
        began = monotonic()
        answers(daemon)
        until(lambda: monotonic() - began > 1)
        assert cpu_seconds(daemon) - before < 0.7 * (monotonic() - began), "it tries again and again"
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (8192 if hard < 0 else min(hard, 8192), hard))
    answers(daemon)


# -- with a token


def test_a_stream_on_which_nothing_happens_stays(hasty: Daemon) -> None:
    sent = hasty.send("hello")
    session_id = sent["session_id"]
    hasty.finished(sent["run_id"])
    watcher = Watcher(hasty, session_id)
    with Wire(grpc_address(hasty)) as wire:
        attach = framed(pb.AttachSessionRequest(session_id=session_id).SerializeToString())
        attached = wire.call(f"{SERVICE}/AttachSession", attach, headers=bearer(hasty))
        following = Thread(target=watcher.follow, args=(lambda line: "much later" in line.text,))
        following.start()
        # Longer than anybody without a token could stay, by several looks.
        quiet_since = monotonic()
        until(lambda: monotonic() - quiet_since > 4)
        hasty.send("much later", session={"session_id": session_id})
        wire.until(lambda: b"much later" in wire.answers[attached].body)
        following.join(SECONDS)
        assert not following.is_alive()
    assert watcher.connections == 1


def test_a_caller_with_a_token_may_wait_before_its_next_call(hasty: Daemon) -> None:
    with Wire(grpc_address(hasty)) as wire:
        sessions = f"{SERVICE}/ListSessions"
        assert wire.answer(wire.call(sessions, framed(b""), headers=bearer(hasty))).status == 0
        since = monotonic()
        until(lambda: monotonic() - since > 3)
        assert wire.answer(wire.call(sessions, framed(b""), headers=bearer(hasty))).status == 0


def test_a_body_may_come_slowly(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(gateway_connect_timeout_seconds=3).start()
    piece, pieces = 8 * 1024, 20
    body = json.dumps({"text": "hello"}).encode().ljust(piece * pieces)
    with socket.create_connection(addresses(daemon)[0], timeout=SECONDS) as client:
        client.sendall(posted(daemon, len(body)))
        began = monotonic()
        for start in range(0, len(body), piece):
            client.sendall(body[start : start + piece])
            sleep(0.25)  # the line is that slow
        assert monotonic() - began > 4, "it took no longer than a head may take"
        assert client.recv(100).startswith(b"HTTP/1.1 20")


def test_a_body_that_hardly_goes_on_is_given_up(hasty: Daemon) -> None:
    with socket.create_connection(addresses(hasty)[0], timeout=SECONDS) as client:
        client.sendall(posted(hasty, 100_000))
        drip(client, b"x")


def test_a_second_request_of_which_half_comes_is_closed_in_time(hasty: Daemon) -> None:
    with socket.create_connection(addresses(hasty)[0], timeout=SECONDS) as client:
        request = f"GET /console/v1/sessions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {hasty.token}\r\n\r\n"
        client.sendall(request.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /con")
        drip(client, b"s")


def test_the_figures_are_in_the_status_and_in_the_metrics(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(gateway_max_connections=64).start()
    with crowd(addresses(daemon)[0], b"", 3):
        until(lambda: figures(daemon)["open"] == 4)
        now = figures(daemon)
        assert (now["authenticated"], now["limit"], now["evicted"]) == (1, 64, 0)
        assert 0 < now["descriptors"] < now["descriptor_limit"]
        text = httpx.get(f"{daemon.address}/metrics", headers=bearer(daemon), verify=False).text
        assert "palyra_connections_open 4" in text
        assert "# TYPE palyra_connections_evicted_total counter\npalyra_connections_evicted_total 0\n" in text
        assert "of 64, " in palyra(daemon, "status")
        told = json.loads(palyra(daemon, "status", "--json"))
        assert told["connections"]["limit"] == 64


# -- what the tests need


def posted(daemon: Daemon, size: int) -> bytes:
    """Return the head of a message whose body has so many bytes."""
    lines = ("POST /console/v1/runs HTTP/1.1", "host: localhost", f"authorization: Bearer {daemon.token}")
    return "\r\n".join((*lines, f"content-length: {size}", "", "")).encode()


def drip(client: socket.socket, byte: bytes) -> None:
    """Send a byte now and then until the server closes the connection."""
    client.settimeout(0.3)
    began = monotonic()
    while monotonic() - began < SECONDS:
        try:
            client.sendall(byte)
            if not client.recv(65536):
                return
        except TimeoutError:
            continue
        except ConnectionError:
            return
    pytest.fail("it was waited for")


def cpu_seconds(daemon: Daemon) -> float:
    """How long the daemon has computed so far."""
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
