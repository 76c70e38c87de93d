"""The ledger: what each model turn took, from its reservation on. A projection of the tape."""

from collections.abc import Sequence

from msgspec import structs

from palyra.core.run import RunState
from palyra.core.spending import RESERVED, Amount, Turn, weight
from palyra.core.usage import Usage
from palyra.journal import spending
from palyra.journal.engine import Connection, Row

FIRST_SCHEMA = 12
"""Since when there are rows."""

_COLUMNS = ", ".join(Turn.__struct_fields__)
_INSERT = f"INSERT INTO usage ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in Turn.__struct_fields__)})"


def begin(conn: Connection, turn: Turn) -> None:
    """Write down a turn that begins, and what is set aside for it."""
    # The row first: it makes this unit known to whoever adds the rows up (`spending.opened`).
    conn.execute(_INSERT, structs.asdict(turn))
    spending.move(conn, turn, weight(turn))


def settle(conn: Connection, state: RunState, turn: int, *, outcome: str, usage: Usage, micros: int | None) -> None:
    """Write down what a turn took that is over, in place of what was set aside for it."""
    row = conn.fetch_one(
        "UPDATE usage SET state = :outcome, input_tokens = :input_tokens, output_tokens = :output_tokens,"
        " cached_tokens = :cached_tokens, cache_write_tokens = :cache_write_tokens,"
        " reasoning_tokens = :reasoning_tokens, micros = :micros, estimated = :estimated"
        " WHERE root_run_id = :root_run_id AND run_id = :run_id AND turn = :turn AND state = :reserved"
        f" RETURNING {_COLUMNS}",
        {
            "outcome": outcome,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "micros": micros,
            "estimated": int(usage.estimated),
            "root_run_id": state.root_run_id,
            "run_id": state.run_id,
            "turn": turn,
            "reserved": RESERVED,
        },
    )
    # A turn that began before there were rows has none.
    if row is not None:
        after = turn_of(row)
        spending.move(conn, after, weight(after).less(_before(after)))


def _before(turn: Turn) -> Amount:
    return weight(structs.replace(turn, state=RESERVED))


def of_run(conn: Connection, root_run_id: str, run_id: str) -> list[Turn]:
    """Return the turns of a run, in order."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM usage WHERE root_run_id = :root_run_id AND run_id = :run_id ORDER BY turn",
        {"root_run_id": root_run_id, "run_id": run_id},
    )
    return [turn_of(row) for row in rows]


def remove(conn: Connection, root_run_id: str, run_id: str) -> None:
    """Forget the turns of a run, for a rebuild."""
    conn.execute(
        "DELETE FROM usage WHERE root_run_id = :root_run_id AND run_id = :run_id",
        {"root_run_id": root_run_id, "run_id": run_id},
    )


def put(conn: Connection, turns: Sequence[Turn]) -> None:
    """Write turns as they stand, for a rebuild."""
    conn.execute_many(_INSERT, [structs.asdict(turn) for turn in turns])


def turn_of(row: Row) -> Turn:
    """Return a row as a turn."""
    return Turn(**dict(zip(Turn.__struct_fields__, row, strict=True)))
