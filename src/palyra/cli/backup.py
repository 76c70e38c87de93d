"""`palyra backup`: backups of a home that can be verified, and restoring them."""

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from palyra.cli.errors import describe
from palyra.cli.exit_codes import Exit
from palyra.cli.journal.commands import proof_counts
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import date_time, facts, plural, say, show, show_json
from palyra.cli.terminal.printable import printable_line
from palyra.home import Home
from palyra.journal.archive import backup as backups
from palyra.journal.archive import restore
from palyra.journal.archive.backup import BackupReport
from palyra.tools.plugins.installed import FaultyPlugin, PluginCopy, copies

FOLDER = "backups"


@click.group(cls=PalyraGroup)
def backup() -> None:
    """Create, verify and restore backups of the journal, its key, settings, policies and plugins."""


@backup.command("create")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to create. Default: a new folder in `backups` in the home folder.",
)
@click.option("--with-token", is_flag=True, help="Include the owner's token, which gives full access to the daemon.")
def create(invocation: Invocation, *, output: Path | None, with_token: bool) -> Exit:
    """Create a backup and verify it. The daemon may be running. The agent's workspace is not included.

    \b
    Exit codes: 0 created and verified, 1 created but verification failed.
    """
    from palyra.daemon.process.system_clock import SystemClock

    home, now = invocation.home, SystemClock().now()
    target = output or home.path / FOLDER / f"palyra-{now:%Y%m%d-%H%M%S}"
    left_out: list[FaultyPlugin] = []
    manifest = backups.create(
        home,
        invocation.settings,
        target=target,
        made_at=now,
        with_token=with_token,
        plugins=_plugins(home, left_out),
    )
    checked = backups.check(target)
    if invocation.json:
        problems = _problems(checked)
        fields = {"backup": str(target), "manifest": manifest, "left_out": [_faulty(one) for one in left_out]}
        show_json({**fields, "ok": checked.ok, "problems": problems})
        return Exit.DONE if checked.ok else Exit.FAILED
    size = sum(part.bytes for part in manifest.files.values())
    print(f"Created backup {printable_line(str(target))} ({size / 1024**2:.1f} MiB).")
    print("Store it on another machine and keep it private: it contains all messages and the journal's key.")
    for one in left_out:
        say(f"Plugin {printable_line(one.name)} is not included: {describe(one.error)}")
    if not checked.ok:
        say(f"The backup was created, but verification failed: {_first_problem(checked)}")
        say("The journal has the same problem: run `palyra journal verify`. Keep earlier backups.")
    return Exit.DONE if checked.ok else Exit.FAILED


@backup.command("verify")
@click.argument("path", metavar="BACKUP", type=click.Path(exists=True, path_type=Path))
def verify(invocation: Invocation, *, path: Path) -> Exit:
    """Verify a backup: its files, its journal and every tape.

    \b
    Exit codes: 0 verified, 1 verification failed, 2 not a backup.
    """
    checked = backups.check(path)
    if not invocation.printed_json(_fields(checked)):
        _print_report(checked)
    return Exit.DONE if checked.ok else Exit.FAILED


@backup.command("restore")
@click.argument("path", metavar="BACKUP", type=click.Path(exists=True, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace an existing home. Its files are moved to a folder `replaced-…`.")
def restore_backup(invocation: Invocation, *, path: Path, replace: bool) -> None:
    """Restore a backup into the home folder, or the one given with `--home`. The daemon must be stopped.

    The restored journal gets a new id. With --replace, the previous files are kept in a folder `replaced-…`.
    """
    from palyra.daemon.process.system_clock import SystemClock, SystemIds

    clock = SystemClock()
    done = restore.restore(path, invocation.home, replace=replace, ids=SystemIds(clock), at=clock.now())
    if invocation.printed_json({"home": str(invocation.home.path), **msgspec.to_builtins(done, enc_hook=str)}):
        return
    print(f"Restored to {printable_line(str(invocation.home.path))} (schema {done.schema}).")
    if done.aside is not None:
        print(f"The previous files are in {printable_line(str(done.aside))}.")
    print(f"The journal's new id is {done.journal_id}. Start the daemon with `palyra up`.")


def _plugins(home: Home, left_out: list[FaultyPlugin]) -> Iterator[dict[str, bytes]]:
    """Yield the files of each plugin; those that differ from what was installed are left out, and named."""
    for one in copies(home):
        if isinstance(one, PluginCopy):
            yield one.files
        else:
            left_out.append(one)


def _faulty(one: FaultyPlugin) -> dict[str, str]:
    return {"plugin": one.name, "code": one.error.code, "detail": one.error.detail}


def _print_report(checked: BackupReport) -> None:
    if not checked.ok:
        print(f"Verification failed: {_first_problem(checked)}")
        return
    report, manifest = checked.report, checked.manifest
    print(f"Backup verified: {proof_counts(report)}.")
    if manifest is not None:
        rows = [
            ("created", date_time(manifest.made_at)),
            ("journal", f"{manifest.engine}, schema {manifest.schema}"),
            ("id", manifest.journal_id),
            ("version", manifest.version),
        ]
        show(facts(*rows))


def _first_problem(checked: BackupReport) -> str:
    first, *others = checked.problems
    entry = f", entry {first.tape_seq}" if first.tape_seq is not None else ""
    location = f"session {printable_line(first.session_id)}{entry}: " if first.session_id else ""
    more = f"\n{plural(len(others), 'more problem')}; list them with --json." if others else ""
    return f"{location}{printable_line(first.what)}.{more}"


def _fields(checked: BackupReport) -> dict[str, object]:
    report = checked.report
    return {
        "ok": checked.ok,
        "schema": checked.schema,
        "sessions": report.sessions,
        "entries": report.entries,
        "anchors": report.anchors,
        "manifest": checked.manifest,
        "problems": _problems(checked),
    }


def _problems(checked: BackupReport) -> list[dict[str, str | int | None]]:
    return [
        {"session_id": problem.session_id, "tape_seq": problem.tape_seq, "what": problem.what}
        for problem in checked.problems
    ]
