"""Clients without a token that try to keep the daemon from serving others."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from palyra.gateway.grpc.methods import ANYBODYS_CALLS
from tests.attack.case import attack, require
from tests.attack.ground import Ground, play, results
from tests.support.command import palyra
from tests.support.daemon import Daemon, until
from tests.support.http2_client import Wire, framed
from tests.support.needs import OPENSSL
from tests.support.stalling_clients import (
    GRPC,
    HTTP,
    addresses,
    answers,
    closed,
    crowd,
    figures,
    grpc_address,
    many_descriptors,
)
from tests.support.web_site import certificate

CROWD = 1_500


def _reachable(daemon: Daemon) -> None:
    """Assert that the owner gets an answer over HTTP, over gRPC, and from the command line."""
    for _ in range(3):
        answers(daemon)
    palyra(daemon, "status")


def _variants(ground: Ground, known: dict[str, bytes], usual: str) -> list[str]:
    """Return which variants are tried: the usual one and a few others, all of them in a longer campaign."""
    others = [name for name in known if name != usual]
    return [usual, *ground.random.sample(others, min(len(others), 2 * ground.rounds))]


@attack("1,500 HTTP clients that send half of something, or nothing")
def http_crowd(ground: Ground) -> None:
    daemon = ground.daemon()
    for variant in _variants(ground, HTTP, "half a head"):
        with crowd(addresses(daemon)[0], HTTP[variant], CROWD):
            _reachable(daemon)


@attack("1,500 gRPC clients that send half of something, or nothing")
def grpc_crowd(ground: Ground) -> None:
    daemon = ground.daemon()
    for variant in _variants(ground, GRPC, "settings"):
        with crowd(addresses(daemon)[1], GRPC[variant], CROWD):
            _reachable(daemon)


@attack("crowds at both APIs, while an approval is waited for")
def crowd_during_a_run(ground: Ground) -> None:
    script = {
        "rules": [
            {
                "when": {"tools": True},
                "turns": [
                    [{"do": "call", "tool": "files.write", "arguments": {"path": "a.txt", "text": "a"}}],
                    [{"do": "text", "text": "Done."}],
                ],
            }
        ]
    }
    daemon = ground.daemon(script)
    http, grpc = addresses(daemon)
    with crowd(http, HTTP["half a head"], CROWD), crowd(grpc, GRPC["a head that does not end"], CROWD):
        tape = play(daemon, "write it")
    assert len(results(tape)) == 1, "the run did not come to its end"


@attack("1,500 TLS clients that never finish their handshake")
def tls_crowd(ground: Ground) -> None:
    require(OPENSSL)
    made, key = certificate(ground.folder, "localhost")
    daemon = ground.daemon(http_tls_certificate=made, http_tls_key=key)
    for address in addresses(daemon):
        with crowd(address, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", CROWD):
            answers(daemon)
            palyra(daemon, "status")


@attack("clients that connect, are evicted and connect again, as fast as they can")
def reconnecting(ground: Ground) -> None:
    daemon = ground.daemon()
    with (
        many_descriptors(8_192),
        _hammering(addresses(daemon)[0], HTTP["half a head"]),
        _hammering(addresses(daemon)[1], GRPC["settings"]),
    ):
        until(lambda: figures(daemon)["evicted"] > 100, seconds=60)
        for _ in range(ground.rounds):
            _reachable(daemon)


@attack("calls that need no token and never end, on every place that there is, while others connect")
def lasting_calls(ground: Ground) -> None:
    daemon = ground.daemon()
    with ExitStack() as stack:
        stack.enter_context(many_descriptors(4_096))
        for path in ("/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"):
            for _ in range(ANYBODYS_CALLS):
                stack.enter_context(Wire(grpc_address(daemon))).call(path, framed(b""), end=False)
        stack.enter_context(_hammering(addresses(daemon)[1], GRPC["settings"]))
        for _ in range(3 * ground.rounds):
            _reachable(daemon)


@attack("a crowd at a daemon whose descriptors the machine has run out of")
def few_descriptors(ground: Ground) -> None:
    daemon = ground.daemon()
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (figures(daemon)["descriptors"] + 20, hard))
    with crowd(addresses(daemon)[0], HTTP["half a head"], 300):
        answers(daemon)


@attack("connections that stay open for nothing: they are closed in time")
def idle(ground: Ground) -> None:
    daemon = ground.daemon(gateway_connect_timeout_seconds=1)
    with ExitStack() as stack:
        crowds = {
            f"{api}: {variant}": stack.enter_context(crowd(address, sends, 10))
            for api, address, known in zip(("HTTP", "gRPC"), addresses(daemon), (HTTP, GRPC), strict=True)
            for variant, sends in known.items()
        }
        for variant, clients in crowds.items():
            assert all(map(closed, clients)), f"{variant}: it was waited for"


@contextmanager
def _hammering(address: tuple[str, int], sends: bytes) -> Iterator[None]:
    """Connect again and again, from a few threads."""
    over = threading.Event()

    def hammer() -> None:
        held: list[socket.socket] = []
        while not over.is_set():
            with suppress(OSError):
                held.append(client := socket.create_connection(address, timeout=60))
                client.sendall(sends)
            if len(held) > 600:
                held.pop(0).close()
            time.sleep(0.001)
        for client in held:
            client.close()

    threads = [threading.Thread(target=hammer) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
