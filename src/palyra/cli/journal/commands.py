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
from palyra.cli.terminal.output import counts, date_time, facts, plural, say, show, show_json
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
from palyra.journal.proof import export, export_proof, tape_proof
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.tape_proof import ProofProblem, ProofReport
from palyra.journal.stats import Stats
from palyra.journal.stores import sessions
from palyra.settings import Settings


class AnchorMissing(NotFound):
    """The journal has no anchor yet. The daemon drops one a short while after something was recorded."""


class NothingRecorded(NotFound):
    """The journal has no session yet. `palyra chat` begins one."""


@click.group(cls=PalyraGroup)
def journal() -> None:
    """Prove that nothing recorded was changed, and look after the journal. Works beside a daemon and without one."""


journal.add_command(show_attestations)


@journal.command("verify")
@click.option(
    "--anchor",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An anchor that was saved earlier; shows whether the journal was rolled back since.",
)
@click.option(
    "--file",
    "export_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="EXPORT",
    help="Prove an export instead; needs no journal.",
)
@click.option("--deep", is_flag=True, help="Also check the file, the archive, and all that follows from the tapes.")
@click.pass_obj
def verify_journal(invocation: Invocation, *, anchor: Path | None, export_file: Path | None, deep: bool) -> Exit:
    """Walk every tape and name the first entry that was altered, removed, inserted or moved.

    \b
    Exit codes: 0 all holds, 1 something was changed, 2 the journal can not be read.
    """
    if export_file is not None and deep:
        raise click.UsageError("--deep looks at a journal, --file at an export. Give one of them.")
    try:
        saved = tape_proof.read_anchor(anchor.read_bytes()) if anchor is not None else None
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
        say(f"palyra: The journal can not be read: {printable_line(str(error))}. Restore a backup. [journal_damaged]")
        return Exit.BAD_INPUT
    if invocation.json:
        show_json(_fields_of(report))
    else:
        _print_report(report, "journal")
    return Exit.DONE if report.ok else Exit.FAILED


@journal.command("anchor")
@click.pass_obj
def print_anchor(invocation: Invocation) -> None:
    """Print the journal's last anchor. Keep it elsewhere; `verify --anchor` proves later that nothing is gone."""
    anchor = tape_proof.latest_anchor(invocation.home, invocation.settings)
    if anchor is None:
        raise AnchorMissing
    show_json(anchor)


@journal.command("export")
@click.option(
    "--session",
    metavar="SESSION",
    help="Export the tape of one session only: its id or last six characters, or `last`.",
)
@click.option(
    "--since",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="ANCHOR",
    help="Export only what came after an anchor that `palyra journal anchor` printed.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to a file instead of stdout."
)
@click.pass_obj
def export_journal(invocation: Invocation, *, session: str | None, since: Path | None, output: Path | None) -> None:
    """Write the tapes as lines of JSON that prove themselves: `palyra journal verify --file EXPORT`."""
    from palyra.daemon.system_clock import SystemClock

    anchor = tape_proof.read_anchor(since.read_bytes()) if since is not None else None
    made_at = SystemClock().now()
    with tape_proof.open_snapshot(invocation.home, invocation.settings) as conn:
        session_id = _session_id(conn, session, now_ms=to_ms(made_at)) if session is not None else None
        if output is None:
            with explain_write_errors(Path("the output")):
                export.write(conn, sys.stdout.buffer.write, made_at=made_at, session_id=session_id, since=anchor)
                sys.stdout.buffer.flush()
            return
        with atomic_file(output) as file:
            footer = export.write(conn, file.write, made_at=made_at, session_id=session_id, since=anchor)
    if invocation.json:
        show_json({"file": str(output), **_without_tag(footer)})
    else:
        print(
            f"Exported {plural(footer.sessions, 'session')}, {_entries(footer.entries)}: {printable_line(str(output))}."
        )
        print("`palyra journal verify --file` proves it, on any machine that has Palyra.")


def _session_id(conn: Connection, name: str, *, now_ms: int) -> SessionId:
    if name == "last":
        if (found := sessions.latest(conn, now_ms=now_ms)) is None:
            raise NothingRecorded
        return found
    if is_id_suffix(name):
        name = find_by_suffix(name, sessions.ending_in(conn, name.upper()))
    return SessionId(parse_ulid(name, "session id"))


@journal.command("stats")
@click.pass_obj
def show_stats(invocation: Invocation) -> None:
    """Show how much the journal holds."""
    with tape_proof.open_snapshot(invocation.home, invocation.settings) as conn:
        found = stats.gather(conn, invocation.home)
    if invocation.json:
        show_json(found)
    else:
        show(_table(found))


