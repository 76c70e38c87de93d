"""The tape: numbered without gaps, chained, and read in pages."""

import hashlib

import pytest
from msgspec.structs import replace

from palyra.core.clock import to_ms
from palyra.core.errors import OffsetBeyondEnd
from palyra.core.events import Entry, encode
from palyra.core.ids import RunId, SessionId
from palyra.journal import tape
from palyra.journal.engines.base import Connection
from palyra.journal.engines.postgres import PostgresConnection
from palyra.journal.engines.sqlite import SqliteConnection
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.tape import GENESIS, PAGE_BYTES, PAGE_ENTRIES, NewEntry, entry_hash
from tests.contract.journal.builders import (
    a_piece,
    a_run_id,
    a_session_id,
    a_title,
    begin,
    later,
    write_down,
    write_down_of,
)

SESSION = a_session_id()


def seqs(entries: list[Entry]) -> list[int]:
    return [entry.tape_seq for entry in entries]


# -- appending


def test_a_new_tape_is_empty(conn: Connection) -> None:
    assert tape.lock(conn, SESSION) is None
    assert tape.end(conn, SESSION) == 0

    assert tape.begin(conn, SESSION) == TapeHead(0, GENESIS)

    assert tape.lock(conn, SESSION) == TapeHead(0, GENESIS)
    assert tape.page(conn, SESSION, after_seq=0) == []


def test_entries_are_numbered_from_one_and_come_back_as_they_were_written(conn: Connection) -> None:
    begin(conn)

    first = write_down(conn, SESSION, a_title("it's"), a_title("ü", at=later(7)))
    (third,) = write_down_of(conn, SESSION, a_run_id(), a_piece())

    assert tape.page(conn, SESSION, after_seq=0) == [*first, third]
    assert first == [
        Entry(SESSION, 1, None, 0, "session_renamed", to_ms(later(0)), encode(a_title("it's"))),
        Entry(SESSION, 2, None, 0, "session_renamed", to_ms(later(7)), encode(a_title("ü", at=later(7)))),
    ]
    assert third == Entry(SESSION, 3, a_run_id(), 1, "model_text", to_ms(later(0)), encode(a_piece()))
    assert third.event == a_piece()


def test_the_head_is_the_last_entry(conn: Connection) -> None:
    begin(conn)
    write_down(conn, SESSION, a_title(), a_title())

    stored = conn.fetch("SELECT tape_seq, hash FROM tape ORDER BY tape_seq DESC LIMIT 1")[0]
    assert tape.lock(conn, SESSION) == TapeHead(*stored)
    assert stored[0] == 2


def test_each_entry_is_chained_to_the_one_before_it(conn: Connection) -> None:
    begin(conn)
    entries = write_down(conn, SESSION, a_title("a"), a_title("b"), a_title("c"))

    before = GENESIS
    for entry, (salt, stored) in zip(entries, conn.fetch("SELECT salt, hash FROM tape ORDER BY tape_seq"), strict=True):
        assert stored == entry_hash(before, entry, salt)
        before = stored


def test_entries_of_the_same_content_have_different_salts_and_hashes(conn: Connection) -> None:
    begin(conn)
    write_down(conn, SESSION, *[a_title()] * 20)

    rows = conn.fetch("SELECT salt, hash FROM tape")
    assert len({row[0] for row in rows}) == len({row[1] for row in rows}) == 20
    assert {len(row[0]) for row in rows} == {32}


def test_every_new_entry_is_told_of_in_order(conn: Connection) -> None:
    begin(conn)
    entries = write_down(conn, SESSION, a_title("a"), a_title("b"))

    assert isinstance(conn, SqliteConnection | PostgresConnection)
    assert conn.facts == entries


