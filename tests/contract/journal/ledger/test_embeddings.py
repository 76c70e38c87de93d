"""Calls for embeddings in the ledger: they follow from the tape, and who waits for each is known."""

import pytest

from palyra.core.ids import RunId, SessionId
from palyra.core.projection.ledger import Account
from palyra.core.session_events import EmbeddingsOutcome
from palyra.core.spending.usage_report import UsageGrouping
from palyra.journal.engines.base import Connection
from palyra.journal.ledger import accounts, embeddings, turns
from palyra.journal.stores.leases import LENGTH_MS
from palyra.runs.recording.session_writer import SessionWriter
from palyra.runs.services import embeddings as calls
from tests.contract.journal.archive.test_rotation import rotate
from tests.contract.journal.builders import BEN, CountedIds, a_run_id, a_session, a_session_id
from tests.contract.journal.homes import KeptHome
from tests.contract.journal.ledger.test_turns import problems, rebuilt
from tests.support.builders import ANA, AT, embeddings_ended, embeddings_started

AT_MS = int(AT.timestamp() * 1000)
DAY = Account("everything", f"{AT:%Y-%m-%d}")
IDS = CountedIds()


def begin(conn: Connection, session_id: SessionId, request: RunId, *, owner: str = "home:1") -> None:
    book = SessionWriter.open(conn, session_id, ids=IDS)
    calls.begin(conn, book, embeddings_started(request), owner=owner)


def end(
    conn: Connection, session_id: SessionId, request: RunId, came: EmbeddingsOutcome = EmbeddingsOutcome.ANSWERED
) -> bool:
    return calls.end(SessionWriter.open(conn, session_id, ids=IDS), embeddings_ended(came, request))


def a_tape(conn: Connection, place: int = 1) -> SessionId:
    book = SessionWriter.create(conn, a_session(place), parent=None, ids=IDS)
    assert book is not None
    book.close()
    return a_session_id(place)


@pytest.fixture
def kept(fresh_home: KeptHome) -> KeptHome:
    """A session with a call that was answered, one that was lost, and one that is open; and an account of the day."""
    kept = fresh_home.begin()
    session_id = kept.session(1)
    kept.write(lambda conn: accounts.lock_balances(conn, [DAY], at=AT, new_run=None))
    for place in (1, 2, 3):
        kept.write(lambda conn, place=place: begin(conn, session_id, a_run_id(place)))  # type: ignore[misc]
    kept.write(lambda conn: end(conn, session_id, a_run_id(1)))
    kept.write(lambda conn: end(conn, session_id, a_run_id(2), EmbeddingsOutcome.LOST))
    kept.anchor()
    return kept


def test_the_rows_are_what_the_tape_says(kept: KeptHome) -> None:
    assert problems(kept) == []
    assert rebuilt(kept).differed == 0
    amount = kept.write(lambda conn: accounts.read_balances(conn, [DAY], at=AT))[DAY]
    assert amount == (40, 80, 20, 40)
    with kept.reading() as conn:
        (row,) = turns.sum_by(conn, UsageGrouping.MODEL, ANA, since_ms=0, limit=9)
        assert (row.name, row.used.turns, row.used.discarded, row.used.reserved_micros) == ("acme/vectors-1", 3, 1, 40)
        (cause,) = turns.causes(conn, ANA, since_ms=0)
        assert (cause.cause, cause.step) == ("embeddings", "texts")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE usage SET micros = 0 WHERE state = 'settled'", "do not match its tape"),
        ("UPDATE usage SET state = 'settled' WHERE state = 'reserved'", "do not match its tape"),
        ("UPDATE usage SET principal = 'user:ben'", "do not match its tape"),
        ("UPDATE usage SET cause = 'http'", "which does not exist"),
        ("DELETE FROM usage", "do not match its tape"),
        (
            "INSERT INTO usage SELECT 'x', 'x', turn, session_id, root_session_id, principal, agent_id, provider,"
            " model, task, cause, step, at_ms, state, reserved_input, reserved_output, reserved_micros, input_tokens,"
            " output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, micros, estimated, lease_owner,"
            " lease_until_ms FROM usage WHERE state = 'settled'",
            "the ledger entries of run x do not match its tape",
        ),
        ("UPDATE usage SET session_id = 'another' WHERE state = 'settled'", "which does not exist"),
        ("UPDATE spending SET reserved_micros = 0", "is not the sum of its turns"),
        ("DELETE FROM budget_warnings", "the row for the warning of budget daily is missing"),
    ],
)
def test_a_row_that_was_changed_is_found_and_set_right(kept: KeptHome, change: str, said: str) -> None:
    kept.let_go()
    kept.change(change)
    assert any(said in what for what in problems(kept)), problems(kept)
    rebuilt(kept)
    assert problems(kept) == []
    amount = kept.write(lambda conn: accounts.read_balances(conn, [DAY], at=AT))[DAY]
    assert amount == (40, 80, 20, 40)
    # An open one that a rebuild brought back belongs to nobody, so that whoever starts next settles it.
    if change == "DELETE FROM usage":
        with kept.reading() as conn:
            left = embeddings.abandoned(conn, now_ms=0, limit=9)
            assert left == [(a_session_id(1), a_run_id(3))]


