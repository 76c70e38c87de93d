"""The daemon as a process of its own: started, asked over HTTP, killed, started again.

A `Daemon` stands for a home, not for a process: it may be started as often as one likes, and knows where the latest
process answers. Everything here blocks and has a timeout. It may be used from several threads, of which one starts and
kills the process; the others wait for it with `serving`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select
from time import monotonic, sleep
from typing import Any, TypeVar

import httpx
import msgspec

from palyra.home import Home
from palyra.journal.engines.base import Connection
from palyra.journal.proof.journal_proof import verify
from palyra.journal.proof.signing_key import public_key
from palyra.journal.proof.tape_proof import ProofReport
from palyra.journal.snapshot import open_snapshot
from palyra.settings import JournalSettings, Settings
from tests.support.eventually import pauses
from tests.support.fork_server import ForkedProcess, ForkServer

T = TypeVar("T")
Json = Any

START_SECONDS = 60.0
STOP_SECONDS = 60.0
ANSWER_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 60.0
FINAL = frozenset({"run_completed", "run_failed", "run_cancelled"})


class NotServing(Exception):
    """The daemon ended instead of serving."""

    def __init__(self, exit_code: int, output: str) -> None:
        super().__init__(f"the daemon ended with {exit_code} before it served: {output.strip() or 'no word'}")
        self.exit_code = exit_code
        self.output = output


class Refused(Exception):
    """The daemon answered with a problem document."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"{response.status_code}: {response.text[:500]}")
        self.status = response.status_code
        self.problem: Json = response.json()

    @property
    def code(self) -> str:
        return str(self.problem["code"])


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a tape as a client sees it."""

    seq: int
    run_id: str | None
    run_seq: int
    kind: str
    event: Json
    text: str
    """The entry's JSON, byte for byte."""


class _Page(msgspec.Struct):
    entries: tuple[msgspec.Raw, ...]
    next_after_seq: int | None


_page = msgspec.json.Decoder(_Page)