@journal.command("rebuild")
@click.pass_obj
def rebuild_journal(invocation: Invocation) -> Exit:
    """Make anew what follows from the tapes: messages, the search index, sums of sessions and runs, questions, grants.

    The daemon must not run. What is right already is left alone. A grant that was missing or wrong is taken back.

    \b
    Exit codes: 0 all is right now, 1 a tape can not be replayed.
    """
    from palyra.daemon.system_clock import SystemClock
    from palyra.runs.recording.transcript import message_of_event

    settings = invocation.settings
    now_ms = to_ms(SystemClock().now())
    with tape_proof.open_snapshot(invocation.home, settings):
        pass  # Locking a home creates it; one without a journal must not be created here.
    with offline.hold_home(invocation.home), offline.open_writer(invocation.home, settings) as units:
        done = rebuild.rebuild(units, message_of_event, folder=invocation.home.path, now_ms=now_ms)
    if invocation.json:
        show_json({**msgspec.to_builtins(done), "differed": done.differed})
    else:
        _print_rebuild(done)
    return Exit.FAILED if done.problems else Exit.DONE


def walk(home: Home, settings: Settings, *, saved: bytes | None = None) -> ProofReport:
    """Verify a home's journal; `saved` is an anchor that was stored elsewhere."""
    anchor = tape_proof.read_anchor(saved) if saved is not None else None
    return replay_check.verify_with_archive(home, settings, saved=anchor)


def _verify_file(invocation: Invocation, path: Path, saved: Anchor | None) -> Exit:
    proof = export_proof.verify_file(path, saved=saved)
    header, report = proof.header, proof.report
    if invocation.json:
        show_json({**_fields_of(report), "header": _without_tag(header)})
    else:
        _print_report(report, "export")
        if report.ok:
            signed = f"signed by key {printable_line(header.public_key or '')}" if report.anchors else "not signed yet"
            print(f"Made {date_time(header.made_at)}, {signed}.")
    return Exit.DONE if report.ok else Exit.FAILED


def _verify_deep(invocation: Invocation, saved: Anchor | None) -> Exit:
    from palyra.runs.recording.transcript import message_of_event

    examined = replay_check.examine(invocation.home, invocation.settings, saved=saved, message_of=message_of_event)
    parts = {"file": examined.file, "rows": examined.rows, "archive": examined.archive}
    if invocation.json:
        fields = {name: [_fields(problem) for problem in found] for name, found in parts.items()}
        show_json({**_fields_of(examined.report), "ok": examined.ok, "deep": fields})
        return Exit.DONE if examined.ok else Exit.FAILED
    _print_report(examined.report, "journal")
    for name, found in parts.items():
        if found:
            more = f" ({plural(len(found), 'problem')}; --json names them all)" if len(found) > 1 else ""
            print(f"{_DEEP[name][0]}: {_location(found[0])}{printable_line(found[0].what)}{more}. {_DEEP[name][1]}")
    if examined.ok:
        print("The file is sound, the archive is whole, and all that follows from the tapes is right.")
    elif not examined.report.ok:
        print("What follows from the tapes was not checked, since they do not hold.")
    return Exit.DONE if examined.ok else Exit.FAILED


_DEEP = {
    "file": ("The journal's file is damaged", "Restore a backup."),
    "rows": ("What follows from the tapes is wrong", "`palyra journal rebuild` sets it right."),
    "archive": ("The archive is not whole", "Bring the file back from a backup."),
}


def _table(found: Stats) -> list[str]:
    return facts(
        [
            ("journal", f"{found.engine}, schema {found.schema}, {found.bytes / 1024**2:.1f} MiB"),
            ("id", found.journal_id),
            ("restored from", found.restored_from),
            ("sessions", f"{found.sessions}, of them archived: {found.archived}"),
            ("rotated", str(found.rotated) if found.rotated else None),
            ("runs", counts(found.runs)),
            ("entries", str(found.entries)),
            ("messages", str(found.messages)),
            ("anchors", str(found.anchors)),
            ("oldest", date_time(found.oldest)),
            ("newest", date_time(found.newest)),
        ]
    )


def _print_rebuild(done: RebuildReport) -> None:
    if done.differed:
        parts = [
            (done.conversations, "conversations"),
            (done.counts, "sums of sessions"),
            (done.runs, "rows of runs"),
            (done.questions, "questions"),
            (done.grants, "grants, which are taken back now"),
            (done.used, "rows of what models used"),
            (done.search_index, "messages of the search index"),
        ]
        print(f"Set right: {', '.join(f'{what}: {number}' for number, what in parts if number)}.")
    elif not done.problems:
        print(f"All was right ({plural(done.sessions, 'session')}).")
    for problem in done.problems:
        print(f"Left alone: {_location(problem)}{printable_line(problem.what)}.")


def _print_report(report: ProofReport, what: str) -> None:
    walked = ", ".join([f"entries: {report.entries}", f"sessions: {report.sessions}", f"anchors: {report.anchors}"])
    if report.rotated:
        walked += f", moved to the archive: {report.rotated}"
    if report.attested:
        walked += f", attested executions: {report.attested}"
    if report.ok:
        print(f"The {what} holds ({walked}).")
        if report.after_anchor:
            print(f"Newer than the last anchor: {report.after_anchor} of them.")
        if report.unattested:
            print(f"Executions from before there were attestations: {report.unattested}.")
        return
    first, *others = report.problems
    print(f"The {what} was changed: {_location(first)}{printable_line(first.what)}.")
    if others:
        print(f"Further problems: {len(others)}; --json names them all.")
    print(f"Walked {walked}.")


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


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
