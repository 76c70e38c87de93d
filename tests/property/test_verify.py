"""Whatever single thing is changed in a journal, `verify` says so, and names the entry where the tape stops to hold.

A journal is built once on each engine; every example changes it inside a transaction that is rolled back. What nobody
can see without an anchor that was kept elsewhere is stated at the end, and that it is seen with one.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from palyra.core.events import Entry, RunEvent
from palyra.core.ids import SessionId
from palyra.journal.engines import postgres, sqlite
from palyra.journal.engines.base import Connection, Params, Row
from palyra.journal.engines.postgres import PostgresConnection
from palyra.journal.engines.sqlite import SqliteConnection
from palyra.journal.migrate import migrate
from palyra.journal.proof import anchors, journal_proof, untrusted_rows
from palyra.journal.proof.anchors import Anchor, AnchorBody
from palyra.journal.proof.signing_key import KeySigner
from palyra.journal.proof.tape_proof import ProofReport
from palyra.journal.stores import leases, meta
from palyra.journal.tape import GENESIS, entry_hash
from palyra.runs.recording.replay import replay
from palyra.runs.recording.run_writer import write_run
from palyra.runs.recording.session_writer import SessionWriter
from tests.contract.journal.builders import CountedIds, a_run_id, a_session, a_session_id, a_title
from tests.support.builders import a_result, a_tool_start, a_turn, a_verdict, an_accepted
from tests.support.postgres import drop_schema, new_schema

SIGNER = KeySigner(SigningKey(bytes(range(32))))
FORGER = KeySigner(SigningKey(bytes(range(1, 33))))
JOURNAL = "01JGKK8F5E000000000000000J"
SESSIONS = [a_session_id(place) for place in (1, 2, 3)]
TAPE = ("session_id", "tape_seq", "run_id", "run_seq", "kind", "at_ms", "content", "salt", "hash")
NUMBERS = frozenset({"tape_seq", "run_seq", "at_ms", "number"})

EXAMPLES = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
FEWER = settings(EXAMPLES, max_examples=25)


@dataclass(frozen=True)
class Journal:
    """A journal that holds, and what stands in it."""

    conn: Connection
    rows: tuple[Row, ...]
    """The tape, by session and sequence."""
    anchored: dict[SessionId, tuple[int, ...]]
    """Where each tape was anchored, in order."""
    anchors: tuple[Anchor, ...]

    def of(self, session_id: str) -> list[Row]:
        return [row for row in self.rows if row[0] == session_id]


def build(conn: Connection) -> None:
    """Have three sessions go through a run each, step by step, with anchors in between and some entries after them."""
    migrate(conn, now_ms=0)
    meta.put(conn, "journal_id", JOURNAL)
    meta.put(conn, "public_key", SIGNER.public_key)
    ids = CountedIds()
    steps: list[list[RunEvent]] = [
        a_turn(1, "c1"),
        [a_verdict("c1")],
        [a_tool_start("c1")],
        [a_result("c1")],
        a_turn(2),
    ]
    for place in (1, 2, 3):
        book = SessionWriter.create(conn, a_session(place), parent=None, ids=ids)
        assert book is not None
        book.accept(a_run_id(place), an_accepted())
        book.close()
    held = {lease.item_id: lease for lease in leases.claim(conn, leases.RUNS, owner="home:one", now_ms=0, limit=9)}
    left = {place: iter(steps) for place in (1, 2, 3)}
    for number, places in enumerate([(1, 2, 3), (1, 2), (1, 2, 3), (1, 3)]):
        for place in places:
            run_id = a_run_id(place)
            write_run(conn, replay(conn, run_id), next(left[place]), lease=held[run_id], ids=ids)
        anchors.write_anchor(conn, anchors.moved_tapes(conn), journal_id=JOURNAL, now_ms=1_000 * number, signer=SIGNER)
    for place in (1, 2):
        book = SessionWriter.open(conn, a_session_id(place), ids=ids)
        for _ in range(place):
            book.note(a_title())
        book.close()


def described(conn: Connection) -> Journal:
    rows = conn.fetch(f"SELECT {', '.join(TAPE)} FROM tape ORDER BY session_id, tape_seq")
    dropped = anchors_of(conn)
    anchored: dict[SessionId, tuple[int, ...]] = {}
    for anchor in dropped:
        for session_id, seq, _ in body_of(anchor).tapes:
            anchored[SessionId(session_id)] = (*anchored.get(SessionId(session_id), ()), seq)
    return Journal(conn, tuple(rows), anchored, tuple(dropped))


def anchors_of(conn: Connection) -> list[Anchor]:
    rows = conn.fetch("SELECT number, body, hash, signature FROM anchors ORDER BY number")
    return [
        Anchor(number=row[0], body=row[1], hash=row[2], signature=row[3][65:], public_key=row[3][:64]) for row in rows
    ]


def body_of(anchor: Anchor) -> AnchorBody:
    return msgspec.json.decode(anchor.body, type=AnchorBody)


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    path = tmp_path_factory.mktemp("verify") / "journal.sqlite"
    with closing(sqlite.open_for_writing(path)) as raw:
        conn = SqliteConnection(raw)
        with raw:
            build(conn)
            conn.flush()
        yield described(conn)


@pytest.fixture(scope="module")
def on_postgres(postgres_server: str) -> Iterator[Journal]:
    url = new_schema(postgres_server)
    with closing(postgres.connect(url)) as raw:
        conn = PostgresConnection(raw)
        with raw.transaction():
            build(conn)
        yield described(conn)
    drop_schema(url)


@pytest.fixture(autouse=True, scope="module")
def _small_slices() -> Iterator[None]:
    """Have every tape take several slices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(untrusted_rows, "SLICE", 4)
        yield


