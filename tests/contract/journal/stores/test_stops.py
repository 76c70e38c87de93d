"""Stops as rows, and the runs that they find, on either engine."""

from palyra.core.ids import PrincipalId
from palyra.core.projection.changes import ActiveRunChanged
from palyra.core.stop import EmergencyStop
from palyra.journal.engines.base import Connection
from palyra.journal.stores import runs, sessions, stops
from tests.contract.journal.builders import BEN, a_run_id, a_run_row, a_session_id, accept, an_id, begin, later
from tests.support.builders import ANA


def a_stop(place: int, principal: PrincipalId | None = None, *, reason: str = "smoke") -> EmergencyStop:
    return EmergencyStop(stop_id=an_id(place), principal=principal, by=BEN, at=later(place), reason=reason)


def test_what_stands_is_read_back_the_first_one_first(conn: Connection) -> None:
    assert stops.in_force(conn) == ()
    assert not stops.is_stopped(conn, ANA)
    for stop in (a_stop(2, ANA), a_stop(1)):
        stops.insert(conn, stop)
    assert stops.in_force(conn) == (a_stop(1), a_stop(2, ANA))


def test_a_stop_of_one_holds_for_nobody_else(conn: Connection) -> None:
    stops.insert(conn, a_stop(1, ANA))
    assert stops.is_stopped(conn, ANA)
    assert not stops.is_stopped(conn, BEN)
    stops.insert(conn, a_stop(2))
    assert stops.is_stopped(conn, BEN)


def test_what_is_lifted_does_not_hold_and_is_remembered(conn: Connection) -> None:
    stops.insert(conn, a_stop(1))
    stops.insert(conn, a_stop(2, ANA))
    stops.lift(conn, [an_id(1)], by=ANA, at_ms=5)
    stops.lift(conn, [an_id(1)], by=BEN, at_ms=9)
    assert stops.in_force(conn) == (a_stop(2, ANA),)
    assert not stops.is_stopped(conn, BEN)
    assert conn.fetch("SELECT lifted_by, lifted_ms FROM stops WHERE lifted_ms IS NOT NULL") == [(ANA, 5)]


def test_active_runs_are_found_whosever_they_are_and_queued_ones_are_not(conn: Connection) -> None:
    for place, principal in ((1, ANA), (2, BEN), (3, ANA)):
        session_id = begin(conn, place)
        accept(conn, a_run_row(place, session_id, at=later(place)), principal=principal)
        if place < 3:
            accept(conn, a_run_row(place + 10, session_id), principal=principal, place=2, ready=False)
            sessions.touch(conn, session_id, at_ms=1, active=ActiveRunChanged(a_run_id(place)), messages=0)
    found = runs.active(conn)
    assert [(run.run_id, run.principal, run.cancel_requested) for run in found] == [
        (a_run_id(1), ANA, False),
        (a_run_id(2), BEN, False),
    ]
    assert runs.held(conn) == [(a_session_id(3), ANA)]


def test_runs_are_found_by_the_time_in_which_they_were_under_way(conn: Connection) -> None:
    session_id = begin(conn)
    for place in (1, 2, 3):
        accept(conn, a_run_row(place, session_id, at=later(place * 1000)))
    accept(conn, a_run_row(4, session_id, at=later(4000)), principal=BEN)
    start = later(0).timestamp() * 1000
    conn.execute(
        "UPDATE runs SET ended_ms = accepted_ms + 500 WHERE run_id = :run_id",
        {"run_id": a_run_id(1)},
    )
    around = {"since_ms": int(start) + 2000, "until_ms": int(start) + 2500, "limit": 10}
    assert runs.under_way(conn, ANA, **around) == [(a_run_id(2), session_id)]
