"""Messages as rows: the conversation, newest first, as far as there is room."""

import pytest

from palyra.core.ids import CallId
from palyra.core.model.message_tokens import MESSAGE_TOKENS, tokens_of
from palyra.core.model.prompt import Message, Role
from palyra.core.projection.changes import StoredMessage
from palyra.core.tool import ToolCall
from palyra.journal.engines.base import Connection
from palyra.journal.stores import messages, search
from tests.contract.journal.builders import BEN, a_run_id, a_session_id
from tests.support.builders import ANA


def kept(
    seq: int, text: str = "Hello.", *, role: Role = Role.USER, tokens: int = 10, run: int = 1, call: str | None = None
) -> StoredMessage:
    message = Message(role=role, text=text, call_id=CallId(call) if call else None)
    return StoredMessage(tape_seq=seq, run_id=a_run_id(run), message=message, tokens=tokens, labels=(), at_ms=seq)


def insert(conn: Connection, *items: StoredMessage, place: int = 1) -> None:
    messages.insert(conn, a_session_id(place), ANA, messages=items)


def newest(conn: Connection, *, tokens: int, after_seq: int = 0) -> list[int]:
    found = messages.newest(conn, a_session_id(), after_seq=after_seq, tokens=tokens)
    return [item.tape_seq for item in found]


def test_a_message_comes_back_as_it_was_kept(conn: Connection) -> None:
    calls = tuple(
        ToolCall(call_id=CallId(f"c{place}"), tool="files.read", arguments={"path": "it's ü", "deep": [1, None]})
        for place in (1, 2)
    )
    said = StoredMessage(
        tape_seq=3,
        run_id=a_run_id(),
        message=Message(role=Role.ASSISTANT, text="I will look.\n'Now'.", calls=calls),
        tokens=42,
        labels=("owner", "web"),
        at_ms=1_000,
    )
    result = kept(5, "", role=Role.TOOL, call="c1")

    insert(conn, said, result)

    assert messages.following(conn, a_session_id(), after_seq=0, limit=9) == [said, result]


def test_nothing_to_keep_is_nothing_kept(conn: Connection) -> None:
    insert(conn)

    assert messages.following(conn, a_session_id(), after_seq=0, limit=9) == []


# -- the newest that fit


def test_the_newest_messages_that_fit_come_oldest_first(conn: Connection) -> None:
    insert(conn, *(kept(seq, tokens=10) for seq in range(1, 11)))

    assert newest(conn, tokens=30) == [8, 9, 10]
    assert newest(conn, tokens=39) == [8, 9, 10]
    assert newest(conn, tokens=40) == [7, 8, 9, 10]
    assert newest(conn, tokens=10_000) == list(range(1, 11))


@pytest.mark.parametrize("tokens", [-5, 0, 1, 999])
def test_the_newest_message_is_always_there(conn: Connection, tokens: int) -> None:
    insert(conn, kept(1, tokens=1), kept(2, tokens=1_000))

    assert newest(conn, tokens=tokens) == [2]


def test_a_message_that_does_not_fit_ends_the_search(conn: Connection) -> None:
    insert(conn, kept(1, tokens=1), kept(2, tokens=100), kept(3, tokens=1))

    assert newest(conn, tokens=50) == [3]


def test_nothing_before_the_boundary_is_there(conn: Connection) -> None:
    insert(conn, *(kept(seq) for seq in range(1, 6)))

    assert newest(conn, tokens=1_000, after_seq=3) == [4, 5]
    assert newest(conn, tokens=1_000, after_seq=5) == []


def test_a_long_conversation_is_read_in_slices_without_a_gap(conn: Connection) -> None:
    insert(conn, *(kept(seq, tokens=1) for seq in range(1, 3 * messages.SLICE + 2)))

    assert newest(conn, tokens=10_000) == list(range(1, 3 * messages.SLICE + 2))
    assert newest(conn, tokens=messages.SLICE) == list(range(2 * messages.SLICE + 2, 3 * messages.SLICE + 2))
    assert len(newest(conn, tokens=messages.SLICE + 1)) == messages.SLICE + 1


def test_messages_of_other_sessions_are_never_there(conn: Connection) -> None:
    insert(conn, kept(1), place=1)
    insert(conn, kept(2), place=2)

    assert newest(conn, tokens=1_000) == [1]


# -- transcripts


def test_a_transcript_goes_back_from_a_position(conn: Connection) -> None:
    insert(conn, *(kept(seq) for seq in range(1, 8)))

    def seqs(before: int | None) -> list[int]:
        return [item.tape_seq for item in messages.transcript(conn, a_session_id(), before=before, limit=3)]

    assert [seqs(None), seqs(5), seqs(2), seqs(1)] == [[7, 6, 5], [4, 3, 2], [1], []]


def test_what_follows_a_position_comes_oldest_first(conn: Connection) -> None:
    insert(conn, *(kept(seq) for seq in range(1, 8)))

    def seqs(after_seq: int) -> list[int]:
        return [item.tape_seq for item in messages.following(conn, a_session_id(), after_seq=after_seq, limit=3)]

    assert [seqs(0), seqs(3), seqs(6), seqs(7)] == [[1, 2, 3], [4, 5, 6], [7], []]


# -- single messages


def test_the_answer_of_a_run_is_the_last_thing_the_assistant_said_in_it(conn: Connection) -> None:
    insert(
        conn,
        kept(1, "question"),
        kept(2, "let me see", role=Role.ASSISTANT),
        kept(3, "a result", role=Role.TOOL, call="c1"),
        kept(4, "here it is", role=Role.ASSISTANT),
        kept(5, "thanks"),
        kept(6, "another run's", role=Role.ASSISTANT, run=2),
    )

    assert messages.answer_of(conn, a_session_id(), a_run_id(1)) == "here it is"
    assert messages.answer_of(conn, a_session_id(), a_run_id(2)) == "another run's"
    assert messages.answer_of(conn, a_session_id(), a_run_id(3)) == ""


def test_the_first_input_is_the_first_thing_a_person_said(conn: Connection) -> None:
    assert messages.first_input(conn, a_session_id()) is None
    insert(conn, kept(1, "not this", role=Role.ASSISTANT), kept(2, "this"), kept(3, "not this"))

    assert messages.first_input(conn, a_session_id()) == "this"


# -- sizes and words


def test_a_message_takes_its_text_its_calls_and_a_little_more(conn: Connection) -> None:
    plain = Message(role=Role.USER, text="x" * 400)
    calling = Message(
        role=Role.ASSISTANT, text="", calls=(ToolCall(call_id=CallId("c"), tool="t", arguments={"x": "y" * 400}),)
    )

    assert tokens_of(plain) == 100 + MESSAGE_TOKENS
    assert tokens_of(calling) > 100 + MESSAGE_TOKENS
    assert tokens_of(Message(role=Role.USER, text="")) == MESSAGE_TOKENS


def test_what_people_and_the_assistant_said_can_be_found_and_what_tools_said_can_not(conn: Connection) -> None:
    insert(
        conn,
        kept(1, "the needle"),
        kept(2, "a needle", role=Role.ASSISTANT),
        kept(3, "needle", role=Role.TOOL, call="c1"),
        kept(4, "", role=Role.ASSISTANT),
    )

    assert {hit.tape_seq for hit in search.find(conn, ANA, "needle", limit=9)} == {1, 2}
    assert search.find(conn, BEN, "needle", limit=9) == []
