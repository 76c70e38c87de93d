"""`palyra journal attestations`: the daemon's signed statements about executions of tools."""

from pathlib import Path

import click

from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation
from palyra.cli.short_ids import find_by_suffix, is_id_suffix
from palyra.cli.terminal.output import clock_time, date_time, facts, show
from palyra.cli.terminal.printable import printable_line
from palyra.core import attestation
from palyra.core.attestation import ProgramRun, Statement
from palyra.core.clock import to_ms
from palyra.core.ids import parse_ulid
from palyra.journal.proof.attestations import FoundAttestation, find, find_in
from palyra.journal.proof.signing_key import public_key
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stores import runs


@click.command("attestations")
@click.argument("execution", metavar="RUN|CALL", default="last")
@click.option(
    "--file",
    "export_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="EXPORT",
    help="Read an export or an archive file instead of the journal.",
)
@click.pass_obj
def show_attestations(invocation: Invocation, execution: str, *, export_file: Path | None) -> Exit:
    """Show the attestations of a run's tool executions, or of one call. With --json, prints the signed statements.

    RUN is a run's id, its last six characters, or `last` for the most recent run.

    \b
    Exit codes: 0 all attestations are valid, 1 one is not, or there are none.
    """
    if export_file is not None:
        attestations = find_in(export_file, _id(execution))
    else:
        with open_snapshot(invocation.home, invocation.settings) as conn:
            from palyra.daemon.process.system_clock import SystemClock

            if is_id_suffix(execution):
                execution = find_by_suffix(execution, runs.ending_in(conn, execution.upper()))
            now_ms = to_ms(SystemClock().now())
            attestations = find(conn, _id(execution), key=public_key(invocation.home.key), now_ms=now_ms)
    if not invocation.printed_json({"attestations": [_fields(one) for one in attestations]}):
        for index, one in enumerate(attestations):
            show(["", *_attestation_lines(one)] if index else _attestation_lines(one))
    return Exit.DONE if all(one.problem is None for one in attestations) else Exit.FAILED


def _id(execution: str) -> str | None:
    return parse_ulid(execution, "id of a run or a call") if execution != "last" else None


def _fields(checked: FoundAttestation) -> dict[str, object]:
    return {
        "session_id": checked.entry.session_id,
        "tape_seq": checked.entry.tape_seq,
        "run_id": checked.entry.run_id,
        "call_id": checked.call_id,
        "holds": checked.problem is None,
        "problem": checked.problem,
        "statement": checked.attestation.statement,
        "signature": checked.attestation.signature,
        "public_key": checked.attestation.public_key,
    }


def _attestation_lines(checked: FoundAttestation) -> list[str]:
    if checked.problem is not None:
        # If it was changed, it may contain anything.
        location = f"session {printable_line(checked.entry.session_id)}, entry {checked.entry.tape_seq}"
        return [f"Call {printable_line(checked.call_id)} ({location}): {printable_line(checked.problem)}."]
    stated = attestation.read(checked.attestation.statement)
    full = stated.full_result
    return facts(
        ("call", stated.call_id),
        ("tool", f"{stated.tool} ({stated.runtime})"),
        ("outcome", stated.outcome.value),
        ("for", f"{stated.principal}, by agent {stated.agent_id}"),
        ("run", f"{stated.run_id}, session {stated.session_id}, entry {checked.entry.tape_seq}"),
        ("when", f"{date_time(stated.started_at)} to {clock_time(stated.finished_at)}, attempt {stated.attempt}"),
        ("allowed", _allowed(stated)),
        *(("ran", _program_text(ran)) for ran in stated.programs),
        ("arguments", f"sha256 {stated.arguments}"),
        ("result", f"sha256 {stated.result}"),
        (
            "full result",
            f"artifact {full.artifact_id}, {full.size} bytes, sha256 {full.digest}" if full else None,
        ),
        ("signed", f"by key {checked.attestation.public_key}, valid"),
    )


def _allowed(stated: Statement) -> str:
    under = f"under policy {stated.policy_hash}"
    if stated.approval_id is not None:
        return f"by approval {stated.approval_id}, {under}"
    return f"by grant {stated.grant_id}, {under}" if stated.grant_id is not None else under


def _program_text(ran: ProgramRun) -> str:
    how = f"exit code {ran.exit_code}" if ran.exit_code is not None else "no exit code"
    limits = ", ".join(f"{name} {value}" for name, value in ran.limits.items())
    return f"in the {ran.tier} sandbox, {how}{f', stopped: {ran.stopped}' if ran.stopped else ''} ({limits})"