def test_an_entry_is_written_once(conn: Connection) -> None:
    begin(conn)
    write_down(conn, SESSION, a_title())

    def write_again() -> list[Entry]:
        """Append with a head that is no longer the end, and look: what was put off is written before."""
        tape.append(conn, SESSION, head=TapeHead(0, GENESIS), fresh=[NewEntry(None, 0, a_title())])
        return tape.page(conn, SESSION, after_seq=0)

    with pytest.raises(Exception, match=r"tape"):
        write_again()


def test_tapes_are_numbered_apart_from_each_other(conn: Connection) -> None:
    for place in (1, 2):
        begin(conn, place)
    write_down(conn, a_session_id(1), a_title(), a_title())
    write_down(conn, a_session_id(2), a_title())

    assert tape.end(conn, a_session_id(1)) == 2
    assert tape.end(conn, a_session_id(2)) == 1
    asked = [a_session_id(place) for place in (1, 2, 3)]
    assert tape.ends(conn, asked) == {a_session_id(1): 2, a_session_id(2): 1}
    assert tape.ends(conn, []) == {}


# -- the hash of an entry

ENTRY = Entry(SESSION, 3, a_run_id(), 2, "model_text", 1_000, '{"kind":"model_text"}')
SALT = "0" * 32


@pytest.mark.parametrize(
    "other",
    [
        replace(ENTRY, session_id=a_session_id(2)),
        replace(ENTRY, tape_seq=4),
        replace(ENTRY, run_id=a_run_id(2)),
        replace(ENTRY, run_id=None),
        replace(ENTRY, run_id=RunId("null")),
        replace(ENTRY, run_seq=3),
        replace(ENTRY, kind="model_texts"),
        replace(ENTRY, at_ms=1_001),
        replace(ENTRY, content='{"kind":"model_text" }'),
        replace(ENTRY, tape_seq=32, run_seq=0),
    ],
)
def test_the_hash_covers_everything_that_an_entry_has(other: Entry) -> None:
    assert entry_hash(GENESIS, other, SALT) != entry_hash(GENESIS, ENTRY, SALT)


def test_the_hash_covers_the_salt_and_the_hash_before(conn: Connection) -> None:
    hashes = {
        entry_hash(GENESIS, ENTRY, SALT),
        entry_hash(GENESIS, ENTRY, "1" + SALT[1:]),
        entry_hash(SALT, ENTRY, SALT),
    }

    assert len(hashes) == 3


def test_the_hash_is_made_of_what_the_documents_say() -> None:
    content = hashlib.sha256((SALT + ENTRY.content).encode()).hexdigest()
    position = f'["{GENESIS}","{SESSION}",3,"{a_run_id()}",2,"model_text",1000,"{content}"]'

    assert entry_hash(GENESIS, ENTRY, SALT) == hashlib.sha256(position.encode()).hexdigest()


# -- pages


def test_a_page_begins_after_a_position(conn: Connection) -> None:
    begin(conn)
    write_down(conn, SESSION, *[a_title()] * 5)

    assert seqs(tape.page(conn, SESSION, after_seq=0)) == [1, 2, 3, 4, 5]
    assert seqs(tape.page(conn, SESSION, after_seq=3)) == [4, 5]
    assert seqs(tape.page(conn, SESSION, after_seq=5)) == []
    assert seqs(tape.page(conn, a_session_id(2), after_seq=0)) == []


def test_a_page_has_as_many_entries_as_asked_and_a_thousand_at_the_most(conn: Connection) -> None:
    begin(conn)
    write_down(conn, SESSION, *[a_title()] * (PAGE_ENTRIES + 50))

    assert seqs(tape.page(conn, SESSION, after_seq=2, limit=3)) == [3, 4, 5]
    assert seqs(tape.page(conn, SESSION, after_seq=0, limit=250)) == list(range(1, 251))
    assert seqs(tape.page(conn, SESSION, after_seq=0)) == list(range(1, PAGE_ENTRIES + 1))
    assert seqs(tape.page(conn, SESSION, after_seq=0, limit=10**6)) == list(range(1, PAGE_ENTRIES + 1))
    assert seqs(tape.page(conn, SESSION, after_seq=PAGE_ENTRIES)) == list(range(PAGE_ENTRIES + 1, PAGE_ENTRIES + 51))


