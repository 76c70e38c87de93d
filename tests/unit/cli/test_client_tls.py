"""The client against a door that speaks TLS: the certificate of the home, and no other."""

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from palyra.gateway.client import Client, DaemonUnreachable, Target, find_target
from tests.unit.cli.door import TOKEN, lived_in

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate for another name than the one that the client knocks at."""
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "1", "-subj", f"/CN={name}.example", "-out", str(made), "-keyout", str(key)]
    subprocess.run(words, check=True, capture_output=True, timeout=10)
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


@pytest.fixture
def door(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a door, and the certificate that it shows."""
    made, key = certificate(tmp_path, "ours")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}", made
        finally:
            server.shutdown()
            thread.join()


def test_the_certificate_that_the_home_names_is_trusted_by_any_name(tmp_path: Path, door: tuple[str, Path]) -> None:
    address, made = door
    with lived_in(tmp_path / "home", address) as home:
        record = json.loads(home.daemon.read_text())
        home.daemon.write_text(json.dumps({**record, "certificate": str(made)}))
        target = find_target(home)

    assert target == Target(address, TOKEN, str(made))
    answer = Client(lambda: target, answer_seconds=5).status()
    assert answer == {"path": "/console/v1/status", "token": f"Bearer {TOKEN}"}


@pytest.mark.parametrize("named", ["theirs", None])
def test_a_door_with_another_certificate_never_sees_the_token(
    tmp_path: Path, door: tuple[str, Path], named: str | None
) -> None:
    wrong = str(certificate(tmp_path, named)[0]) if named else None
    client = Client(lambda: Target(door[0], TOKEN, wrong), answer_seconds=5)
    with pytest.raises(DaemonUnreachable, match="certificate"):
        client.status()


def test_a_certificate_that_is_gone_is_told(door: tuple[str, Path]) -> None:
    client = Client(lambda: Target(door[0], TOKEN, "/not/there.pem"), answer_seconds=5)
    with pytest.raises(DaemonUnreachable, match=r"/not/there\.pem can not be read"):
        client.status()
