"""`palyra journal`: proof that no entry was changed. Works without a daemon, and beside one."""

import sys
from pathlib import Path

import click
import msgspec

from palyra.cli.errors import describe
from palyra.cli.exit_codes import Exit
from palyra.cli.journal.attestations import show_attestations
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.short_ids import find_by_suffix, is_id_suffix
from palyra.cli.terminal.output import counts, date_time, facts, plural, say, show_json
from palyra.cli.terminal.printable import printable_line
from palyra.core.clock import to_ms
from palyra.core.errors import NotFound, PalyraError
from palyra.core.ids import SessionId, parse_ulid
from palyra.home import Home
from palyra.journal import offline, stats
from palyra.journal.atomic_file import atomic_file, explain_write_errors
from palyra.journal.engines.base import Connection
from palyra.journal.projection import rebuild, replay_check
from palyra.journal.projection.rebuild import RebuildReport
from palyra.journal.proof import anchors, export, export_proof, journal_proof
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.tape_proof import ProofProblem, ProofReport
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stats import Stats
from palyra.journal.stores import sessions
from palyra.settings import Settings


class AnchorMissing(NotFound):
    """The journal has no anchor yet. The daemon writes one shortly after new entries."""


class JournalEmpty(NotFound):
    """The journal has no sessions yet. Start one with `palyra chat`."""


@click.group(cls=PalyraGroup)
def journal() -> None:
    """Verify, export and repair the journal. Works with or without a running daemon."""


journal.add_command(show_attestations)


@journal.command("verify")
@click.option(
    "--anchor",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An anchor saved earlier, to detect whether the journal was rolled back since.",
)
@click.option(
    "--file",
    "export_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="EXPORT",
    help="Verify an export instead of the journal.",
)
@click.option("--deep", is_flag=True, help="Also check the database file, the archive and the projections.")
def verify_journal(invocation: Invocation, *, anchor: Path | None, export_file: Path | None, deep: bool) -> Exit:
    """Verify every tape: that no entry was altered, removed, inserted or moved.

    \b
    Exit codes: 0 verified, 1 verification failed, 2 the journal cannot be read.
    """
    if export_file is not None and deep:
        raise click.UsageError("--deep and --file cannot be used together: --deep checks a journal, --file an export.")
    try:
        saved = anchors.read_anchor(anchor.read_bytes()) if anchor is not None else None
        if export_file is not None:
            return _verify_file(invocation, export_file, saved)
        if deep:
            return _verify_deep(invocation, saved)
        report = replay_check.verify_with_archive(invocation.home, invocation.settings, saved=saved)
    except PalyraError as error:
        say(f"palyra: {describe(error)}")
        return Exit.BAD_INPUT
    except Exception as error:
        # A damaged file makes the database fail in many ways, and all of them mean the same here.
        say(f"palyra: The journal cannot be read: {printable_line(str(error))}. Restore a backup. [journal_damaged]")
        return Exit.BAD_INPUT
    if not invocation.printed_json(_fields_of(report)):
        _print_report(report, "journal")
    return Exit.DONE if report.ok else Exit.FAILED


@journal.command("anchor")
def print_anchor(invocation: Invocation) -> None:
    """Print the journal's latest anchor. Store it on another machine, to check later with `verify --anchor`."""
    anchor = journal_proof.latest_anchor(invocation.home, invocation.settings)
    if anchor is None:
        raise AnchorMissing
    show_json(anchor)