@contextmanager
def undone(conn: Connection) -> Iterator[None]:
    """Undo whatever the block changes."""
    conn.execute("BEGIN")
    try:
        yield
    finally:
        conn.execute("ROLLBACK")


def verified(conn: Connection, *, saved: Anchor | None = None, key: str | None = SIGNER.public_key) -> ProofReport:
    return journal_proof.verify(conn, saved=saved, key=key)


# -- the ways to change a journal
#
# Each makes one change, drawn from all there are of its kind, and returns the tapes that no longer hold, with the first
# entry that does not. Nothing in it means that no entry can be named: an anchor, a head or the index was changed.

Faults = dict[str, int]
Change = Callable[[Journal, st.DataObject], Faults]


def change_a_column(journal: Journal, data: st.DataObject) -> Faults:
    """Change the value in any column that does not say where the entry stands."""
    row = data.draw(st.sampled_from(journal.rows), label="entry")
    column = data.draw(st.sampled_from(TAPE[2:]), label="column")
    old = row[TAPE.index(column)]
    new = data.draw(number_beside(old) if column in NUMBERS else text_beside(old, column), label="value")
    update(journal.conn, column, new, row)
    return {row[0]: row[1]}


def flip_a_byte(journal: Journal, data: st.DataObject) -> Faults:
    """Flip one bit of a text, which may be no text any more. Only SQLite holds such."""
    row = data.draw(st.sampled_from(journal.rows), label="entry")
    column = data.draw(st.sampled_from([name for name in TAPE if name not in NUMBERS]), label="column")
    assume(row[TAPE.index(column)] is not None)
    raw = bytearray(row[TAPE.index(column)].encode())
    place = data.draw(st.integers(0, len(raw) - 1), label="byte")
    raw[place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    kind = data.draw(st.sampled_from(["TEXT", "BLOB"]), label="stored as")
    text = raw.decode(errors="replace")
    assume(column != "session_id" or text not in SESSIONS)
    update(journal.conn, column, bytes(raw), row, value_sql=f"CAST(:value AS {kind})")
    if column != "session_id":
        return {row[0]: row[1]}
    # What is no text can not be named; any other id is that of a session which has this entry only.
    named = kind == "TEXT" and text.encode() == bytes(raw)
    return moved_away(journal, row) | ({text: 1} if named else {})


def store_as_another_type(journal: Journal, data: st.DataObject) -> Faults:
    """Put something into a column that is not of its type. Only SQLite takes it."""
    row = data.draw(st.sampled_from(journal.rows), label="entry")
    column = data.draw(st.sampled_from(TAPE[1:]), label="column")
    old = row[TAPE.index(column)]
    strange = [b"", b"\xff\x00", 0.5, "x"] if column in NUMBERS else [b"", str(old).encode(), b"\xff\x00"]
    new = data.draw(st.sampled_from(strange), label="value")
    update(journal.conn, column, new, row)
    return {row[0]: 1 if column == "tape_seq" and new == 0.5 else row[1]}


def move_to_another_place(journal: Journal, data: st.DataObject) -> Faults:
    """Give an entry a sequence number that none has."""
    row = data.draw(st.sampled_from(journal.rows), label="entry")
    length = len(journal.of(row[0]))
    new = data.draw(st.integers(-3, 0) | st.integers(length + 1, length + 3), label="tape_seq")
    update(journal.conn, "tape_seq", new, row)
    return {row[0]: 1 if new < 1 else row[1]}


def move_to_another_session(journal: Journal, data: st.DataObject) -> Faults:
    """Give an entry to another session, or to one that does not exist."""
    row = data.draw(st.sampled_from(journal.rows), label="entry")
    other = data.draw(st.sampled_from([*SESSIONS, "", "0", a_session_id(9), "zzz", row[0].lower()]), label="session")
    length = len(journal.of(other))
    assume(other != row[0])
    assume(row[1] > length)
    update(journal.conn, "session_id", other, row)
    # Behind the end of the other tape, or in front of the first of one that has none.
    return moved_away(journal, row) | {other: 1 if length == 0 else length + 1}


def remove_an_entry(journal: Journal, data: st.DataObject) -> Faults:
    row = data.draw(st.sampled_from(journal.rows), label="entry")
    journal.conn.execute(f"DELETE FROM tape WHERE {PLACE}", place_of(row))
    return moved_away(journal, row)


def remove_several_entries(journal: Journal, data: st.DataObject) -> Faults:
    """Remove a stretch of one tape, perhaps all of it."""
    session_id = data.draw(st.sampled_from(SESSIONS), label="session")
    length = len(journal.of(session_id))
    first = data.draw(st.integers(1, length), label="first")
    last = data.draw(st.integers(first, length), label="last")
    journal.conn.execute(
        "DELETE FROM tape WHERE session_id = :session_id AND tape_seq BETWEEN :first AND :last",
        {"session_id": session_id, "first": first, "last": last},
    )
    return {session_id: first if last < length else max(1, first - 1)}


def forge_at_the_end(journal: Journal, data: st.DataObject) -> Faults:
    """Add an entry behind the last, whose own hash is wrong or right."""
    session_id = data.draw(st.sampled_from(SESSIONS), label="session")
    rows = journal.of(session_id)
    forge(journal.conn, rows[-1], seq=len(rows) + 1, data=data)
    return {session_id: len(rows) + 1}


def forge_in_between(journal: Journal, data: st.DataObject) -> Faults:
    """Push the rest of a tape one place on, and put an entry of one's own into the gap."""
    row = data.draw(st.sampled_from(journal.rows), label="after")
    rest = {"session_id": row[0], "seq": row[1], "far": 1_000_000}
    of_rest = "WHERE session_id = :session_id AND tape_seq > :seq"
    journal.conn.execute(f"UPDATE tape SET tape_seq = tape_seq + :far {of_rest}", rest)
    journal.conn.execute(f"UPDATE tape SET tape_seq = tape_seq - :far + 1 {of_rest}", rest)
    forge(journal.conn, row, seq=row[1] + 1, data=data)
    # With the right hash of its own it holds, unless an anchor knew another; the next one does not any more.
    rows = conn_rows(journal.conn, row[0])
    forged = rows[row[1]]
    holds = forged[8] == rehash(forged, before=row[8]) and forged[1] not in journal.anchored[SessionId(row[0])]
    return {row[0]: row[1] + 2 if holds and len(rows) > forged[1] else row[1] + 1}


def forge_a_session(journal: Journal, data: st.DataObject) -> Faults:
    """Add an entry to a session that has none."""
    session_id = data.draw(st.sampled_from([a_session_id(9), "", " ", "zzz"]), label="session")
    template = (session_id, 0, *journal.rows[0][2:8], GENESIS)
    forge(journal.conn, template, seq=1, data=data)
    return {session_id: 1}


def swap_what_two_entries_say(journal: Journal, data: st.DataObject) -> Faults:
    """Swap the contents of two entries, of one tape or of two, with or without all that belongs to them."""
    one, two = two_of(journal, data, journal.rows)
    columns = data.draw(
        st.sampled_from([("content",), ("content", "salt"), TAPE[2:], ("salt",), ("hash",), ("kind", "content")]),
        label="columns",
    )
    places = [TAPE.index(column) for column in columns]
    assume(any(one[place] != two[place] for place in places))
    for into, out_of in ((one, two), (two, one)):
        for column, place in zip(columns, places, strict=True):
            update(journal.conn, column, out_of[place], into)
    return earliest({one[0]: one[1]}, {two[0]: two[1]})


def swap_two_places(journal: Journal, data: st.DataObject) -> Faults:
    """Let two entries of a tape change places."""
    one, two = two_of(journal, data, journal.of(data.draw(st.sampled_from(SESSIONS), label="session")))
    far = (one[0], 1_000_000)
    update(journal.conn, "tape_seq", far[1], one)
    update(journal.conn, "tape_seq", one[1], two)
    update(journal.conn, "tape_seq", two[1], far)
    return {one[0]: min(one[1], two[1])}


def swap_two_tapes(journal: Journal, data: st.DataObject) -> Faults:
    """Let two sessions change their tapes, with all that says where those end."""
    one, two = data.draw(st.permutations(SESSIONS), label="sessions")[:2]
    for table in ("tape", "heads"):
        for old, new in ((one, "?"), (two, one), ("?", two)):
            journal.conn.execute(
                f"UPDATE {table} SET session_id = :new WHERE session_id = :old", {"old": old, "new": new}
            )
    return {one: 1, two: 1}


def move_letters_between_salt_and_content(journal: Journal, data: st.DataObject) -> Faults:
    """Make the salt longer and the content shorter, or the other way round: together they stay the same."""
    row = data.draw(st.sampled_from(journal.rows), label="entry")
    joined = row[7] + row[6]
    cut = data.draw(st.integers(0, len(joined)).filter(lambda cut: cut != len(row[7])), label="cut")
    update(journal.conn, "salt", joined[:cut], row)
    update(journal.conn, "content", joined[cut:], row)
    return {row[0]: row[1]}


def cut_off_the_end(journal: Journal, data: st.DataObject) -> Faults:
    """Cut a tape off before a place that an anchor knows, and make its head fit."""
    session_id = data.draw(st.sampled_from(SESSIONS), label="session")
    kept = data.draw(st.integers(0, journal.anchored[session_id][-1] - 1), label="kept")
    cut(journal, session_id, kept)
    return {session_id: max(1, kept)}


def remove_a_session(journal: Journal, data: st.DataObject) -> Faults:
    """Remove a tape and its head."""
    session_id = data.draw(st.sampled_from(SESSIONS), label="session")
    for table in ("tape", "heads"):
        journal.conn.execute(f"DELETE FROM {table} WHERE session_id = :session_id", {"session_id": session_id})
    return {session_id: 1}


def rewrite_what_was_anchored(journal: Journal, data: st.DataObject) -> Faults:
    """Change an entry, then make every hash after it and the head fit."""
    session_id = data.draw(st.sampled_from(SESSIONS), label="session")
    seq = data.draw(st.integers(1, journal.anchored[session_id][-1]), label="from")
    rewrite(journal, session_id, seq)
    # Only an anchor knows that it was different.
    return {session_id: next(known for known in journal.anchored[session_id] if known >= seq)}


def edit_a_head(journal: Journal, data: st.DataObject) -> Faults:
    """Change where a tape is said to end."""
    session_id = data.draw(st.sampled_from(SESSIONS), label="session")
    length = len(journal.of(session_id))
    change = data.draw(
        st.sampled_from(
            [
                "tape_seq = tape_seq + 1",
                "tape_seq = tape_seq - 1",
                "tape_seq = 0",
                "tape_seq = -1",
                f"hash = '{GENESIS}'",
                f"hash = '{journal.of(session_id)[0][8]}'",
                "hash = UPPER(hash)",
                "hash = hash || ' '",
                f"session_id = '{a_session_id(9)}'",
            ]
        ),
        label="change",
    )
    journal.conn.execute(f"UPDATE heads SET {change} WHERE session_id = :session_id", {"session_id": session_id})
    faults: Faults = {session_id: length}
    return faults | {a_session_id(9): 1} if change.startswith("session_id") else faults


def remove_or_add_a_head(journal: Journal, data: st.DataObject) -> Faults:
    if data.draw(st.booleans(), label="remove"):
        session_id = data.draw(st.sampled_from(SESSIONS), label="session")
        journal.conn.execute("DELETE FROM heads WHERE session_id = :session_id", {"session_id": session_id})
        return {session_id: len(journal.of(session_id))}
    seq, digest = data.draw(st.sampled_from([(1, GENESIS), (5, "x"), (-1, GENESIS), (0, "x")]), label="head")
    journal.conn.execute(
        "INSERT INTO heads (session_id, tape_seq, hash) VALUES (:session_id, :seq, :hash)",
        {"session_id": a_session_id(9), "seq": seq, "hash": digest},
    )
    return {a_session_id(9): 1}


def edit_an_anchor(journal: Journal, data: st.DataObject) -> Faults:
    """Change any column of any anchor."""
    anchor = data.draw(st.sampled_from(journal.anchors), label="anchor")
    column = data.draw(st.sampled_from(["number", "at_ms", "body", "hash", "signature"]), label="column")
    ((old,),) = journal.conn.fetch(f"SELECT {column} FROM anchors WHERE number = :number", {"number": anchor.number})
    if column == "number":
        new: object = data.draw(st.integers(-2, 0) | st.integers(len(journal.anchors) + 1, 99), label="value")
    else:
        new = data.draw(number_beside(old) if column in NUMBERS else text_beside(old, column), label="value")
    journal.conn.execute(
        f"UPDATE anchors SET {column} = :value WHERE number = :number", {"value": new, "number": anchor.number}
    )
    return {}


def edit_what_an_anchor_says(journal: Journal, data: st.DataObject) -> Faults:
    """Change one thing that an anchor says, and make its hash fit, and perhaps sign it with another key."""
    anchor = data.draw(st.sampled_from(journal.anchors), label="anchor")
    body = body_of(anchor)
    session_id, seq, digest = body.tapes[0]
    changed: dict[str, object] = data.draw(
        st.sampled_from(
            [
                {"journal_id": "another"},
                {"number": body.number + 1},
                {"at_ms": body.at_ms + 1},
                {"before": GENESIS if body.before != GENESIS else "1" * 64},
                {"tapes": body.tapes[1:]},
                {"tapes": (*body.tapes, (a_session_id(9), 1, GENESIS))},
                {"tapes": ((session_id, seq, GENESIS), *body.tapes[1:])},
                {"tapes": ((session_id, seq - 1, digest), *body.tapes[1:])},
            ]
        ),
        label="changed",
    )
    text = msgspec.json.encode(msgspec.structs.replace(body, **changed)).decode()
    put_anchor(journal.conn, anchor.number, text, signer=data.draw(st.sampled_from([None, FORGER]), label="signer"))
    return {}


def remove_an_anchor(journal: Journal, data: st.DataObject) -> Faults:
    first = data.draw(st.integers(1, len(journal.anchors)), label="first")
    last = data.draw(st.sampled_from([first, len(journal.anchors)]), label="last")
    journal.conn.execute("DELETE FROM anchors WHERE number BETWEEN :first AND :last", {"first": first, "last": last})
    return {}


def swap_two_anchors(journal: Journal, data: st.DataObject) -> Faults:
    """Let two anchors change places, as they are."""
    one = data.draw(st.integers(1, len(journal.anchors)), label="one")
    two = data.draw(st.integers(1, len(journal.anchors)).filter(lambda two: two != one), label="two")
    for old, new in ((one, 1_000), (two, one), (1_000, two)):
        journal.conn.execute("UPDATE anchors SET number = :new WHERE number = :old", {"old": old, "new": new})
    return {}


def forge_an_anchor(journal: Journal, data: st.DataObject) -> Faults:
    """Add an anchor of one's own: in its place at the end, or somewhere else."""
    last = journal.anchors[-1]
    number = data.draw(st.sampled_from([last.number + 1, 0, -1, last.number + 2]), label="number")
    text = msgspec.json.encode(
        AnchorBody(journal_id=JOURNAL, number=number, at_ms=0, before=last.hash, tapes=())
    ).decode()
    journal.conn.execute(
        "INSERT INTO anchors (number, at_ms, body, hash, signature) VALUES (:number, 0, '', '', '')",
        {"number": number},
    )
    put_anchor(journal.conn, number, text, signer=data.draw(st.sampled_from([None, FORGER]), label="signer"))
    return {}


def edit_the_index_of_anchors(journal: Journal, data: st.DataObject) -> Faults:
    statement = data.draw(
        st.sampled_from(
            [
                "DELETE FROM anchored",
                "DELETE FROM anchored WHERE session_id = :session_id",
                "UPDATE anchored SET tape_seq = tape_seq + 1 WHERE session_id = :session_id",
                "UPDATE anchored SET tape_seq = 0 WHERE session_id = :session_id",
                "UPDATE anchored SET session_id = 'x' WHERE session_id = :session_id",
                "INSERT INTO anchored (session_id, tape_seq) VALUES ('x', 1)",
            ]
        ),
        label="change",
    )
    session_id = data.draw(st.sampled_from(SESSIONS), label="session")
    journal.conn.execute(statement, {"session_id": session_id})
    return {}


def replace_the_key(journal: Journal, data: st.DataObject) -> Faults:
    """Put another key into the journal, and perhaps sign every anchor with it."""
    if data.draw(st.booleans(), label="in the journal"):
        meta.put(journal.conn, "public_key", FORGER.public_key)
        if data.draw(st.booleans(), label="alone"):
            return {}
    sign_anew(journal)
    return {}


def change_what_the_journal_is_called(journal: Journal, data: st.DataObject) -> Faults:
    meta.put(journal.conn, "journal_id", "another")
    return {}


CHANGES: tuple[Change, ...] = (
    change_a_column,
    flip_a_byte,
    store_as_another_type,
    move_to_another_place,
    move_to_another_session,
    remove_an_entry,
    remove_several_entries,
    forge_at_the_end,
    forge_in_between,
    forge_a_session,
    swap_what_two_entries_say,
    swap_two_places,
    swap_two_tapes,
    move_letters_between_salt_and_content,
    cut_off_the_end,
    remove_a_session,
    rewrite_what_was_anchored,
    edit_a_head,
    remove_or_add_a_head,
    edit_an_anchor,
    edit_what_an_anchor_says,
    remove_an_anchor,
    swap_two_anchors,
    forge_an_anchor,
    edit_the_index_of_anchors,
    replace_the_key,
    change_what_the_journal_is_called,
)
ON_EITHER = tuple(change for change in CHANGES if change not in (flip_a_byte, store_as_another_type))
"""PostgreSQL holds nothing in a column that is not of its type."""


# -- what they are made of

PLACE = "session_id = :old_session_id AND tape_seq = :old_tape_seq"


def place_of(row: Row) -> dict[str, object]:
    return {"old_session_id": row[0], "old_tape_seq": row[1]}


def update(conn: Connection, column: str, value: object, row: Row, *, value_sql: str = ":value") -> None:
    changed = conn.execute(f"UPDATE tape SET {column} = {value_sql} WHERE {PLACE}", {"value": value, **place_of(row)})
    assert changed == 1


def number_beside(old: int) -> st.SearchStrategy[int]:
    return st.sampled_from([old + 1, old - 1, -old - 1, old + 2**31, 0, 2**62]).filter(lambda new: new != old)


def text_beside(old: str | None, column: str) -> st.SearchStrategy[str | None]:
    """Return texts that differ from the old by little, or by much; a run may also be none."""
    if old is None:
        return st.sampled_from(["", "null", "None", a_run_id(1)])
    length = len(old)
    letter = st.sampled_from('a0A Z{"é\u0301日')
    near: st.SearchStrategy[str | None] = st.one_of(
        st.tuples(st.integers(0, length - 1), letter).map(lambda at: old[: at[0]] + at[1] + old[at[0] + 1 :]),
        st.tuples(st.integers(0, length), letter).map(lambda at: old[: at[0]] + at[1] + old[at[0] :]),
        st.integers(0, length - 1).map(lambda at: old[:at] + old[at + 1 :]),
        st.integers(0, length - 1).map(lambda at: old[:at] + old[at].swapcase() + old[at + 1 :]),
        st.sampled_from([old + "\n", " " + old, old.upper(), old.lower(), old[::-1], "", "0" * length]),
    )
    if column == "run_id":
        near = near | st.none() | st.sampled_from([a_run_id(1), a_run_id(2), "null"])
    return near.filter(lambda new: new != old)


def two_of(journal: Journal, data: st.DataObject, rows: "tuple[Row, ...] | list[Row]") -> tuple[Row, Row]:
    one = data.draw(st.sampled_from(rows), label="one")
    two = data.draw(st.sampled_from(rows).filter(lambda two: two[:2] != one[:2]), label="two")
    return one, two


def earliest(*faults: Faults) -> Faults:
    found: Faults = {}
    for fault in faults:
        for session_id, seq in fault.items():
            found[session_id] = min(seq, found.get(session_id, seq))
    return found


def moved_away(journal: Journal, row: Row) -> Faults:
    """Return where a tape stops to hold from which an entry was taken: behind the last, the one before it is named."""
    return {row[0]: row[1] if row[1] < len(journal.of(row[0])) else row[1] - 1}


def conn_rows(conn: Connection, session_id: str) -> list[Row]:
    return conn.fetch(
        f"SELECT {', '.join(TAPE)} FROM tape WHERE session_id = :session_id ORDER BY tape_seq",
        {"session_id": session_id},
    )


def rehash(row: Row, *, before: str) -> str:
    return entry_hash(before, Entry(*row[:7]), row[7])


def forge(conn: Connection, after: Row, *, seq: int, data: st.DataObject) -> None:
    """Write an entry of one's own behind another; its hash is right, or that of somebody else."""
    row = (after[0], seq, None, 0, "session_renamed", 0, '{"kind":"session_renamed"}', "0" * 32, "")
    own = data.draw(st.sampled_from([rehash(row, before=after[8]), after[8], GENESIS, ""]), label="hash")
    conn.execute(
        f"INSERT INTO tape ({', '.join(TAPE)}) VALUES ({', '.join(':' + name for name in TAPE)})",
        dict(zip(TAPE, (*row[:8], own), strict=True)),
    )


def cut(journal: Journal, session_id: str, kept: int) -> None:
    """Cut a tape off behind so many entries, and make its head fit."""
    digest = journal.of(session_id)[kept - 1][8] if kept else GENESIS
    params: Params = {"session_id": session_id, "kept": kept, "hash": digest}
    journal.conn.execute("DELETE FROM tape WHERE session_id = :session_id AND tape_seq > :kept", params)
    journal.conn.execute("UPDATE heads SET tape_seq = :kept, hash = :hash WHERE session_id = :session_id", params)


def rewrite(journal: Journal, session_id: str, seq: int) -> None:
    """Change an entry, then make every hash after it and the head fit."""
    rows = journal.of(session_id)
    update(journal.conn, "content", '{"kind":"session_renamed","title":"forged"}', rows[seq - 1])
    before = rows[seq - 2][8] if seq > 1 else GENESIS
    for row in conn_rows(journal.conn, session_id)[seq - 1 :]:
        before = rehash(row, before=before)
        update(journal.conn, "hash", before, row)
    journal.conn.execute(
        "UPDATE heads SET hash = :hash WHERE session_id = :session_id", {"session_id": session_id, "hash": before}
    )


def put_anchor(conn: Connection, number: int, text: str, *, signer: KeySigner | None) -> None:
    """Replace what an anchor says and its hash; its signature too, if there is somebody to sign."""
    params = {"number": number, "body": text, "hash": anchors.body_hash(text), "at_ms": _at_ms(text)}
    conn.execute("UPDATE anchors SET body = :body, hash = :hash, at_ms = :at_ms WHERE number = :number", params)
    if signer is not None:
        conn.execute(
            "UPDATE anchors SET signature = :signature WHERE number = :number",
            {"number": number, "signature": f"{signer.public_key}:{signer.sign(text.encode())}"},
        )


def _at_ms(text: str) -> int:
    return msgspec.json.decode(text, type=AnchorBody).at_ms


def sign_anew(journal: Journal) -> None:
    """Sign every anchor with another key."""
    for anchor in journal.anchors:
        put_anchor(journal.conn, anchor.number, anchor.body, signer=FORGER)


# -- every single change is seen


def seen(journal: Journal, change: Change, data: st.DataObject) -> None:
    with undone(journal.conn):
        faults = change(journal, data)
        report = verified(journal.conn)

    assert not report.ok
    named = {problem.session_id: problem.tape_seq for problem in report.problems if problem.session_id is not None}
    assert named == faults, report.problems
    if not faults:
        assert all(problem.what for problem in report.problems)


def test_a_journal_that_nobody_changed_holds(on_sqlite: Journal) -> None:
    report = verified(on_sqlite.conn)

    assert report.problems == ()
    assert (report.sessions, report.entries, report.anchors) == (3, len(on_sqlite.rows), 4)
    assert report.after_anchor == sum(
        len(on_sqlite.of(session_id)) - on_sqlite.anchored[session_id][-1] for session_id in SESSIONS
    )


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@EXAMPLES
@given(data=st.data())
def test_any_single_change_is_seen_and_named_on_sqlite(change: Change, on_sqlite: Journal, data: st.DataObject) -> None:
    seen(on_sqlite, change, data)


@pytest.mark.parametrize("change", ON_EITHER, ids=lambda change: change.__name__)
@FEWER
@given(data=st.data())
def test_any_single_change_is_seen_and_named_on_postgres(
    change: Change, on_postgres: Journal, data: st.DataObject
) -> None:
    seen(on_postgres, change, data)


# -- what only an anchor that was kept elsewhere can show


@pytest.fixture(params=["on_sqlite", "on_postgres"], ids=["sqlite", "postgres"])
def journal(request: pytest.FixtureRequest) -> Iterator[Journal]:
    """A journal on either engine; what a test changes in it is undone."""
    found: Journal = request.getfixturevalue(request.param)
    with undone(found.conn):
        yield found


def roll_back(journal: Journal, number: int) -> None:
    """Bring the whole journal back to where it was at an anchor, as an old copy of it would be."""
    conn = journal.conn
    stood: dict[str, int] = {}
    for anchor in journal.anchors[:number]:
        stood |= {session_id: seq for session_id, seq, _ in body_of(anchor).tapes}
    conn.execute("DELETE FROM anchors WHERE number > :number", {"number": number})
    for session_id in SESSIONS:
        cut(journal, session_id, stood[session_id])
        conn.execute(
            "UPDATE anchored SET tape_seq = :seq WHERE session_id = :session_id",
            {"session_id": session_id, "seq": stood[session_id]},
        )


def whats(report: ProofReport) -> str:
    return "; ".join(problem.what for problem in report.problems)


def test_a_saved_anchor_that_the_journal_has_is_fine(journal: Journal) -> None:
    for anchor in journal.anchors:
        assert verified(journal.conn, saved=anchor).ok


def test_what_no_anchor_covers_can_be_changed_unseen_and_the_report_says_how_much_that_is(journal: Journal) -> None:
    session_id = SESSIONS[1]
    covered, length = journal.anchored[session_id][-1], len(journal.of(session_id))
    before = verified(journal.conn)
    assert before.after_anchor >= length - covered > 0

    rewrite(journal, session_id, covered + 1)
    rewritten = verified(journal.conn, saved=journal.anchors[-1])
    cut(journal, session_id, covered)
    gone = verified(journal.conn, saved=journal.anchors[-1])

    assert rewritten == before
    assert gone.ok
    assert gone.after_anchor == before.after_anchor - (length - covered)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_journal_that_was_rolled_back_whole_is_shown_by_a_saved_anchor_only(journal: Journal, number: int) -> None:
    roll_back(journal, number)

    assert verified(journal.conn).ok
    for anchor in journal.anchors:
        report = verified(journal.conn, saved=anchor)
        assert report.ok is (anchor.number <= number)
        assert ("rolled back" in whats(report)) is (anchor.number > number)


def test_a_journal_whose_anchors_are_all_gone_is_shown_by_a_saved_anchor_only(journal: Journal) -> None:
    for table in ("anchors", "anchored"):
        journal.conn.execute(f"DELETE FROM {table}")

    assert verified(journal.conn).ok
    assert "rolled back" in whats(verified(journal.conn, saved=journal.anchors[0]))


def test_a_journal_written_anew_with_another_key_is_shown_by_a_saved_anchor_only(journal: Journal) -> None:
    # Whoever has the home has the key: nothing inside of it can prove anything then.
    for session_id in SESSIONS:
        rewrite(journal, session_id, 1)
    meta.put(journal.conn, "public_key", FORGER.public_key)
    for table in ("anchors", "anchored"):
        journal.conn.execute(f"DELETE FROM {table}")
    anchors.write_anchor(journal.conn, anchors.moved_tapes(journal.conn), journal_id=JOURNAL, now_ms=0, signer=FORGER)

    assert verified(journal.conn, key=FORGER.public_key).ok
    assert verified(journal.conn, key=None).ok
    assert not verified(journal.conn, key=SIGNER.public_key).ok
    saved = verified(journal.conn, key=FORGER.public_key, saved=journal.anchors[-1])
    assert "not signed by this journal's key" in whats(saved)


def test_a_journal_written_anew_with_the_same_key_is_shown_by_a_saved_anchor_only(journal: Journal) -> None:
    for session_id in SESSIONS:
        rewrite(journal, session_id, 1)
    for table in ("anchors", "anchored"):
        journal.conn.execute(f"DELETE FROM {table}")
    for _ in range(5):
        tapes = anchors.ends_of(journal.conn, SESSIONS)
        anchors.write_anchor(journal.conn, tapes, journal_id=JOURNAL, now_ms=0, signer=SIGNER)

    assert verified(journal.conn).ok
    assert "rewritten" in whats(verified(journal.conn, saved=journal.anchors[1]))


def test_a_tape_that_was_cut_off_and_has_grown_and_was_anchored_again_is_seen(journal: Journal) -> None:
    # A daemon that goes on after the change anchors what it finds: the earlier anchor still knows better.
    session_id = SESSIONS[0]
    known = journal.anchored[session_id][-1]
    cut(journal, session_id, known - 1)
    book = SessionWriter.open(journal.conn, session_id, ids=CountedIds(2_000_000))
    book.note(a_title("forged"))
    book.close()
    tapes = anchors.ends_of(journal.conn, [session_id])
    anchors.write_anchor(journal.conn, tapes, journal_id=JOURNAL, now_ms=9_000, signer=SIGNER)

    report = verified(journal.conn)

    assert [(problem.session_id, problem.tape_seq) for problem in report.problems] == [(session_id, known)]


@pytest.mark.parametrize("change", ["body", "signature", "public_key"])
def test_a_saved_anchor_that_was_changed_itself_proves_nothing(journal: Journal, change: str) -> None:
    saved = journal.anchors[-1]
    roll_back(journal, 1)
    text = {"body": saved.body.replace("1", "2"), "signature": "00" * 64, "public_key": FORGER.public_key}[change]
    saved = msgspec.structs.replace(saved, **{change: text})

    assert "not signed by this journal's key" in whats(verified(journal.conn, saved=saved))


def test_without_the_key_of_the_home_that_of_the_journal_counts(journal: Journal) -> None:
    assert verified(journal.conn, key=None).ok
    sign_anew(journal)
    assert not verified(journal.conn, key=None).ok
