"""Runs are claimed in turn: by principals with few runs under way first, and with slots that nobody else can take."""

from collections.abc import Sequence

from palyra.core.ids import PrincipalId, RunId
from palyra.journal.engines.base import Connection
from palyra.journal.stores import leases, runs
from palyra.journal.stores.leases import LENGTH_MS, RUNS
from tests.contract.journal.builders import a_run_id, a_run_row, a_session_id, accept, later
from tests.support.builders import AGENT

ONE = "01234567:one"
NOW = 1_000_000
ANA, BEN, CID = (PrincipalId(f"user:{name}") for name in ("ana", "ben", "cid"))


def waiting(conn: Connection, *whose: PrincipalId) -> None:
    """Accept one run for each, in this order."""
    for place, principal in enumerate(whose):
        accept(conn, a_run_row(place, a_session_id(place), at=later(place)), principal=principal)


def claimed(
    conn: Connection, *, limit: int, own: int = 0, owner: str = ONE, now_ms: int = NOW, count: int = 20
) -> Sequence[int]:
    """Claim runs and return which they are, by the order in which they were accepted."""
    numbers = {a_run_id(place): place for place in range(count)}
    taken = leases.claim(conn, RUNS, owner=owner, now_ms=now_ms, limit=limit, own=own)
    return [numbers[RunId(lease.item_id)] for lease in taken]


def test_runs_are_taken_in_turn_by_principal(conn: Connection) -> None:
    waiting(conn, ANA, ANA, ANA, ANA, BEN, BEN, CID)

    assert claimed(conn, limit=3) == [0, 4, 6]
    assert claimed(conn, limit=2) == [1, 5]
    assert claimed(conn, limit=9) == [2, 3]


def test_the_principal_with_the_fewest_running_is_next(conn: Connection) -> None:
    waiting(conn, ANA, ANA)
    assert claimed(conn, limit=2) == [0, 1]
    for place, principal in ((2, ANA), (3, BEN), (4, BEN)):
        accept(conn, a_run_row(place, a_session_id(place), at=later(place)), principal=principal)

    assert claimed(conn, limit=2) == [3, 4]
    assert claimed(conn, limit=1) == [2]


def test_what_another_worker_holds_does_not_count(conn: Connection) -> None:
    waiting(conn, ANA, ANA, BEN)
    assert claimed(conn, limit=1, owner="01234567:two") == [0]

    assert claimed(conn, limit=1) == [1]


def test_what_a_lease_ran_out_on_waits_again(conn: Connection) -> None:
    waiting(conn, ANA, ANA, BEN)
    assert claimed(conn, limit=1) == [0]

    assert claimed(conn, limit=1, now_ms=NOW + LENGTH_MS) == [0]


def test_each_principal_has_slots_beyond_the_limit(conn: Connection) -> None:
    waiting(conn, *[ANA] * 4, *[BEN] * 3, CID)

    assert claimed(conn, limit=0, own=2) == [0, 1, 4, 5, 7]
    assert claimed(conn, limit=0, own=2) == []
    assert claimed(conn, limit=1, own=2) == [2]


def test_open_runs_of_a_principal_are_counted_up_to_a_limit(conn: Connection) -> None:
    waiting(conn, ANA, ANA, ANA, BEN)

    assert [runs.open_of_principal(conn, who, limit=2) for who in (ANA, BEN, CID)] == [2, 1, 0]
    assert runs.open_of_agent(conn, AGENT, BEN)
    assert not runs.open_of_agent(conn, AGENT, CID)
