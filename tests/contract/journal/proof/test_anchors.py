"""Anchors: signed, chained, and of every tape that has moved."""

import asyncio

import msgspec
import pytest
from nacl.signing import SigningKey

from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.proof import anchors
from palyra.journal.proof.anchors import GENESIS, Anchor, AnchorBody, MovedTape
from palyra.journal.proof.signing_key import KeySigner, is_signed
from palyra.journal.stores import meta
from tests.contract.journal.builders import a_session_id, a_title, begin, write_down

SIGNER = KeySigner(SigningKey(bytes(range(32))))
JOURNAL = "01JGKK8F5E000000000000000J"


@pytest.fixture(autouse=True)
def _small_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "MAX_TAPES", 5)


def moved(conn: Connection, *places: int) -> None:
    """Append an entry to each tape, begun if need be."""
    for place in places:
        if tape.lock(conn, a_session_id(place)) is None:
            begin(conn, place)
        write_down(conn, a_session_id(place), a_title())


def drop(conn: Connection, *, now_ms: int = 1_000) -> Anchor:
    """Anchor whatever has moved."""
    meta.set_once(conn, "journal_id", JOURNAL)
    return anchors.write_anchor(conn, anchors.moved_tapes(conn), journal_id=JOURNAL, now_ms=now_ms, signer=SIGNER)


def body(anchor: Anchor) -> AnchorBody:
    return msgspec.json.decode(anchor.body, type=AnchorBody)


def places(tapes: list[MovedTape]) -> list[str]:
    return sorted(tape.session_id for tape in tapes)


def test_a_tape_has_moved_until_it_is_anchored(conn: Connection) -> None:
    assert anchors.moved_tapes(conn) == []
    moved(conn, 1, 2)
    assert places(anchors.moved_tapes(conn)) == [a_session_id(1), a_session_id(2)]

    drop(conn)
    assert anchors.moved_tapes(conn) == []
    moved(conn, 2)

    (tape_2,) = anchors.moved_tapes(conn)
    head = tape.lock(conn, a_session_id(2))
    assert head is not None
    assert tape_2 == MovedTape(a_session_id(2), 2, head.hash)


def test_a_tape_without_entries_has_not_moved(conn: Connection) -> None:
    begin(conn)

    assert anchors.moved_tapes(conn) == []


def test_many_tapes_are_anchored_in_parts(conn: Connection) -> None:
    moved(conn, *range(12))

    parts = [len(body(drop(conn)).tapes) for _ in range(3)]

    assert parts == [5, 5, 2]
    assert anchors.moved_tapes(conn) == []


def test_the_ends_of_tapes_are_those_of_now(conn: Connection) -> None:
    moved(conn, 1, 1, 2)

    ends = anchors.ends_of(conn, [a_session_id(place) for place in (1, 2, 3)])

    assert [(end.session_id, end.tape_seq) for end in ends] == [(a_session_id(1), 2), (a_session_id(2), 1)]


def test_an_anchor_says_where_each_tape_stood(conn: Connection) -> None:
    moved(conn, 1, 1)
    head = tape.lock(conn, a_session_id(1))
    assert head is not None

    anchor = drop(conn, now_ms=1_234)

    assert body(anchor) == AnchorBody(
        journal_id=JOURNAL, number=1, at_ms=1_234, before=GENESIS, tapes=((a_session_id(1), 2, head.hash),)
    )


def test_an_anchor_is_signed_byte_for_byte(conn: Connection) -> None:
    moved(conn, 1)
    anchor = drop(conn)

    assert anchor.public_key == SIGNER.public_key
    assert is_signed(anchor.public_key, anchor.body.encode(), anchor.signature)
    assert not is_signed(anchor.public_key, anchor.body.encode() + b" ", anchor.signature)


def test_each_anchor_names_the_one_before_it(conn: Connection) -> None:
    dropped = []
    for _ in range(3):
        moved(conn, 1)
        dropped.append(drop(conn))

    assert [anchor.number for anchor in dropped] == [1, 2, 3]
    assert [body(anchor).before for anchor in dropped] == [GENESIS, dropped[0].hash, dropped[1].hash]
    assert [anchor.hash for anchor in dropped] == [anchors.body_hash(anchor.body) for anchor in dropped]


def test_an_anchor_comes_back_as_it_was_dropped(conn: Connection) -> None:
    assert anchors.latest(conn) is None
    assert anchors.after(conn, 0, limit=10) == []
    dropped = []
    for _ in range(4):
        moved(conn, 1)
        dropped.append(drop(conn))

    assert anchors.latest(conn) == dropped[-1]
    assert anchors.after(conn, 1, limit=2) == dropped[1:3]
    assert anchors.after(conn, 4, limit=2) == []


def test_an_anchor_survives_being_printed_and_read(conn: Connection) -> None:
    moved(conn, 1)
    anchor = drop(conn)

    assert msgspec.json.decode(msgspec.json.encode(anchor), type=Anchor) == anchor


async def test_anchors_that_are_dropped_at_once_are_still_one_chain(engine: Engine) -> None:
    await engine.write(lambda conn: meta.set_once(conn, "journal_id", JOURNAL))
    await engine.write(lambda conn: moved(conn, *range(8)))

    def unit(conn: Connection, place: int) -> Anchor:
        tapes = anchors.ends_of(conn, [a_session_id(place)])
        return anchors.write_anchor(conn, tapes, journal_id=JOURNAL, now_ms=1, signer=SIGNER)

    await asyncio.gather(*(engine.write(lambda conn, place=place: unit(conn, place)) for place in range(8)))  # type: ignore[misc]

    chain = await engine.read(lambda conn: anchors.after(conn, 0, limit=100))
    assert [anchor.number for anchor in chain] == list(range(1, 9))
    assert [body(anchor).before for anchor in chain] == [GENESIS, *(anchor.hash for anchor in chain[:-1])]
    assert await engine.read(anchors.moved_tapes) == []