def test_what_was_spent_outlives_its_tape_which_goes_only_when_no_call_on_it_is_open(kept: KeptHome) -> None:
    kept.archive(a_session_id(1))
    kept.anchor()
    kept.let_go()
    rotate(kept)
    assert kept.rows("SELECT COUNT(*) FROM rotated") == [(0,)]
    kept.write(lambda conn: end(conn, a_session_id(1), a_run_id(3)))
    kept.anchor()
    kept.let_go()
    rotate(kept)
    assert kept.rows("SELECT COUNT(*) FROM rotated") == [(1,)]
    assert kept.rows("SELECT COUNT(*) FROM usage") == [(3,)]
    assert problems(kept) == []
    assert rebuilt(kept).used == 0


# -- who waits


def test_a_call_is_left_behind_when_nobody_has_said_for_long_that_it_is_waited_for(conn: Connection) -> None:
    session_id = a_tape(conn)
    for place, owner in ((1, "home:1"), (2, "other:1"), (3, "home:1")):
        begin(conn, session_id, a_run_id(place), owner=owner)
    assert embeddings.abandoned(conn, now_ms=AT_MS + LENGTH_MS - 1, limit=9) == []
    embeddings.renew(conn, [a_run_id(1), a_run_id(2)], owner="home:1", now_ms=AT_MS + LENGTH_MS)
    late = AT_MS + 2 * LENGTH_MS - 1
    left = [request for _, request in embeddings.abandoned(conn, now_ms=late, limit=9)]
    assert left == [a_run_id(2), a_run_id(3)]
    assert not embeddings.is_abandoned(conn, a_run_id(1), now_ms=late)
    assert embeddings.is_abandoned(conn, a_run_id(2), now_ms=late)
    assert embeddings.release_dead_owners(conn, home="home") == 2
    left = [request for _, request in embeddings.abandoned(conn, now_ms=AT_MS, limit=9)]
    assert left == [a_run_id(1), a_run_id(3)]


def test_a_call_ends_once(conn: Connection) -> None:
    session_id = a_tape(conn)
    begin(conn, session_id, a_run_id(1))
    assert end(conn, session_id, a_run_id(1), EmbeddingsOutcome.LOST)
    assert not end(conn, session_id, a_run_id(1))
    found = embeddings.find(conn, a_run_id(1), ANA)
    assert found is not None
    assert found.state == "discarded"
    assert embeddings.abandoned(conn, now_ms=2**60, limit=9) == []


def test_a_call_is_found_by_its_owner_only(conn: Connection) -> None:
    begin(conn, a_tape(conn), a_run_id(1))
    assert embeddings.find(conn, a_run_id(1), ANA) is not None
    assert embeddings.find(conn, a_run_id(1), None) is not None
    assert embeddings.find(conn, a_run_id(1), BEN) is None
    assert embeddings.find(conn, a_run_id(2), ANA) is None
