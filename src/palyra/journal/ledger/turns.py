"""The ledger: the usage of each model turn, from its reservation on. A projection of the tape."""

from collections.abc import Sequence

from msgspec import structs

from palyra.core.clock import from_ms
from palyra.core.ids import PrincipalId
from palyra.core.projection.ledger import RESERVED, Amount, LedgerTurn, turn_amount
from palyra.core.spending.usage import Usage
from palyra.core.spending.usage_report import UsageCause, UsageGroup, UsageGrouping, UsageTotal
from palyra.journal.engines.base import Connection, Row
from palyra.journal.ledger import accounts

FIRST_SCHEMA = 19
"""The first schema whose rows have these states; earlier ones are compared once they are migrated."""

_COLUMNS = ", ".join(LedgerTurn.__struct_fields__)
_SUMS = ", ".join(
    # PostgreSQL returns a sum of integers as another type.
    f"CAST(COALESCE(SUM({what}), 0) AS BIGINT)"
    for what in (
        "1",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "COALESCE(micros, 0)",
        "CASE WHEN micros IS NULL AND state <> 'reserved' AND input_tokens + output_tokens > 0 THEN 1 ELSE 0 END",
        "estimated",
        "CASE WHEN state = 'discarded' THEN 1 ELSE 0 END",
        "CASE WHEN state = 'reserved' THEN reserved_input + reserved_output ELSE 0 END",
        "CASE WHEN state = 'reserved' THEN COALESCE(reserved_micros, 0) ELSE 0 END",
    )
)
_GROUPS = {
    UsageGrouping.MODEL: "provider || '/' || model",
    UsageGrouping.SESSION: "root_session_id",
    UsageGrouping.DAY: "at_ms / 86400000",
    UsageGrouping.AGENT: "agent_id",
    UsageGrouping.RUN: "root_run_id",
    UsageGrouping.PRINCIPAL: "principal",
}
DAY_MS = 86_400_000
_INSERT = f"INSERT INTO usage ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in LedgerTurn.__struct_fields__)})"
_FIRST = LedgerTurn.__struct_fields__[: LedgerTurn.__struct_fields__.index("input_tokens")]
_BEGIN = f"INSERT INTO usage ({', '.join(_FIRST)}) VALUES ({', '.join(f':{name}' for name in _FIRST)})"
"""The usage is not known yet."""
_SETTLE = (
    "UPDATE usage SET state = :outcome, input_tokens = :input_tokens, output_tokens = :output_tokens,"
    " cached_tokens = :cached_tokens, cache_write_tokens = :cache_write_tokens, reasoning_tokens = :reasoning_tokens,"
    " micros = :micros, estimated = :estimated WHERE root_run_id = :root_run_id AND run_id = :run_id AND turn = :turn"
    " AND state = 'reserved'"
)


def begin(conn: Connection, turn: LedgerTurn) -> None:
    """Record a turn that begins, and what is reserved for it."""
    # The row first: it makes this unit visible to units that add up the rows (see `accounts`).
    conn.execute(_BEGIN, structs.asdict(turn))
    if accounts.are_open(conn):
        accounts.add_to_accounts(conn, turn, turn_amount(turn))


def settle(
    conn: Connection, root_run_id: str, run_id: str, turn: int, *, outcome: str, usage: Usage, micros: int | None
) -> bool:
    """Replace the reservation of a turn by its usage; False if no such turn was open."""
    changed = conn.execute(
        _SETTLE,
        {
            "outcome": outcome,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "micros": micros,
            "estimated": int(usage.estimated),
            "root_run_id": root_run_id,
            "run_id": run_id,
            "turn": turn,
        },
    )
    # A turn that began before there was a ledger has no row.
    if changed and accounts.are_open(conn):
        after = next(one for one in of_run(conn, root_run_id, run_id, turn=turn))
        accounts.add_to_accounts(conn, after, turn_amount(after).less(_before(after)))
    return changed > 0


def _before(turn: LedgerTurn) -> Amount:
    return turn_amount(structs.replace(turn, state=RESERVED))


def of_run(conn: Connection, root_run_id: str, run_id: str, *, turn: int | None = None) -> list[LedgerTurn]:
    """Return the turns of a run, or one of them, in order."""
    one = " AND turn = :turn" if turn is not None else ""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM usage WHERE root_run_id = :root_run_id AND run_id = :run_id{one} ORDER BY turn",
        {"root_run_id": root_run_id, "run_id": run_id} | ({"turn": turn} if turn is not None else {}),
    )
    return [turn_of(row) for row in rows]