@journal.command("export")
@click.option(
    "--session",
    metavar="SESSION",
    help="Export only one session: its id or last six characters, or `last`.",
)
@click.option(
    "--since",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="ANCHOR",
    help="Export only entries after this anchor (from `palyra journal anchor`).",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to a file instead of stdout."
)
def export_journal(invocation: Invocation, *, session: str | None, since: Path | None, output: Path | None) -> None:
    """Export the tapes as JSON lines. Verify the export with `palyra journal verify --file EXPORT`."""
    from palyra.daemon.process.system_clock import SystemClock

    anchor = anchors.read_anchor(since.read_bytes()) if since is not None else None
    made_at = SystemClock().now()
    with open_snapshot(invocation.home, invocation.settings) as conn:
        session_id = _session_id(conn, session, now_ms=to_ms(made_at)) if session is not None else None
        if output is None:
            with explain_write_errors(Path("the output")):
                export.write(conn, sys.stdout.buffer.write, made_at=made_at, session_id=session_id, since=anchor)
                sys.stdout.buffer.flush()
            return
        with atomic_file(output) as file:
            footer = export.write(conn, file.write, made_at=made_at, session_id=session_id, since=anchor)
    if not invocation.printed_json({"file": str(output), **_without_tag(footer)}):
        print(
            f"Exported {plural(footer.sessions, 'session')}, {plural(footer.entries, 'entry')} to"
            f" {printable_line(str(output))}."
        )
        print("Verify it on any machine with `palyra journal verify --file`.")


def _session_id(conn: Connection, name: str, *, now_ms: int) -> SessionId:
    if name == "last":
        if (session_id := sessions.latest(conn, now_ms=now_ms)) is None:
            raise JournalEmpty
        return session_id
    if is_id_suffix(name):
        name = find_by_suffix(name, sessions.ending_in(conn, name.upper()))
    return SessionId(parse_ulid(name, "session id"))


@journal.command("stats")
def show_stats(invocation: Invocation) -> None:
    """Show the size of the journal and what it contains."""
    with open_snapshot(invocation.home, invocation.settings) as conn:
        matching_stats = stats.gather(conn, invocation.home)
    invocation.report(matching_stats, _table(matching_stats))


@journal.command("rebuild")
def rebuild_journal(invocation: Invocation) -> Exit:
    """Rebuild the projections from the tapes: messages, search index, totals of sessions and runs, approvals, grants.

    The daemon must be stopped. Only rows that are wrong are changed. A grant that was missing or wrong is revoked.

    \b
    Exit codes: 0 done, 1 a tape cannot be replayed.
    """
    from palyra.daemon.process.system_clock import SystemClock

    settings = invocation.settings
    now_ms = to_ms(SystemClock().now())
    with open_snapshot(invocation.home, settings):
        pass  # Locking a home creates it; one without a journal must not be created here.
    with offline.hold_home(invocation.home), offline.open_writer(invocation.home, settings) as units:
        done = rebuild.rebuild(units, folder=invocation.home.path, now_ms=now_ms)
    if not invocation.printed_json({**msgspec.to_builtins(done), "differed": done.differed}):
        _print_rebuild(done)
    return Exit.FAILED if done.problems else Exit.DONE


def walk(home: Home, settings: Settings, *, saved: bytes | None = None) -> ProofReport:
    """Verify a home's journal; `saved` is an anchor that was stored elsewhere."""
    anchor = anchors.read_anchor(saved) if saved is not None else None
    return replay_check.verify_with_archive(home, settings, saved=anchor)


def proof_counts(report: ProofReport) -> str:
    """Return how much was verified, as text."""
    return ", ".join(
        [plural(report.sessions, "session"), plural(report.entries, "entry"), plural(report.anchors, "anchor")]
    )


def _verify_file(invocation: Invocation, path: Path, saved: Anchor | None) -> Exit:
    proof = export_proof.verify_file(path, saved=saved)
    header, report = proof.header, proof.report
    if not invocation.printed_json({**_fields_of(report), "header": _without_tag(header)}):
        _print_report(report, "export")
        if report.ok:
            signed = f"signed by key {printable_line(header.public_key or '')}" if report.anchors else "not signed yet"
            print(f"Created {date_time(header.made_at)}, {signed}.")
    return Exit.DONE if report.ok else Exit.FAILED


