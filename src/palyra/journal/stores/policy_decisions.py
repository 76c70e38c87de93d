"""Policy decisions about calls, read from the tapes."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from palyra.core.events import decode
from palyra.core.ids import LENGTH, AgentId, PrincipalId, RunId, SessionId
from palyra.core.run.decided_calls import DecidedCall, decided_calls
from palyra.journal.engines.base import Connection, Row

PAGE_RUNS = 200


def decided(conn: Connection, *, since_ms: int = 0) -> Iterator[DecidedCall]:
    """Yield the calls of every run that was accepted since then, the latest run first.

    Tapes that were moved to the archive are not read.
    """
    # Ids sort by time, and none sorts after this one.
    before = "Z" * (LENGTH + 1)
    while True:
        rows = conn.fetch(
            "SELECT run_id, session_id, principal, agent_id FROM runs"
            " WHERE run_id < :before AND accepted_ms >= :since_ms ORDER BY run_id DESC LIMIT :limit",
            {"before": before, "since_ms": since_ms, "limit": PAGE_RUNS},
        )
        if not rows:
            return
        yield from _calls(conn, rows)
        before = rows[-1][0]


def _calls(conn: Connection, runs: Sequence[Row]) -> Iterator[DecidedCall]:
    names = {f"r{index}": row[0] for index, row in enumerate(runs)}
    listed = ", ".join(f":{name}" for name in names)
    rows = conn.fetch(
        f"SELECT run_id, kind, content FROM tape WHERE run_id IN ({listed})"
        " AND kind IN ('run_accepted', 'input_steered', 'tool_proposed', 'policy_decided')"
        " ORDER BY run_id DESC, tape_seq",
        names,
    )
    of_run = {row[0]: row for row in runs}
    for run_id, matching_rows in groupby(rows, key=lambda row: row[0]):
        entries = list(matching_rows)
        if all(kind != "policy_decided" for _, kind, _ in entries):
            # Texts may be long, and no decision was made about them.
            continue
        _, session_id, principal, agent_id = of_run[run_id]
        for proposed, event, channels in decided_calls(decode(content) for _, _, content in entries):
            yield DecidedCall(
                principal=PrincipalId(principal),
                agent_id=AgentId(agent_id),
                session_id=SessionId(session_id),
                run_id=RunId(run_id),
                proposed=proposed,
                decided=event,
                channels=channels,
            )
