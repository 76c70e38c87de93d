"""The shadow policy as rows: the candidate itself, and a limited number of differences from the policy in force.

There is one candidate at a time; the results of the previous one are deleted when the next one starts.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime

import msgspec

from palyra.core.clock import from_ms, to_ms
from palyra.core.policy.policy_shadow import DecisionDifference, DifferenceGroup, PolicyFile, ShadowPolicy
from palyra.core.tool import Verdict
from palyra.journal.engines.base import Connection, Row

MAX_CLAUSES = 200
"""Beyond so many kinds of difference, further ones are only counted by their verdicts."""
EXAMPLES = 5

_encode = msgspec.json.Encoder()
_files = msgspec.json.Decoder(tuple[PolicyFile, ...])
_flip = msgspec.json.Decoder(DecisionDifference)

_COLUMNS = (
    "shadow_id, hash, files, started_ms, started_by, stopped_ms, stopped_by, judged, failed, failure,"
    " (SELECT COALESCE(SUM(calls), 0) FROM shadow_clauses c WHERE c.shadow_id = shadows.shadow_id)"
)


def begin(conn: Connection, shadow: ShadowPolicy, files: Sequence[PolicyFile]) -> None:
    """Store a candidate; it replaces the previous one."""
    for table in ("shadow_examples", "shadow_clauses", "shadows"):
        conn.execute(f"DELETE FROM {table}")
    conn.execute(
        "INSERT INTO shadows (shadow_id, hash, files, started_ms, started_by)"
        " VALUES (:shadow_id, :hash, :files, :started_ms, :started_by)",
        {
            "shadow_id": shadow.shadow_id,
            "hash": shadow.hash,
            "files": _encode.encode(files).decode(),
            "started_ms": to_ms(shadow.started_at),
            "started_by": shadow.started_by,
        },
    )


def latest(conn: Connection) -> tuple[ShadowPolicy, tuple[PolicyFile, ...]] | None:
    """Return the active candidate, or the last one, and its files."""
    row = conn.fetch_one(f"SELECT {_COLUMNS} FROM shadows ORDER BY started_ms DESC, shadow_id DESC LIMIT 1")
    return _shadow(row) if row is not None else None


def current_id(conn: Connection) -> str | None:
    """Return the id of the active candidate."""
    row = conn.fetch_one(
        "SELECT shadow_id FROM shadows WHERE stopped_ms IS NULL ORDER BY started_ms DESC, shadow_id DESC LIMIT 1"
    )
    return row[0] if row is not None else None


def end(conn: Connection, *, by: str, at_ms: int) -> None:
    """Stop the active candidate; its results stay."""
    conn.execute(
        "UPDATE shadows SET stopped_ms = :at_ms, stopped_by = :by WHERE stopped_ms IS NULL", {"at_ms": at_ms, "by": by}
    )


def add(
    conn: Connection,
    shadow_id: str,
    flips: Sequence[DecisionDifference],
    *,
    judged: int,
    failed: int = 0,
    failure: str = "",
) -> bool:
    """Add results of a candidate; return False and add nothing if it is no longer active."""
    changed = conn.execute(
        "UPDATE shadows SET judged = judged + :judged, failed = failed + :failed,"
        " failure = CASE WHEN :failure = '' THEN failure ELSE :failure END"
        " WHERE shadow_id = :shadow_id AND stopped_ms IS NULL",
        {"shadow_id": shadow_id, "judged": judged, "failed": failed, "failure": failure},
    )
    if not changed:
        return False
    for flip in flips:
        _count(conn, shadow_id, flip)
    return True


def clauses(conn: Connection, shadow_id: str) -> list[DifferenceGroup]:
    """Return the kinds of difference of a candidate, the most frequent first."""
    examples: dict[str, list[DecisionDifference]] = {}
    for clause, example in conn.fetch(
        "SELECT clause, example FROM shadow_examples WHERE shadow_id = :shadow_id ORDER BY at_ms DESC, call_id DESC",
        {"shadow_id": shadow_id},
    ):
        examples.setdefault(clause, []).append(_flip.decode(example))
    rows = conn.fetch(
        "SELECT clause, was, was_by, would, would_by, calls, first_ms, last_ms FROM shadow_clauses"
        " WHERE shadow_id = :shadow_id ORDER BY calls DESC, clause",
        {"shadow_id": shadow_id},
    )
    return [
        DifferenceGroup(
            was=Verdict(row[1]),
            was_by=_names(row[2]),
            would=Verdict(row[3]),
            would_by=_names(row[4]),
            calls=row[5],
            first_at=from_ms(row[6]),
            last_at=from_ms(row[7]),
            examples=tuple(examples.get(row[0], ())),
        )
        for row in rows
    ]


def _count(conn: Connection, shadow_id: str, flip: DecisionDifference) -> None:
    was_by, would_by = flip.was_by, flip.would_by
    clause = _name_of(flip.was, was_by, flip.would, would_by)
    position = {"shadow_id": shadow_id, "clause": clause}
    if not _has_room(conn, shadow_id, clause):
        was_by = would_by = ()
        position["clause"] = clause = _name_of(flip.was, (), flip.would, ())
    at_ms = to_ms(flip.at)
    conn.execute(
        "INSERT INTO shadow_clauses (shadow_id, clause, was, was_by, would, would_by, calls, first_ms, last_ms)"
        " VALUES (:shadow_id, :clause, :was, :was_by, :would, :would_by, 1, :at_ms, :at_ms)"
        " ON CONFLICT (shadow_id, clause) DO UPDATE SET calls = shadow_clauses.calls + 1, last_ms = excluded.last_ms",
        {
            **position,
            "was": flip.was.value,
            "was_by": _encode.encode(was_by).decode(),
            "would": flip.would.value,
            "would_by": _encode.encode(would_by).decode(),
            "at_ms": at_ms,
        },
    )
    conn.execute(
        "INSERT INTO shadow_examples (shadow_id, clause, call_id, at_ms, example)"
        " VALUES (:shadow_id, :clause, :call_id, :at_ms, :example) ON CONFLICT (shadow_id, clause, call_id) DO NOTHING",
        {**position, "call_id": flip.call_id, "at_ms": at_ms, "example": _encode.encode(flip).decode()},
    )
    conn.execute(
        "DELETE FROM shadow_examples WHERE shadow_id = :shadow_id AND clause = :clause AND call_id NOT IN"
        " (SELECT call_id FROM shadow_examples WHERE shadow_id = :shadow_id AND clause = :clause"
        " ORDER BY at_ms DESC, call_id DESC LIMIT :kept)",
        {**position, "kept": EXAMPLES},
    )


def _has_room(conn: Connection, shadow_id: str, clause: str) -> bool:
    """Return whether this kind of difference is known, or may be added."""
    cached, count = conn.fetch(
        "SELECT COALESCE(SUM(CASE WHEN clause = :clause THEN 1 ELSE 0 END), 0), COUNT(*) FROM shadow_clauses"
        " WHERE shadow_id = :shadow_id",
        {"shadow_id": shadow_id, "clause": clause},
    )[0]
    return bool(cached) or count < MAX_CLAUSES


def _name_of(was: Verdict, was_by: tuple[str, ...], would: Verdict, would_by: tuple[str, ...]) -> str:
    return hashlib.sha256(_encode.encode((was, was_by, would, would_by))).hexdigest()[:32]


def _names(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def _shadow(row: Row) -> tuple[ShadowPolicy, tuple[PolicyFile, ...]]:
    files = _files.decode(row[2])
    shadow = ShadowPolicy(
        shadow_id=row[0],
        hash=row[1],
        files=tuple(file.name for file in files),
        started_at=from_ms(row[3]),
        started_by=row[4],
        stopped_at=_time(row[5]),
        stopped_by=row[6],
        judged=row[7],
        failed=row[8],
        failure=row[9],
        flipped=int(row[10]),
    )
    return shadow, files


def _time(at_ms: int | None) -> datetime | None:
    return from_ms(at_ms) if at_ms is not None else None