@pytest.mark.parametrize("letter", ["x", "ü", "日", "👍"])
def test_a_page_has_two_mebibytes_at_the_most(conn: Connection, letter: str) -> None:
    begin(conn)
    write_down(conn, SESSION, *[a_piece(letter * 100_000)] * 30)

    page = tape.page(conn, SESSION, after_seq=0)

    size = sum(len(entry.content.encode()) for entry in page)
    assert size <= PAGE_BYTES
    assert size > PAGE_BYTES - 2 * len(page[0].content.encode())
    assert seqs(page) == list(range(1, len(page) + 1))
    assert tape.page(conn, SESSION, after_seq=len(page))[0].tape_seq == len(page) + 1


def test_a_page_has_an_entry_however_long_it_is(conn: Connection) -> None:
    begin(conn)
    write_down(conn, SESSION, a_piece("x" * (PAGE_BYTES + 1)), a_title())

    assert seqs(tape.page(conn, SESSION, after_seq=0)) == [1]
    assert seqs(tape.page(conn, SESSION, after_seq=1)) == [2]


# -- runs


def interleaved(conn: Connection) -> SessionId:
    """Write a tape on which two runs take turns: 1 is the session's, then those of the first are even."""
    begin(conn)
    write_down(conn, SESSION, a_title())
    for _ in range(3):
        write_down_of(conn, SESSION, a_run_id(1), a_piece())
        write_down_of(conn, SESSION, a_run_id(2), a_piece())
    return SESSION


def test_a_page_of_a_run_has_its_entries_only(conn: Connection) -> None:
    interleaved(conn)

    assert seqs(tape.page_of_run(conn, a_run_id(1), after_seq=0)) == [2, 4, 6]
    assert seqs(tape.page_of_run(conn, a_run_id(1), after_seq=3)) == [4, 6]
    assert seqs(tape.page_of_run(conn, a_run_id(1), after_seq=0, limit=2)) == [2, 4]
    assert seqs(tape.page_of_run(conn, a_run_id(3), after_seq=0)) == []


def test_a_page_of_a_run_keeps_the_limits_of_a_page(conn: Connection) -> None:
    begin(conn)
    write_down_of(conn, SESSION, a_run_id(), *[a_piece("x" * 100_000)] * 30)

    page = tape.page_of_run(conn, a_run_id(), after_seq=0)

    assert sum(len(entry.content) for entry in page) <= PAGE_BYTES
    assert seqs(page) == list(range(1, len(page) + 1))


def test_all_of_a_run_can_be_read_from_one_of_its_own_numbers_on(conn: Connection) -> None:
    interleaved(conn)

    assert [(entry.tape_seq, entry.run_seq) for entry in tape.of_run(conn, a_run_id(2))] == [(3, 1), (5, 2), (7, 3)]
    assert seqs(tape.of_run(conn, a_run_id(2), after_run_seq=1)) == [5, 7]
    assert tape.of_run(conn, a_run_id(2), after_run_seq=3) == []


def test_the_first_entry_of_a_run_is_the_one_it_began_with(conn: Connection) -> None:
    interleaved(conn)

    assert tape.first_of_run(conn, a_run_id(2)).tape_seq == 3


# -- positions


@pytest.mark.parametrize(("after_seq", "end"), [(0, 0), (0, 5), (5, 5)])
def test_a_position_on_the_tape_is_fine(after_seq: int, end: int) -> None:
    tape.check_position(after_seq, end)


@pytest.mark.parametrize(("after_seq", "end"), [(1, 0), (6, 5), (-1, 5), (2**63, 5)])
def test_a_position_beyond_the_tape_is_refused_by_name(after_seq: int, end: int) -> None:
    with pytest.raises(OffsetBeyondEnd, match=str(after_seq)):
        tape.check_position(after_seq, end)
