"""Finds attestations on the tapes of a journal or in an export, and checks each of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from palyra.core.attestation import Attestation
from palyra.core.errors import NotFound
from palyra.core.events import ChildEnded, Entry, ToolFinished
from palyra.core.ids import CallId, RunId
from palyra.journal import tape
from palyra.journal.content import artifacts
from palyra.journal.engines.base import Connection
from palyra.journal.proof.attestation_proof import AttestationCounts, AttestationVerifier
from palyra.journal.proof.export_proof import entries_in
from palyra.journal.stores import meta, runs

ENDS = ("tool_finished", "child_ended")


class AttestationNotFound(NotFound):
    """There is no attested execution with this id here. If its session was moved to the archive, name that file."""


@dataclass(frozen=True, slots=True)
class FoundAttestation:
    """An attestation, its position, and what is wrong with it."""

    entry: Entry
    call_id: CallId
    attestation: Attestation
    problem: str | None


def find(conn: Connection, requested: str | None, *, key: str | None, now_ms: int) -> list[FoundAttestation]:
    """Return the attestations of a run, or that of a call; without an id those of the run that was accepted last.

    `key` must have signed them, the journal's if none is named. A call is searched on every tape, since this is too
    rare to justify an index.
    """
    requested = requested or _known(runs.latest(conn, now_ms=now_ms))
    run_id = _run_of(conn, requested)
    entries = tape.of_run(conn, run_id) if run_id is not None else []
    walk = AttestationVerifier(
        AttestationCounts(),
        key=key or meta.get(conn, "public_key"),
        whole_of=lambda named: artifacts.read_all(conn, named),
    )
    return _chosen(_checked(entries, walk), requested)


def find_in(path: Path, requested: str | None) -> list[FoundAttestation]:
    """Return the same from an export, whose own key must have signed them."""
    if requested is None:
        with entries_in(path) as (_, entries):
            # The tapes follow one another in the file, so the last entry need not be the latest.
            accepted = ((entry.at_ms, entry.run_id or "") for entry in entries if entry.kind == "run_accepted")
            requested = _known(max(accepted, default=(0, None))[1])
    with entries_in(path) as (header, entries):
        # If it begins after an anchor, the starts of some calls are not in it.
        walk = AttestationVerifier(AttestationCounts(), key=header.public_key, from_start=header.since is None)
        return _chosen(_checked(entries, walk), requested)


def _checked(entries: Iterable[Entry], walk: AttestationVerifier) -> Iterator[FoundAttestation]:
    for entry in entries:
        problem = walk.take(entry)
        if entry.kind not in ENDS:
            continue
        try:
            event = entry.event
        except msgspec.DecodeError:
            continue
        if isinstance(event, ToolFinished | ChildEnded) and event.attestation is not None:
            yield FoundAttestation(entry, event.call_id, event.attestation, problem)


def _chosen(found_attestations: Iterable[FoundAttestation], requested: str) -> list[FoundAttestation]:
    chosen = [one for one in found_attestations if requested in (one.entry.run_id, one.call_id)]
    if not chosen:
        raise AttestationNotFound(
            f"There is no attested execution {requested} here. If its session was moved to the archive, "
            "name its file with --file."
        )
    return chosen


def _known(run_id: str | None) -> str:
    if run_id is None:
        raise AttestationNotFound("There is no run here yet, so nothing is attested. `palyra chat` starts one.")
    return run_id


def _run_of(conn: Connection, requested: str) -> RunId | None:
    for condition in ("run_id = :wanted", "kind = 'tool_started' AND content LIKE :part"):
        row = conn.fetch_one(
            f"SELECT run_id FROM tape WHERE {condition} LIMIT 1",
            {"wanted": requested} if "wanted" in condition else {"part": f'%"call_id":"{requested}"%'},
        )
        if row is not None:
            return RunId(row[0])
    return None
