"""What a daemon says on its doors, for doors that answer as they are told."""

import json
from typing import Any

import msgspec

from palyra.core.agent import Agent
from palyra.core.events import TapeEvent
from palyra.core.run.record import RunRecord
from palyra.core.session import Session
from palyra.core.version import VERSION
from palyra.gateway.client.tape_stream import ReceivedEntry, read_entry
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from tests.support.builders import AGENT, ANA, RUN, SESSION


def entry(seq: int, event: TapeEvent, *, run_id: str | None = RUN) -> str:
    """Return an entry's JSON."""
    content = msgspec.json.encode(event).decode()
    run = json.dumps(run_id)
    return f'{{"session_id":"{SESSION}","run_id":{run},"tape_seq":{seq},"run_seq":{seq},"event":{content}}}'


def tape_entry(seq: int, event: TapeEvent) -> pb.TapeEntry:
    """Return an entry as gRPC carries it."""
    return pb.TapeEntry(
        session_id=SESSION,
        run_id=RUN,
        tape_seq=seq,
        run_seq=seq,
        kind=str(event.__struct_config__.tag),
        event=msgspec.json.encode(event),
    )


def line(event: TapeEvent, *, seq: int = 1, run_id: str | None = RUN) -> ReceivedEntry:
    """Return an entry as the client reads it."""
    return read_entry(entry(seq, event, run_id=run_id).encode())


def a_session(**changes: object) -> dict[str, object]:
    """Return a session as the daemon shows it."""
    session = {
        "session_id": SESSION,
        "principal": ANA,
        "agent_id": AGENT,
        "key": None,
        "label": None,
        "title": "Hello",
        "created_at": "2026-01-02T03:04:05Z",
        "updated_at": "2026-01-02T03:04:05Z",
        "archived_at": None,
        "reset_seq": 0,
        "active_run_id": None,
        "parent_session_id": None,
    }
    return session | changes


def the_session(**changes: object) -> pb.Session:
    """Return a session as gRPC carries it."""
    return convert.to_message(pb.Session, msgspec.convert(a_session(**changes), Session))


def resolved(**changes: object) -> pb.ResolveSessionResponse:
    """Return the answer to whoever names a session."""
    return pb.ResolveSessionResponse(session=the_session(**changes))


def listed(*sessions: pb.Session, next_cursor: str = "") -> pb.ListSessionsResponse:
    """Return a page of sessions."""
    return pb.ListSessionsResponse(sessions=sessions, next_cursor=next_cursor)


def the_run(**changes: object) -> pb.Run:
    """Return a run as gRPC carries it."""
    return convert.to_message(pb.Run, msgspec.convert(a_run(**changes), RunRecord))


def accepted(**changes: Any) -> pb.RouteMessageResponse:
    """Return the answer to whoever sends a message."""
    return pb.RouteMessageResponse(accepted=pb.Accepted(run_id=RUN, session_id=SESSION, **changes))


def health(**changes: Any) -> pb.GetHealthResponse:
    """Return how a daemon is that is well."""
    given = {"version": VERSION, "provider": "embedded", "model": "embedded", "storage": "ok"} | changes
    return pb.GetHealthResponse(**given)


def an_agent(**changes: Any) -> pb.Agent:
    """Return an agent as gRPC carries it."""
    agent = Agent(agent_id=AGENT, principal=ANA, name="main", instructions="Be kind.", is_default=True)
    return convert.from_agent(msgspec.structs.replace(agent, **changes))


def a_run(**changes: object) -> dict[str, object]:
    """Return a run as the daemon shows it."""
    run = {
        "run_id": RUN,
        "session_id": SESSION,
        "agent_id": AGENT,
        "status": "done",
        "input": "Hello.",
        "reason": None,
        "limit_reached": None,
        "parent_run_id": None,
        "accepted_seq": 1,
        "last_seq": 6,
        "accepted_at": "2026-01-02T03:04:05Z",
        "ended_at": "2026-01-02T03:04:07.5Z",
        "turns": 1,
        "tool_calls": 0,
        "usage": {"input_tokens": 3, "output_tokens": 4},
        "cancel_requested": False,
    }
    return run | changes


def a_message(role: str = "user", text: str = "Hello.", *, seq: int = 2) -> dict[str, object]:
    """Return a message as the daemon shows it."""
    return {"tape_seq": seq, "run_id": RUN, "role": role, "text": text, "at": "2026-01-02T03:04:05Z"}
