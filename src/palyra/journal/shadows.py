"""The shadow as rows: the candidate itself, and where it differs from what was in force, never more than so much.

There is one candidate at a time, and what a former one has found goes when the next one comes.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime

import msgspec

from palyra.core.clock import from_ms, to_ms
from palyra.core.shadow import Clause, Flip, PolicyFile, Shadow
from palyra.core.tool import Verdict
from palyra.journal.engine import Connection, Row

MOST_CLAUSES = 200
"""Beyond so many ways to differ, further ones are only counted by their verdicts."""
EXAMPLES = 5

_encode = msgspec.json.Encoder()
_files = msgspec.json.Decoder(tuple[PolicyFile, ...])
_flip = msgspec.json.Decoder(Flip)

_COLUMNS = (
    "shadow_id, hash, files, started_ms, started_by, stopped_ms, stopped_by, judged, failed, failure,"
    " (SELECT COALESCE(SUM(calls), 0) FROM shadow_clauses c WHERE c.shadow_id = shadows.shadow_id)"
)


def begin(conn: Connection, shadow: Shadow, files: Sequence[PolicyFile]) -> None:
    """Put a candidate in the place of the one before it."""
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


def latest(conn: Connection) -> tuple[Shadow, tuple[PolicyFile, ...]] | None:
    """Return the candidate that judges, or did last, and its files."""
    row = conn.fetch_one(f"SELECT {_COLUMNS} FROM shadows ORDER BY started_ms DESC, shadow_id DESC LIMIT 1")
    return _shadow(row) if row is not None else None


def standing(conn: Connection) -> str | None:
    """Return the id of the candidate that judges."""
    row = conn.fetch_one(
        "SELECT shadow_id FROM shadows WHERE stopped_ms IS NULL ORDER BY started_ms DESC, shadow_id DESC LIMIT 1"
    )
    return row[0] if row is not None else None


def end(conn: Connection, *, by: str, at_ms: int) -> None:
    """Let no candidate judge any more; what was found stays."""
    conn.execute(
        "UPDATE shadows SET stopped_ms = :at_ms, stopped_by = :by WHERE stopped_ms IS NULL", {"at_ms": at_ms, "by": by}
    )


def add(
    conn: Connection, shadow_id: str, flips: Sequence[Flip], *, judged: int, failed: int = 0, failure: str = ""
) -> bool:
    """Add what a candidate has judged; False, and nothing is added, if it does not judge any more."""
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


def clauses(conn: Connection, shadow_id: str) -> list[Clause]:
    """Return the ways in which a candidate differs, the most frequent first."""
    examples: dict[str, list[Flip]] = {}
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
        Clause(
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


def _count(conn: Connection, shadow_id: str, flip: Flip) -> None:
    was_by, would_by = flip.was_by, flip.would_by
    clause = _name_of(flip.was, was_by, flip.would, would_by)
    place = {"shadow_id": shadow_id, "clause": clause}
    if not _has_room(conn, shadow_id, clause):
        was_by = would_by = ()
        place["clause"] = clause = _name_of(flip.was, (), flip.would, ())
    at_ms = to_ms(flip.at)
    conn.execute(
        "INSERT INTO shadow_clauses (shadow_id, clause, was, was_by, would, would_by, calls, first_ms, last_ms)"
        " VALUES (:shadow_id, :clause, :was, :was_by, :would, :would_by, 1, :at_ms, :at_ms)"
        " ON CONFLICT (shadow_id, clause) DO UPDATE SET calls = shadow_clauses.calls + 1, last_ms = excluded.last_ms",
        {
            **place,
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
        {**place, "call_id": flip.call_id, "at_ms": at_ms, "example": _encode.encode(flip).decode()},
    )
    conn.execute(
        "DELETE FROM shadow_examples WHERE shadow_id = :shadow_id AND clause = :clause AND call_id NOT IN"
        " (SELECT call_id FROM shadow_examples WHERE shadow_id = :shadow_id AND clause = :clause"
        " ORDER BY at_ms DESC, call_id DESC LIMIT :kept)",
        {**place, "kept": EXAMPLES},
    )


def _has_room(conn: Connection, shadow_id: str, clause: str) -> bool:
    """Tell whether this way to differ is known, or may be added."""
    known, count = conn.fetch(
        "SELECT COALESCE(SUM(CASE WHEN clause = :clause THEN 1 ELSE 0 END), 0), COUNT(*) FROM shadow_clauses"
        " WHERE shadow_id = :shadow_id",
        {"shadow_id": shadow_id, "clause": clause},
    )[0]
    return bool(known) or count < MOST_CLAUSES


def _name_of(was: Verdict, was_by: tuple[str, ...], would: Verdict, would_by: tuple[str, ...]) -> str:
    return hashlib.sha256(_encode.encode((was, was_by, would, would_by))).hexdigest()[:32]


def _names(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def _shadow(row: Row) -> tuple[Shadow, tuple[PolicyFile, ...]]:
    files = _files.decode(row[2])
    shadow = Shadow(
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
