"""Clients that talk to the daemon while it is killed, over HTTP and gRPC, and remember what they were told.

They do what clients must: send again under the same idempotency key when no answer came, and follow again behind the
last entry that they have seen. `Memory` holds what the daemon has acknowledged; the invariants are checked against it.
"""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from random import Random
from threading import Thread
from time import monotonic, sleep
from typing import Any, TypeVar

import grpc
import httpx

from palyra.gateway.grpc.pb import approvals_pb2, gateway_pb2
from tests.campaign.effects import KINDS, WEIGHTS
from tests.support.daemon import FINAL, Daemon, Json, Line, Refused, line_of

T = TypeVar("T")

PATIENCE_SECONDS = 300.0
"""For which a client tries in vain before it gives up."""
CALL_SECONDS = 10.0
STREAM_SECONDS = 60.0
"""The library may leave a stream open for ever whose server was killed: follow it again after that time."""
PAUSE = 0.02
MAX_WAIT_SECONDS = 5.0
"""For which an answer waits for the next restart."""
BUSY = 6
"""Runs of one client that may be open; it then waits before it sends more."""
MODES = {
    "queue": gateway_pb2.MODE_QUEUE,
    "steer": gateway_pb2.MODE_STEER,
    "interrupt": gateway_pb2.MODE_INTERRUPT,
}
GUARD_SECONDS = 10.0
_RETRIED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}


class Closing(Exception):
    """The campaign is over."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that the daemon has acknowledged."""

    text: str
    session: str
    """The session's key."""
    run_id: str
    session_id: str


@dataclass
class Memory:
    """What the clients know; each key is written by one thread."""

    tried: dict[str, str] = field(default_factory=dict)
    """Every message that was sent at all, by its key."""
    accepted: dict[str, Sent] = field(default_factory=dict)
    seen: dict[str, list[Line]] = field(default_factory=dict)
    """What followers of sessions were shown, by session and follower."""
    shown: dict[str, list[Line]] = field(default_factory=dict)
    """What was shown of single runs."""
    decided: dict[str, str] = field(default_factory=dict)
    """Answers to approval requests that were sent."""
    answered: set[str] = field(default_factory=set)
    """Those of them that the daemon has acknowledged."""
    wrong: list[str] = field(default_factory=list)
    """What a client saw that must not be."""


class Link:
    """A client's way to the daemon, on either API."""

    def __init__(self, daemon: Daemon, memory: Memory, enough: threading.Event, over: threading.Event) -> None:
        self.daemon = daemon
        self.memory = memory
        self.enough = enough
        """No more messages are to be sent."""
        self.over = over
        """Everything is done; whoever still follows stops."""

    def surely(self, attempt: Callable[[], T], *, progress: Callable[[], int] = lambda: 0) -> T:
        """Try as often as it takes while the daemon is killed and started, as long as there is progress."""
        deadline, before = monotonic() + PATIENCE_SECONDS, progress()
        last: Exception | None = None
        while True:
            if self.over.is_set():
                raise Closing
            try:
                if self.daemon.alive and self.daemon.home.daemon.exists():
                    return attempt()
            except (httpx.TransportError, OSError, ValueError) as error:
                last = error  # it is away, or its file is just being replaced
            except Refused as error:
                last = error
                if error.status not in (429, 503):
                    raise
            except grpc.RpcError as error:
                last = error
                if error.code() not in _RETRIED:
                    raise
            if progress() > before:
                deadline, before = monotonic() + PATIENCE_SECONDS, progress()
            if monotonic() > deadline:
                raise TimeoutError(f"no answer within {PATIENCE_SECONDS:g} s; the last error: {last!r}")
            sleep(PAUSE)

    # -- gRPC

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """Call a method that gives one message, over a connection of its own."""
        with grpc.insecure_channel(self._address()) as channel:
            path = f"/palyra.v1.{method}"
            ask = channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
            return ask(request, metadata=self._metadata(), timeout=CALL_SECONDS)

    def entries(self, method: str, request: Any, answer: Any) -> Generator[Line, None, None]:
        """Call a method that gives entries, to the end of the stream."""
        channel = grpc.insecure_channel(self._address(), options=[("grpc.keepalive_time_ms", 10_000)])
        path = f"/palyra.v1.{method}"
        if method.endswith("RunStream"):
            stub = channel.stream_stream(path, type(request).SerializeToString, answer.FromString)
            stream = stub(iter([request]), metadata=self._metadata(), timeout=STREAM_SECONDS)
        else:
            stream = channel.unary_stream(path, type(request).SerializeToString, answer.FromString)(
                request, metadata=self._metadata(), timeout=STREAM_SECONDS
            )
        messages: Queue[Any] = Queue()
        Thread(target=_pump, args=[stream, messages], daemon=True).start()
        lost = False
        try:
            while (message := messages.get(timeout=STREAM_SECONDS + GUARD_SECONDS)) is not None:
                if isinstance(message, Exception):
                    raise message
                for entry in message.entries:
                    yield _line(entry)
        except Empty:
            # The library has been seen to lose a call: neither its deadline nor a cancel ends it, and closing the
            # channel would wait for it. A client can only leave it alone and ask again.
            lost = True
            raise ConnectionError("the gRPC library lost a stream") from None
        finally:
            if not lost:
                channel.close()

    def _address(self) -> str:
        return str(json.loads(self.daemon.home.daemon.read_text())["grpc"])

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.daemon.token}"),)


