"""Attestations as they stand on the tapes, one by one, each with whether it holds; in a journal or in an export."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from palyra.core.attestation import Attestation
from palyra.core.errors import NotFound
from palyra.core.events import ChildEnded, Entry, ToolFinished
from palyra.core.ids import CallId, RunId
from palyra.journal import artifacts, meta, runs, tape
from palyra.journal.attested import CallWalk, Counts
from palyra.journal.engine import Connection
from palyra.journal.exported import entries_in

ENDS = ("tool_finished", "child_ended")


class NotAttested(NotFound):
    """There is no attested execution of that id here. If its session was moved to the archive, name that file."""


@dataclass(frozen=True, slots=True)
class Found:
    """An attestation, where it stands, and what is wrong with it."""

    entry: Entry
    call_id: CallId
    attestation: Attestation
    problem: str | None


def find(conn: Connection, wanted: str | None, *, key: str | None, now_ms: int) -> list[Found]:
    """Return the attestations of a run, or that of a call; without an id those of the run that was accepted last.

    `key` must have signed them, the journal's if none is named. A call is looked for on every tape, since nobody needs
    its id often enough to pay for an index.
    """
    wanted = wanted or _known(runs.latest(conn, now_ms=now_ms))
    run_id = _run_of(conn, wanted)
    entries = tape.of_run(conn, run_id) if run_id is not None else []
    walk = CallWalk(
        Counts(), key=key or meta.get(conn, "public_key"), whole_of=lambda named: artifacts.whole(conn, named)
    )
    return _chosen(_looked_at(entries, walk), wanted)


def find_in(path: Path, wanted: str | None) -> list[Found]:
    """Return the same of an export, whose own key must have signed them."""
    if wanted is None:
        with entries_in(path) as (_, entries):
            # The tapes stand one after the other there, so the last entry need not be the latest.
            accepted = ((entry.at_ms, entry.run_id or "") for entry in entries if entry.kind == "run_accepted")
            wanted = _known(max(accepted, default=(0, None))[1])
    with entries_in(path) as (header, entries):
        # Where it begins after an anchor, the beginnings of some calls are not in it.
        walk = CallWalk(Counts(), key=header.public_key, from_start=header.since is None)
        return _chosen(_looked_at(entries, walk), wanted)


def _looked_at(entries: Iterable[Entry], walk: CallWalk) -> Iterator[Found]:
    for entry in entries:
        problem = walk.take(entry)
        if entry.kind not in ENDS:
            continue
        try:
            event = entry.event
        except msgspec.DecodeError:
            continue
        if isinstance(event, ToolFinished | ChildEnded) and event.attestation is not None:
            yield Found(entry, event.call_id, event.attestation, problem)


def _chosen(found: Iterable[Found], wanted: str) -> list[Found]:
    chosen = [one for one in found if wanted in (one.entry.run_id, one.call_id)]
    if not chosen:
        raise NotAttested(
            f"There is no attested execution of {wanted} here. If its session was moved to the archive, name its"
            " file with --file."
        )
    return chosen


def _known(run_id: str | None) -> str:
    if run_id is None:
        raise NotAttested("There is no run here yet, so nothing is attested. `palyra chat` begins one.")
    return run_id


def _run_of(conn: Connection, wanted: str) -> RunId | None:
    for condition in ("run_id = :wanted", "kind = 'tool_started' AND content LIKE :part"):
        row = conn.fetch_one(
            f"SELECT run_id FROM tape WHERE {condition} LIMIT 1",
            {"wanted": wanted} if "wanted" in condition else {"part": f'%"call_id":"{wanted}"%'},
        )
        if row is not None:
            return RunId(row[0])
    return None