def _verify_deep(invocation: Invocation, saved: Anchor | None) -> Exit:
    examined = replay_check.examine(invocation.home, invocation.settings, saved=saved)
    parts = {"file": examined.file, "rows": examined.rows, "archive": examined.archive}
    if invocation.json:
        fields = {name: [_fields(problem) for problem in problems] for name, problems in parts.items()}
        show_json({**_fields_of(examined.report), "ok": examined.ok, "deep": fields})
        return Exit.DONE if examined.ok else Exit.FAILED
    _print_report(examined.report, "journal")
    for name, problems in parts.items():
        if problems:
            more = f" ({plural(len(problems), 'problem')}; list them with --json)" if len(problems) > 1 else ""
            print(
                f"{_DEEP[name][0]}: {_location(problems[0])}{printable_line(problems[0].what)}{more}. {_DEEP[name][1]}"
            )
    if examined.ok:
        print("The database file, the archive and the projections are correct.")
    elif not examined.report.ok:
        print("The projections were not checked, because the tapes failed verification.")
    return Exit.DONE if examined.ok else Exit.FAILED


_DEEP = {
    "file": ("The database file is damaged", "Restore a backup."),
    "rows": ("The projections are wrong", "Repair them with `palyra journal rebuild`."),
    "archive": ("The archive is incomplete", "Restore the file from a backup."),
}


def _table(matching_stats: Stats) -> list[str]:
    return facts(
        (
            "journal",
            f"{matching_stats.engine}, schema {matching_stats.schema}, {matching_stats.bytes / 1024**2:.1f} MiB",
        ),
        ("id", matching_stats.journal_id),
        ("restored from", matching_stats.restored_from),
        ("sessions", f"{matching_stats.sessions} ({matching_stats.archived} archived)"),
        ("rotated", str(matching_stats.rotated) if matching_stats.rotated else None),
        ("runs", counts(matching_stats.runs)),
        ("entries", str(matching_stats.entries)),
        ("messages", str(matching_stats.messages)),
        ("anchors", str(matching_stats.anchors)),
        ("oldest", date_time(matching_stats.oldest)),
        ("newest", date_time(matching_stats.newest)),
    )


def _print_rebuild(done: RebuildReport) -> None:
    if done.differed:
        parts = [
            (done.conversations, "conversation"),
            (done.counts, "session row"),
            (done.runs, "run"),
            (done.questions, "approval"),
            (done.grants, "revoked grant"),
            (done.used, "usage row"),
            (done.search_index, "indexed message"),
        ]
        print(f"Repaired: {', '.join(plural(number, what) for number, what in parts if number)}.")
    elif not done.problems:
        print(f"Nothing to repair ({plural(done.sessions, 'session')} checked).")
    for problem in done.problems:
        print(f"Not repaired: {_location(problem)}{printable_line(problem.what)}.")


def _print_report(report: ProofReport, what: str) -> None:
    walked = proof_counts(report)
    if report.rotated:
        walked += f", {report.rotated} in the archive"
    if report.attested:
        walked += f", {plural(report.attested, 'attested execution')}"
    if report.ok:
        print(f"{what.capitalize()} verified: {walked}.")
        if report.after_anchor:
            print(f"{plural(report.after_anchor, 'entry')} not yet anchored.")
        if report.unattested:
            print(f"{plural(report.unattested, 'execution')} recorded before attestations existed.")
        return
    first, *others = report.problems
    print(f"Verification of the {what} failed: {_location(first)}{printable_line(first.what)}.")
    if others:
        print(f"{plural(len(others), 'more problem')}; list them with --json.")
    print(f"Checked {walked}.")


def _location(problem: ProofProblem) -> str:
    if problem.session_id is None:
        return ""
    entry = f", entry {problem.tape_seq}" if problem.tape_seq is not None else ""
    return f"session {printable_line(problem.session_id)}{entry}: "


def _fields_of(report: ProofReport) -> dict[str, object]:
    return {
        "ok": report.ok,
        "sessions": report.sessions,
        "entries": report.entries,
        "anchors": report.anchors,
        "after_anchor": report.after_anchor,
        "rotated": report.rotated,
        "attested": report.attested,
        "unattested": report.unattested,
        "problems": [_fields(problem) for problem in report.problems],
    }


def _fields(problem: ProofProblem) -> dict[str, str | int | None]:
    return {"session_id": problem.session_id, "tape_seq": problem.tape_seq, "what": problem.what}


def _without_tag(line: export.ExportLine) -> dict[str, object]:
    return {name: value for name, value in msgspec.to_builtins(line).items() if name != "line"}