def _pump(stream: Any, messages: "Queue[Any]") -> None:
    """Put the messages of a stream into a queue: at the end None, or what ended it."""
    try:
        for message in stream:
            messages.put(message)
        messages.put(None)
    except Exception as error:
        messages.put(error)


class Sender:
    """Sends messages into a session without waiting for answers, on either API, and cancels some of the runs."""

    def __init__(self, link: Link, name: str, chance: Random, *, over_grpc: bool, counted: bool) -> None:
        self._link = link
        self._name = name
        self._chance = chance
        self._over_grpc = over_grpc
        self._weights = WEIGHTS[:-1] + ((3,) if counted else (0,))
        self._open: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._link.enough.is_set():
            number += 1
            self._send(f"{self._choose()}-{self._name}-{number}")
            if self._chance.random() < 0.1:
                self._cancel(self._open[-1])
            sleep(self._chance.uniform(0.0, 0.2))
            while len(self._open) >= BUSY and not self._link.enough.is_set():
                self._open = [run_id for run_id in self._open if not self._ended(run_id)]
                sleep(PAUSE)

    def _choose(self) -> str:
        return self._chance.choices(KINDS, self._weights)[0]

    def _send(self, text: str) -> None:
        mode = self._chance.choices(["queue", "steer", "interrupt"], [8, 1, 1])[0]
        memory, send = self._link.memory, self._by_grpc if self._over_grpc else self._by_http
        memory.tried[text] = text
        sent = self._link.surely(lambda: send(text, mode))
        memory.accepted[text] = sent
        self._open.append(sent.run_id)
        # A client that did not hear the answer sends again, now and also much later.
        if self._chance.random() < 0.3 and self._link.surely(lambda: send(text, mode)) != sent:
            memory.wrong.append(f"message {text} was accepted as another run when it was sent again")

    def _by_http(self, text: str, mode: str) -> Sent:
        session = {"key": self._name}
        answer = self._link.daemon.send(text, key=text, session=session, mode=mode)
        return Sent(text, self._name, answer["run_id"], answer["session_id"])

    def _by_grpc(self, text: str, mode: str) -> Sent:
        request = gateway_pb2.RouteMessageRequest(message=_message(text, self._name, mode))
        answer = self._link.call("GatewayService/RouteMessage", request, gateway_pb2.RouteMessageResponse).accepted
        return Sent(text, self._name, answer.run_id, answer.session_id)

    def _cancel(self, run_id: str) -> None:
        sleep(self._chance.uniform(0.0, 0.3))
        with suppress(Refused):  # it has ended meanwhile
            self._link.surely(lambda: self._link.daemon.post(f"/runs/{run_id}/cancel", {"reason": "not needed"}))

    def _ended(self, run_id: str) -> bool:
        return bool(self._link.surely(lambda: self._link.daemon.run(run_id))["ended_at"])


class Talker(Sender):
    """Sends a message, follows its run to the end on one stream or many, sends the next."""

    def run(self) -> None:
        number = 0
        while not self._link.enough.is_set():
            number += 1
            self._talk(f"{self._choose()}-{self._name}-{number}")

    def _talk(self, text: str) -> None:
        memory = self._link.memory
        memory.tried[text] = text
        lines: list[Line] = []
        self._link.surely(lambda: self._follow(text, lines), progress=lambda: len(lines))
        memory.shown[text] = lines
        first = lines[0]
        memory.accepted[text] = Sent(text, self._name, str(first.run_id), json.loads(first.text)["session_id"])

    def _follow(self, text: str, lines: list[Line]) -> None:
        with closing(self._stream(text, lines)) as stream:
            for line in stream:
                if lines and line.seq <= lines[-1].seq:
                    self._link.memory.wrong.append(f"{text} was shown entry {line.seq} after {lines[-1].seq}")
                lines.append(line)
        if not lines or lines[-1].kind not in FINAL:
            raise httpx.RemoteProtocolError("the daemon ended the stream before the run")

    def _stream(self, text: str, lines: list[Line]) -> Generator[Line, None, None]:
        link = self._link
        if not self._over_grpc:
            session = {"key": self._name}
            if lines:
                return link.daemon.events(f"/runs/{lines[0].run_id}", after=lines[-1].seq)
            return link.daemon.chat(text, key=text, session=session)
        if lines:
            again = gateway_pb2.AttachRunRequest(run_id=lines[0].run_id or "", after_seq=lines[-1].seq)
            return link.entries("GatewayService/AttachRun", again, gateway_pb2.TapeBatch)
        start = gateway_pb2.StartRun(protocol_version=1, message=_message(text, self._name, "queue"))
        first = gateway_pb2.RunStreamRequest(start=start)
        return link.entries("GatewayService/RunStream", first, gateway_pb2.RunStreamResponse)


