"""The chat without its surface."""

import pytest

from palyra.cli.chat.conversation import ChatSession, first_answer, recap_lines
from palyra.cli.chat.slash_commands import SlashCommand
from palyra.core.session import SessionArchivedError, SessionRef
from palyra.gateway.client.client import Client
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from tests.support import builders as b
from tests.support.builders import RUN, SESSION
from tests.unit.cli.door import GRPC, Answer, Door
from tests.unit.cli.wire import (
    a_message,
    a_run,
    a_session,
    accepted,
    entry,
    health,
    listed,
    resolved,
    the_run,
    the_session,
)

OTHER = "01JGKK8F5E000000000000000T"
RESOLVE = "ResolveSession"
CLEANED = pb.CleanupSessionResponse(session=the_session())


def open_default(client: Client) -> ChatSession:
    return ChatSession(client, SessionRef(key="cli"))


def test_the_default_conversation_goes_on(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    assert open_default(client).session.session_id == SESSION


def test_a_default_conversation_that_was_put_away_is_not_taken_up(client: Client, door: Door) -> None:
    archived = "2026-01-02T03:04:05Z"
    door.tells(RESOLVE, resolved(key="cli", archived_at=archived), resolved(key="cli", session_id=OTHER))
    door.tells("CleanupSession", CLEANED)
    assert open_default(client).session.session_id == OTHER


def test_a_named_conversation_that_was_put_away_is_left_alone(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="work", archived_at="2026-01-02T03:04:05Z"))
    with pytest.raises(SessionArchivedError, match="palyra sessions unarchive"):
        ChatSession(client, SessionRef(key="work"))


def test_a_new_conversation_gets_the_name_of_the_old(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"), resolved(key="cli", session_id=OTHER))
    door.says("GET", f"/sessions/{SESSION}/messages", {"messages": [a_message()]})
    door.tells("CleanupSession", CLEANED)
    conversation = open_default(client)
    assert conversation.do(SlashCommand("/new", ""), active=None, typing_along=True).moved
    assert conversation.session.session_id == OTHER


def test_a_conversation_in_which_nothing_was_said_is_new_already(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    door.says("GET", f"/sessions/{SESSION}/messages", {"messages": []})
    conversation = open_default(client)
    conversation.start_new()
    assert conversation.session.session_id == SESSION


def test_a_conversation_opened_by_id_is_never_put_away(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="work"), resolved(session_id=OTHER))
    conversation = ChatSession(client, SessionRef(session_id=SESSION))
    conversation.start_new()
    assert conversation.session.session_id == OTHER
    assert [(seen.method, seen.path) for seen in door.seen] == [(GRPC, RESOLVE)] * 2


def test_whoever_comes_back_is_told_what_was_said_last(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    said = [a_message("assistant", "Hi.", seq=9), a_message("tool", "x"), a_message("user", "Hello\x1b[31m.")]
    door.says("GET", f"/sessions/{SESSION}/messages", {"messages": said})
    first, *words = recap_lines(open_default(client))
    assert first.startswith(f"Continuing session {SESSION}: Hello")
    assert words == ["> Hello⟨ESC⟩[31m.", "  Hi."]


def test_what_was_said_before_a_reset_is_not_recalled(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli", reset_seq=5))
    door.says("GET", f"/sessions/{SESSION}/messages", {"messages": [a_message(seq=2)]})
    assert recap_lines(open_default(client)) == []


def test_the_chat_begins_behind_the_end_of_the_tape(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    door.says("GET", f"/sessions/{SESSION}", {"session": a_session()})
    door.says("GET", f"/sessions/{SESSION}/messages", {"messages": [a_message(seq=5)]})
    page = f'{{"entries":[{entry(6, b.a_turn_end())},{entry(7, b.a_completion())}]}}'
    door.says("GET", f"/sessions/{SESSION}/tape", Answer(page.encode()))
    assert open_default(client).end_seq() == 7


def test_the_chat_begins_with_the_run_under_way(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    door.says("GET", f"/sessions/{SESSION}", {"session": a_session(active_run_id=RUN)})
    door.says("GET", f"/runs/{RUN}", {"run": a_run(accepted_seq=4, ended_at=None)})
    assert open_default(client).end_seq() == 3


def test_messages_join_the_run_under_way(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    door.tells("RouteMessage", accepted(after_seq=1, steered=True))
    conversation = open_default(client)
    assert conversation.send("Wait!").steered
    sent = door.called("RouteMessage")[-1].message
    assert (sent.mode, sent.session.session_id) == (pb.MODE_STEER, SESSION)
    assert sent.idempotency_key in conversation.own_keys


def test_sessions_are_listed_and_gone_to(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    away = the_session(session_id=OTHER, title="Old", archived_at="2026-01-02T03:04:05Z")
    door.tells("ListSessions", listed(the_session()), listed(away))
    door.says("POST", f"/sessions/{OTHER}/unarchive", {"session": a_session(session_id=OTHER, title="Old")})
    door.says("GET", f"/sessions/{OTHER}/messages", {"messages": []})
    conversation = open_default(client)
    rows = conversation.do(SlashCommand("/sessions", ""), active=None, typing_along=True).lines
    assert rows[0].startswith(" *1")
    assert rows[1].endswith("Old (archived)")
    reply = conversation.do(SlashCommand("/sessions", "2"), active=None, typing_along=True)
    assert reply.moved
    assert reply.lines == ("Continuing session: Old",)
    assert conversation.session.session_id == OTHER


@pytest.mark.parametrize("argument", ["0", "3", "x", "²"])
def test_a_session_that_is_not_in_the_list_is_refused(client: Client, door: Door, argument: str) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    door.tells("ListSessions", listed(the_session()), listed())
    reply = open_default(client).do(SlashCommand("/sessions", argument), active=None, typing_along=True)
    assert not reply.moved
    assert "Unknown session" in reply.lines[0]


def test_nothing_is_cancelled_where_nothing_runs(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    reply = open_default(client).do(SlashCommand("/cancel", ""), active=None, typing_along=True)
    assert reply.lines == ("No active run.",)


def test_the_run_under_way_is_cancelled(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    door.tells("AbortRun", pb.AbortRunResponse(run=the_run()))
    open_default(client).do(SlashCommand("/cancel", ""), active=RUN, typing_along=True)
    assert door.called("AbortRun")[0].run_id == RUN


def test_the_model_is_named(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    door.tells("GetHealth", health())
    reply = open_default(client).do(SlashCommand("/model", ""), active=None, typing_along=True)
    assert reply.lines == ("Answers come from the built-in helper.",)


def test_leaving_is_asked_for(client: Client, door: Door) -> None:
    door.tells(RESOLVE, resolved(key="cli"))
    assert open_default(client).do(SlashCommand("/quit", ""), active=None, typing_along=True).leave


def test_only_the_first_answer_of_a_home_is_explained(client: Client, door: Door) -> None:
    door.tells("GetHealth", health())
    door.says("GET", "/runs", {"runs": [a_run()]}, {"runs": [a_run(), a_run()]})
    first = first_answer(client)
    assert "`palyra runs tape last`" in first[0]
    assert "`palyra providers add`" in first[1]
    assert first_answer(client) == []
