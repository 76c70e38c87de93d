"""The client against doors that speak TLS: the certificate of the home, and no other."""

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import DaemonUnreachable
from palyra.gateway.client.tape_stream import follow_run
from palyra.gateway.client.target import DaemonTarget, find_target
from tests.support import builders as b
from tests.support.builders import RUN
from tests.support.needs import OPENSSL, needs
from tests.unit.cli.door import TOKEN, Door, lived_in, open_grpc
from tests.unit.cli.wire import health, tape_entry

pytestmark = needs(OPENSSL)


def certificate(folder: Path, name: str, *words: str) -> tuple[Path, Path]:
    """Make a certificate for another name than the one that the client knocks at."""
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    asked = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    asked += ["-days", "1", "-subj", f"/CN={name}.example", "-out", str(made), "-keyout", str(key), *words]
    subprocess.run(asked, check=True, capture_output=True, timeout=60)
    return made, key


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "token": self.headers["authorization"]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that does not like the certificate goes away, which is no error here."""


@contextmanager
def opened(made: Path, key: Path) -> Iterator[Door]:
    """Open both doors with that certificate."""
    door = Door()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    with (
        Server(("127.0.0.1", 0), Handler) as server,
        open_grpc(door, tls=(key.read_bytes(), made.read_bytes())),
    ):
        server.socket = context.wrap_socket(server.socket, server_side=True)
        door.address = f"https://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield door
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def shown(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path, "ours")


@pytest.fixture
def door(shown: tuple[Path, Path]) -> Iterator[Door]:
    with opened(*shown) as door:
        door.tells("GetHealth", health(version="1"))
        yield door


def client_of(door: Door, made: Path | str | None) -> Client:
    target = DaemonTarget(
        address=door.address, grpc=door.grpc, token=TOKEN, certificate=None if made is None else str(made)
    )
    return Client(lambda: target, answer_seconds=60)


def test_the_certificate_that_the_home_names_is_trusted_by_any_name(
    tmp_path: Path, door: Door, shown: tuple[Path, Path]
) -> None:
    with lived_in(tmp_path / "home", door.address, grpc_at=door.grpc) as home:
        record = json.loads(home.daemon.read_text())
        home.daemon.write_text(json.dumps({**record, "certificate": str(shown[0])}))
        target = find_target(home)

    certificate, token_file = str(shown[0]), str(home.token)
    assert target == DaemonTarget(
        address=door.address, grpc=door.grpc, token=TOKEN, token_file=token_file, certificate=certificate
    )
    client = Client(lambda: target, answer_seconds=60)
    answer = msgspec.json.decode(client.export("X", "json"))
    assert answer == {"path": "/console/v1/sessions/X/export?format=json", "token": f"Bearer {TOKEN}"}
    assert client.status().version == "1"
    assert door.seen[0].token == TOKEN


@pytest.mark.parametrize(
    "names",
    [
        "DNS:palyra.example.org",
        "DNS:*.example.org",
        "IP:192.0.2.7",
        "IP:192.0.2.7,DNS:palyra.example.org",
        "email:a@b.c",
    ],
)
def test_whatever_the_certificate_is_made_out_to_it_is_the_one(tmp_path: Path, names: str) -> None:
    made, key = certificate(tmp_path, "named", "-addext", f"subjectAltName={names}")
    with opened(made, key) as door:
        door.tells("GetHealth", health(version="1"))
        assert client_of(door, made).status().version == "1"


def test_a_certificate_without_a_name_is_told_with_a_remedy(tmp_path: Path) -> None:
    made, key = certificate(tmp_path, "nameless", "-subj", "/O=Palyra")
    with opened(made, key) as door, pytest.raises(DaemonUnreachable, match="subjectAltName"):
        client_of(door, made).status()


def test_a_certificate_that_somebody_else_has_signed_is_taken_for_itself(tmp_path: Path) -> None:
    authority, its_key = certificate(tmp_path, "authority")
    signed = ("-CA", str(authority), "-CAkey", str(its_key), "-addext", "basicConstraints=critical,CA:FALSE")
    made, key = certificate(tmp_path, "leaf", *signed)
    with opened(made, key) as door:
        door.tells("GetHealth", health(version="1"))
        assert client_of(door, made).status().version == "1"


def test_a_stream_comes_over_tls(door: Door, shown: tuple[Path, Path]) -> None:
    door.streams("AttachRun", [tape_entry(1, b.an_accepted())], [tape_entry(2, b.a_completion())])
    assert [line.tape_seq for line in follow_run(client_of(door, shown[0]), RUN)] == [1, 2]


@pytest.mark.parametrize("named", ["theirs", None])
def test_a_door_with_another_certificate_never_sees_the_token(tmp_path: Path, door: Door, named: str | None) -> None:
    client = client_of(door, certificate(tmp_path, named)[0] if named else None)
    for ask in (client.status, client.runs):
        with pytest.raises(DaemonUnreachable, match="certificate"):
            ask()
    assert door.seen == []


def test_a_certificate_that_is_gone_is_told(door: Door) -> None:
    client = client_of(door, "/not/there.pem")
    for ask in (client.status, client.runs):
        with pytest.raises(DaemonUnreachable, match=r"/not/there\.pem cannot be read"):
            ask()