class Follower:
    """Follows the session of a key from its first entry, over every kill, and checks that no entry is left out."""

    def __init__(self, link: Link, name: str, *, over_grpc: bool) -> None:
        self._link = link
        self._key = name
        self._over_grpc = over_grpc

    def run(self) -> None:
        lines: list[Line] = []
        try:
            found = self._link.surely(self._resolve)
            self._link.memory.seen[f"{found} {'grpc' if self._over_grpc else 'http'}"] = lines
            while True:
                self._link.surely(lambda: self._follow(found, lines), progress=lambda: len(lines))
        except Closing:
            pass

    def _resolve(self) -> str:
        return str(self._link.daemon.post("/sessions/resolve", {"key": self._key})["session"]["session_id"])

    def _follow(self, session_id: str, lines: list[Line]) -> None:
        after = lines[-1].seq if lines else 0
        if self._over_grpc:
            request = gateway_pb2.AttachSessionRequest(session_id=session_id, after_seq=after)
            stream = self._link.entries("GatewayService/AttachSession", request, gateway_pb2.TapeBatch)
        else:
            stream = self._link.daemon.events(f"/sessions/{session_id}", after=after)
        with closing(stream):
            for line in stream:
                expected = lines[-1].seq + 1 if lines else 1
                if line.seq != expected:
                    self._link.memory.wrong.append(f"session {session_id}: entry {line.seq} was shown for {expected}")
                lines.append(line)


class Approver:
    """Answers approval requests, some at once, some after the next restart, some with no."""

    def __init__(self, link: Link, chance: Random, life: Callable[[], int]) -> None:
        self._link = link
        self._chance = chance
        self._life = life
        """Counts the starts of the daemon."""
        self._later: dict[str, tuple[int, float]] = {}

    def run(self) -> None:
        try:
            while True:
                waiting = self._link.surely(lambda: self._link.daemon.get("/approvals", open="true"))["approvals"]
                for approval in waiting:
                    self._look_at(approval["approval_id"])
                sleep(0.05)
        except Closing:
            pass

    def _look_at(self, approval_id: str) -> None:
        if approval_id not in self._later:
            waits = self._chance.random() < 0.4
            self._later[approval_id] = (self._life(), monotonic() + (MAX_WAIT_SECONDS if waits else 0.0))
        life, until = self._later[approval_id]
        if life == self._life() and monotonic() < until and not self._link.enough.is_set():
            return
        memory = self._link.memory
        decision = memory.decided.setdefault(approval_id, self._chance.choices(["allow", "deny"], [3, 1])[0])
        answer = self._by_grpc if self._chance.random() < 0.5 else self._by_http
        try:
            self._link.surely(lambda: answer(approval_id, decision))
        except (Refused, grpc.RpcError):
            return  # it is settled by now: by an answer that was not heard, a cancel or another message
        memory.answered.add(approval_id)

    def _by_http(self, approval_id: str, decision: str) -> Json:
        return self._link.daemon.post(f"/approvals/{approval_id}/resolve", {"decision": decision})

    def _by_grpc(self, approval_id: str, decision: str) -> Json:
        request = approvals_pb2.ResolveApprovalRequest(approval_id=approval_id, allow=decision == "allow")
        return self._link.call("ApprovalsService/ResolveApproval", request, approvals_pb2.ResolveApprovalResponse)


def _message(text: str, session: str, mode: str) -> gateway_pb2.InboundMessage:
    return gateway_pb2.InboundMessage(
        text=text, session=gateway_pb2.SessionRef(key=session), mode=MODES[mode], idempotency_key=text
    )


def _line(entry: Any) -> Line:
    run = f'"{entry.run_id}"' if entry.run_id else "null"
    return line_of(
        f'{{"session_id":"{entry.session_id}","run_id":{run},"tape_seq":{entry.tape_seq},'
        f'"run_seq":{entry.run_seq},"event":{entry.event.decode()}}}'
    )