def of_embeddings(conn: Connection, session_id: str) -> list[LedgerTurn]:
    """Return the calls for embeddings on the tape of a session."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM usage WHERE session_id = :session_id AND cause = 'embeddings' ORDER BY run_id",
        {"session_id": session_id},
    )
    return [turn_of(row) for row in rows]


def total(conn: Connection, principal: PrincipalId | None, *, since_ms: int) -> UsageTotal:
    """Add up the usage of a principal, or of all, since a time."""
    where, params = _since(principal, since_ms)
    row = conn.fetch_one(f"SELECT {_SUMS} FROM usage WHERE {where}", params)
    assert row is not None
    return _used(row)


def sum_by(
    conn: Connection, by: UsageGrouping, principal: PrincipalId | None, *, since_ms: int, limit: int
) -> list[UsageGroup]:
    """Add up the usage in groups; the most costly first, and days with the latest first."""
    where, params = _since(principal, since_ms)
    order = "1 DESC" if by is UsageGrouping.DAY else "8 DESC, 3 DESC, 1"
    rows = conn.fetch(
        f"SELECT {_GROUPS[by]}, {_SUMS} FROM usage WHERE {where} GROUP BY {_GROUPS[by]} ORDER BY {order} LIMIT :limit",
        params | {"limit": limit},
    )
    return [UsageGroup(name=_day(row[0]) if by is UsageGrouping.DAY else row[0], used=_used(row[1:])) for row in rows]


def causes(
    conn: Connection, principal: PrincipalId | None, *, since_ms: int, root_run_id: str | None = None
) -> list[UsageCause]:
    """Add up the usage by the causes of turns, in all runs or in one run and its children; the most costly first."""
    where, params = _since(principal, since_ms)
    if root_run_id is not None:
        where += " AND root_run_id = :root_run_id"
        params["root_run_id"] = root_run_id
    rows = conn.fetch(
        f"SELECT cause, step, {_SUMS} FROM usage WHERE {where} GROUP BY cause, step ORDER BY 9 DESC, 4 DESC, 1, 2",
        params,
    )
    return [UsageCause(cause=row[0], step=row[1], used=_used(row[2:])) for row in rows]


def of_root(conn: Connection, root_run_id: str, principal: PrincipalId | None, *, limit: int) -> list[LedgerTurn]:
    """Return the turns of a run and of all its children, in the order in which they began."""
    where, params = _since(principal, 0)
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM usage WHERE root_run_id = :root_run_id AND {where}"
        " ORDER BY at_ms, run_id, turn LIMIT :limit",
        params | {"root_run_id": root_run_id, "limit": limit},
    )
    return [turn_of(row) for row in rows]


def used_in(turn: LedgerTurn) -> UsageTotal:
    """Return the usage of one turn."""
    held = turn.state == RESERVED
    return UsageTotal(
        turns=1,
        input_tokens=turn.input_tokens,
        output_tokens=turn.output_tokens,
        cached_tokens=turn.cached_tokens,
        cache_write_tokens=turn.cache_write_tokens,
        reasoning_tokens=turn.reasoning_tokens,
        micros=turn.micros or 0,
        unpriced=int(turn.micros is None and not held and turn.input_tokens + turn.output_tokens > 0),
        estimated=turn.estimated,
        discarded=int(turn.state == "discarded"),
        reserved_tokens=turn.reserved_input + turn.reserved_output if held else 0,
        reserved_micros=(turn.reserved_micros or 0) if held else 0,
    )


def _since(principal: PrincipalId | None, since_ms: int) -> tuple[str, dict[str, object]]:
    params: dict[str, object] = {"since_ms": since_ms}
    if principal is None:
        return "at_ms >= :since_ms", params
    return "principal = :principal AND at_ms >= :since_ms", params | {"principal": principal}


def _used(row: Row) -> UsageTotal:
    return UsageTotal(**dict(zip(UsageTotal.__struct_fields__, row, strict=True)))


def _day(number: int) -> str:
    return f"{from_ms(number * DAY_MS):%Y-%m-%d}"


def remove(conn: Connection, root_run_id: str, run_id: str) -> None:
    """Delete the turns of a run, for a rebuild."""
    conn.execute(
        "DELETE FROM usage WHERE root_run_id = :root_run_id AND run_id = :run_id",
        {"root_run_id": root_run_id, "run_id": run_id},
    )


def put(conn: Connection, turns: Sequence[LedgerTurn]) -> None:
    """Write turns unchanged, for a rebuild."""
    conn.execute_many(_INSERT, [structs.asdict(turn) for turn in turns])


def turn_of(row: Row) -> LedgerTurn:
    """Convert a row to a turn."""
    return LedgerTurn(**dict(zip(LedgerTurn.__struct_fields__, row, strict=True)))