class Daemon:
    """See the module."""

    def __init__(
        self,
        home: Path,
        *,
        output: Path | None = None,
        database_url: str | None = None,
        forks: ForkServer | None = None,
        **settings: object,
    ) -> None:
        """Prepare a home; `settings` as in `model_provider="scripted"` hold for every start.

        With `forks` a start is a fork of that server, otherwise a program of its own.
        """
        self.home = Home(home)
        self._forks = forks
        self.database_url = database_url
        self._settings = {"http_port": 0, "grpc_port": 0, **settings}
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._serving = threading.Event()
        self._output = output or home.parent / f"{home.name}.output"
        # Here and in the tests `verify=False`: each client would load the root certificates, which takes 30 ms of
        # processor time, for addresses that have no TLS.
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(verify=False, limits=httpx.Limits(max_connections=None)),
            timeout=ANSWER_SECONDS,
        )
        self.address = ""

    # -- the process

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def script(self) -> Path:
        """The file that the model plays; it is read at each start."""
        return Path(str(self._settings["model_script"]))

    @property
    def token(self) -> str:
        return self.home.token.read_text().strip()

    def start(self, *, crash_after: int | None = None, **settings: object) -> "Daemon":
        """Start a process and wait until it serves, or raise `NotServing`."""
        assert not self.alive, "it runs already"
        environ = self._environ({**self._settings, **settings})
        if crash_after is not None:
            environ["PALYRA_CRASH_AFTER"] = str(crash_after)
        reader, writer = os.pipe()
        try:
            with self._output.open("wb") as output:
                if self._forks is None:
                    self._process = _start_program(environ, output=output.fileno(), ready=writer)
                else:
                    self._process = self._forks.start_daemon(environ=environ, output=output.fileno(), ready=writer)
        finally:
            os.close(writer)
        try:
            said = _read_line(reader)
        finally:
            os.close(reader)
        if not said.startswith("ready "):
            raise NotServing(self.wait(), f"{said}\n{self.output()}")
        self.address = said.removeprefix("ready ").strip()
        self._serving.set()
        return self

    def kill(self) -> None:
        """End the process as a power cut would."""
        self._serving.clear()
        if self._process is not None:
            self._process.kill()
            self.wait()

    def stop(self) -> int:
        """Ask the process to end, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until the process has ended by itself, and return its exit code."""
        assert self._process is not None
        code = self._process.wait(seconds)
        self._serving.clear()
        return code

    def serving(self, seconds: float = START_SECONDS) -> None:
        """Wait until whoever starts and kills the process has started it."""
        assert self._serving.wait(seconds), "the daemon was not started again"

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        self._client.close()

    def output(self) -> str:
        """Return what the process has written to its standard output and error."""
        return self._output.read_text(errors="replace")

    def log(self) -> list[Json]:
        """Return the lines of the log. What has no end yet is no line: on a full disk its rest comes later."""
        lines = self.home.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def _environ(self, settings: Mapping[str, object]) -> dict[str, str]:
        # Without .pyc files every start would compile all modules anew.
        ours = ("PALYRA_", "PYTHONDONTWRITEBYTECODE")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environ |= {f"PALYRA_{name.upper()}": str(value) for name, value in settings.items() if value is not None}
        if self.database_url is not None:
            environ["PALYRA_JOURNAL_DATABASE_URL"] = self.database_url
        return environ | {"PALYRA_HOME": str(self.home.path)}

    # -- its HTTP door

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> httpx.Response:
        """Send a request with the owner's token and return the answer, whatever it is."""
        return self._client.request(
            method,
            f"{self.address}/console/v1{path}",
            content=None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {self.token}", **(headers or {})},
            params={name: str(value) for name, value in (query or {}).items()},
        )

    def get(self, path: str, **query: object) -> Json:
        """Read something, or raise `Refused`."""
        return _answer(self.ask("GET", path, query=query))

    def post(self, path: str, body: object = None) -> Json:
        """Do something, or raise `Refused`."""
        return _answer(self.ask("POST", path, body={} if body is None else body))

    def send(self, text: str, *, key: str | None = None, session: Json = None, mode: str = "queue") -> Json:
        """Send a message and return which run carries it; `session` as in `{"key": "work"}`."""
        return self.post("/runs", {"text": text, "session": session or {}, "idempotency_key": key, "mode": mode})

    def send_surely(self, text: str, *, key: str, session: Json = None) -> Json:
        """Send a message as often as it takes."""
        return self.surely(lambda: self.send(text, key=key, session=session))

    def chat(self, text: str, *, key: str, session: Json = None) -> Generator[Line, None, None]:
        """Send a message and yield the run's events to the clean end of the stream."""
        body = {"text": text, "session": session or {}, "idempotency_key": key}
        yield from self._stream("POST", "/chat", body=json.dumps(body).encode())

    def chat_surely(self, text: str, *, key: str, session: Json = None) -> list[Line]:
        """Send a message, follow its run however often the connection breaks, and return what was shown of it."""
        lines: list[Line] = []

        def attempt() -> list[Line]:
            # Whoever has seen something of the run knows its id and attaches to it; others send again.
            known = lines[0].run_id if lines else None
            stream = self.chat(text, key=key, session=session)
            if known is not None:
                stream = self.events(f"/runs/{known}", after=lines[-1].seq)
            with closing(stream):
                lines.extend(stream)
            return lines

        return self.surely(attempt)

    def events(self, path: str, *, after: int = 0) -> Generator[Line, None, None]:
        """Yield what the stream of `/runs/ID` or `/sessions/ID` says, to its clean end; nothing for a 204."""
        yield from self._stream("GET", f"{path}/events", headers={"last-event-id": str(after)})

    def _stream(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Generator[Line, None, None]:
        url = f"{self.address}/console/v1{path}"
        given = {"authorization": f"Bearer {self.token}", **(headers or {})}
        with self._client.stream(method, url, content=body, headers=given, timeout=KEEP_ALIVE_SECONDS) as response:
            if response.status_code == 204:
                return
            if response.status_code != 200:
                response.read()
                raise Refused(response)
            yield from read_events(response.iter_lines())

    def surely(self, attempt: Callable[[], T]) -> T:
        """Try as often as it takes, while somebody else kills the daemon, or what it needs, and brings it back."""
        deadline, pause = monotonic() + PATIENCE_SECONDS, pauses()
        while True:
            self.serving()
            try:
                return attempt()
            except (httpx.TransportError, Refused) as error:
                final = isinstance(error, Refused) and error.status not in (429, 503)
                if final or monotonic() > deadline:
                    raise
            sleep(next(pause))

    def tape(self, path: str) -> list[Line]:
        """Return the whole tape of `/runs/ID` or `/sessions/ID`, page by page."""
        lines: list[Line] = []
        after: int | None = 0
        while after is not None:
            page = _page.decode(self.ask("GET", f"{path}/tape", query={"after_seq": after, "limit": 100}).content)
            lines += [line_of(bytes(entry).decode()) for entry in page.entries]
            after = page.next_after_seq
        return lines

    def run(self, run_id: str) -> Json:
        return self.get(f"/runs/{run_id}")["run"]

    def metrics(self) -> str:
        """Return the metrics as text."""
        headers = {"authorization": f"Bearer {self.token}"}
        return self._client.request("GET", f"{self.address}/metrics", headers=headers).text

    def finished(self, run_id: str, *, seconds: float = ANSWER_SECONDS) -> Json:
        """Wait until the run has ended, and return it."""
        return until(
            lambda: run if (run := self.surely(lambda: self.run(run_id)))["ended_at"] else None, seconds=seconds
        )

    def runs(self, **query: object) -> list[Json]:
        """Return all runs, the latest first."""
        return self._all("/runs", "runs", **query)

    def sessions(self) -> list[Json]:
        """Return all sessions, the latest first."""
        return self._all("/sessions", "sessions")

    def _all(self, path: str, name: str, **query: object) -> list[Json]:
        page = self.get(path, limit=500, **query)
        found = list(page[name])
        while page["next_cursor"] is not None:
            page = self.get(path, limit=500, cursor=page["next_cursor"], **query)
            found += page[name]
        return found

    # -- its journal

    def verify(self) -> ProofReport:
        """Prove the tape, beside the daemon or without it."""
        with self.journal() as conn:
            return verify(conn, key=public_key(self.home.key))

    @contextmanager
    def journal(self) -> Iterator[Connection]:
        """Open the journal for reading, beside the daemon or without it."""
        settings = Settings(journal=JournalSettings(database_url=self.database_url))
        with open_snapshot(self.home, settings) as conn:
            yield conn


class Watcher:
    """A client that follows a session through every interruption, and checks that it is shown each entry once."""

    def __init__(self, daemon: Daemon, session_id: str, *, after: int = 0) -> None:
        self._daemon = daemon
        self._path = f"/sessions/{session_id}"
        self._after = after
        self.lines: list[Line] = []
        self.connections = 0

    @property
    def last(self) -> int:
        """The last entry that was shown."""
        return self.lines[-1].seq if self.lines else self._after

    def follow(self, over: Callable[[Line], bool]) -> Line:
        """Follow on one connection to an entry that is enough; raise what the connection ends with before that."""
        self.connections += 1
        with closing(self._daemon.events(self._path, after=self.last)) as stream:
            for line in stream:
                assert line.seq == self.last + 1, f"{line.seq} was shown after {self.last}"
                self.lines.append(line)
                if over(line):
                    return line
        raise httpx.RemoteProtocolError("the daemon ended the stream")

    def follow_surely(self, over: Callable[[Line], bool]) -> Line:
        """Follow on as many connections as it takes."""
        return self._daemon.surely(lambda: self.follow(over))


def read_events(lines: Iterator[str]) -> Iterator[Line]:
    """Yield the events of a stream, each of which says the same thing thrice."""
    fields: dict[str, str] = {}
    for text in lines:
        if text:
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            line = line_of(fields["data"])
            assert (fields["id"], fields["event"]) == (str(line.seq), line.kind)
            yield line
        fields = {}


def line_of(text: str) -> Line:
    """Read an entry's JSON."""
    entry = json.loads(text)
    return Line(
        seq=entry["tape_seq"],
        run_id=entry["run_id"],
        run_seq=entry["run_seq"],
        kind=entry["event"]["kind"],
        event=entry["event"],
        text=text,
    )


def until(condition: Callable[[], T | None], *, seconds: float = ANSWER_SECONDS) -> T:
    """Ask again and again, and return the first true answer."""
    deadline, pause = monotonic() + seconds, pauses()
    while not (answer := condition()):
        assert monotonic() < deadline, f"not true within {seconds:g} s; the last answer was {answer!r}"
        sleep(next(pause))
    return answer


def warmed_up(daemon: Daemon) -> None:
    """Wait until a daemon that was just started has loaded what its first turns need."""

    def last() -> bool:
        # The log tells of earlier starts too, and of each that it is ready before it is warmed up.
        told = [line["message"] for line in daemon.log() if line["message"].startswith(("ready at", "warmed up"))]
        return bool(told) and told[-1].startswith("warmed up")

    until(last)


def _answer(response: httpx.Response) -> Json:
    if response.status_code >= 400:
        raise Refused(response)
    return response.json()


def _read_line(descriptor: int) -> str:
    """Read what the daemon says of its start; nothing if it ends without a word."""
    said = b""
    deadline = monotonic() + START_SECONDS
    while not said.endswith(b"\n"):
        assert select([descriptor], [], [], max(0.0, deadline - monotonic()))[0], "the daemon did not start in time"
        piece = os.read(descriptor, 4096)
        if not piece:
            break
        said += piece
    return said.decode().strip()


def _start_program(environ: Mapping[str, str], *, output: int, ready: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-P", "-m", "palyra.cli.daemon.serve", "--ready-fd", str(ready)]
    return subprocess.Popen(
        [*_dying_with_us(), *program],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environ,
        pass_fds=(ready,),
    )


def _dying_with_us() -> list[str]:
    """Have the kernel kill the daemon when the tests die. It goes by the thread that starts it, which must live on."""
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]
