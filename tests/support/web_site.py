"""A web site of this machine, with the names that lead to it, and certificates for them."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

Reply = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HELLO = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"


class Site:
    """A web server that says what a test wants, and remembers what it was asked."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.asked: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")), 0)
            self.asked.append(head + await reader.readexactly(length))
            reply = self.replies.get(head.split()[1].decode(), b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            if isinstance(reply, bytes):
                writer.write(reply)
                await writer.drain()
            else:
                await reply(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left: before it asked for anything if it did not trust the certificate
        finally:
            writer.transport.abort()

    def redirect(self, path: str, to: str, *, status: int = 302) -> None:
        self.replies[path] = f"HTTP/1.1 {status} Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


class Names:
    """A name server whose answers a test writes down: one list for each time that it is asked."""

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self.answers.get(host, [])
        return answers.pop(0) if len(answers) > 1 else answers[0] if answers else []


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """Make a certificate for a name or an address, signed by itself. Not every machine knows `localhost`."""
    kind = "IP" if name[0].isdigit() else "DNS"
    made, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += [
        "-keyout",
        key,
        "-out",
        made,
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-addext",
        f"subjectAltName={kind}:{name}",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@asynccontextmanager
async def served(site: Site, *, made: str, key: str) -> AsyncIterator[Site]:
    """Serve a site over TLS for as long as the context lasts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=context)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        yield site
