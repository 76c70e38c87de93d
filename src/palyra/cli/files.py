"""`palyra files`: what agents changed, and restoring a file."""

from pathlib import Path

import click

from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.sessions import find_session
from palyra.cli.short_ids import find_by_suffix, is_id_suffix
from palyra.cli.terminal.output import date_time, paint, plural, say, show, show_json, table
from palyra.cli.terminal.printable import printable, printable_line
from palyra.core.artifact import FileCheckpoint
from palyra.core.errors import NotFound
from palyra.core.ids import parse_ulid

MARKS = {"+": "green", "-": "red", "@": "cyan"}
FILE_STATES = {
    "as_changed": "has not changed since; a restore makes the changes above",
    "as_before": "is the same as before that change; nothing to restore",
    "changed_since": "was changed again since; use --force to restore it anyway",
}


MAX_CHECKED = 500
"""How many of the latest file checkpoints are searched for an id suffix."""


class FileCheckpointMissing(NotFound):
    """No agent has changed a file yet, so there is nothing to restore."""


@click.group(cls=PalyraGroup, default="history")
def files() -> None:
    """Show file changes made by agents, and restore files. Without a command, shows the history."""


@files.command("history")
@click.argument("path", required=False)
@click.option(
    "--session",
    metavar="SESSION",
    help="Only changes of one session: its id or last six characters, its key, or `last`.",
)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500), help="Maximum number of changes.")
def history(invocation: Invocation, path: str | None = None, session: str | None = None, limit: int = 50) -> None:
    """List file changes, newest first. Each one is a file checkpoint: the version before the change.

    PATH is absolute, or relative to the workspace.
    """
    client = invocation.client
    session_id = find_session(client, session).session_id if session is not None else None
    page = client.files.checkpoints(path=path, session_id=session_id, limit=limit)
    if invocation.json:
        show_json(page)
    elif not page.checkpoints:
        print("No file changes yet.")
    else:
        folder = _workspace(invocation)
        rows = [
            [one.checkpoint_id, date_time(one.at), one.what, _happened(one), one.path.removeprefix(folder)]
            for one in page.checkpoints
        ]
        show(table(["CHECKPOINT", "TIME", "TOOL", "CHANGE", "FILE"], rows))
        if page.next_cursor:
            say(f"Showing the first {limit}. Use --limit to see more.")


@files.command("restore")
@click.argument("checkpoint")
@click.option("--force", is_flag=True, help="Restore even if the file was changed again since.")
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing it.")
def restore(invocation: Invocation, checkpoint: str, *, force: bool, dry_run: bool) -> None:
    """Restore a file from a file checkpoint. The current version is kept as a checkpoint as well.

    CHECKPOINT is an id from `palyra files history`, its last six characters, or `last` for the latest change.
    """
    checkpoint_id = _checkpoint_id(invocation, checkpoint)
    if dry_run:
        _compare(invocation, checkpoint_id)
        return
    done = invocation.client.files.restore(checkpoint_id, force=force)
    if invocation.printed_json(done):
        return
    name = printable_line(done.checkpoint.path)
    if done.saved_as == done.checkpoint.checkpoint_id:
        print(f"{name} is already the same. Nothing was changed.")
        return
    _show_diff(done.diff)
    what = "Deleted" if done.checkpoint.before_digest is None else "Restored"
    print(f"{what} {name}. Undo with `palyra files restore {done.saved_as}`.")


@files.command("trust")
@click.argument("path")
def trust(invocation: Invocation, path: str) -> None:
    """Trust the current content of a file or folder, wherever it came from. Review it first.

    PATH is absolute, or relative to the workspace; `.` is the whole workspace. Files with text from the web or
    from other people are labelled, and calls that use them need approval. This removes the labels, until such text is
    written to the files again.
    """
    done = invocation.client.files.trust(path)
    if not invocation.printed_json(done):
        what = plural(done.labels_removed, "entry")
        print(f"{printable_line(path)}: removed the labels of {what}.")


def _workspace(invocation: Invocation) -> str:
    """Return the common prefix of most paths; they are listed without it."""
    root = invocation.settings.workspace.root
    folder = Path(root).expanduser() if root is not None else invocation.home.workspace
    return f"{folder}/"


def _checkpoint_id(invocation: Invocation, name: str) -> str:
    if name == "last" or is_id_suffix(name):
        limit = 1 if name == "last" else MAX_CHECKED
        file_checkpoints = invocation.client.files.checkpoints(limit=limit).checkpoints
        if name == "last" and not file_checkpoints:
            raise FileCheckpointMissing
        name = (
            file_checkpoints[0].checkpoint_id
            if name == "last"
            else find_by_suffix(name, (one.checkpoint_id for one in file_checkpoints))
        )
    return parse_ulid(name, "checkpoint id")


def _compare(invocation: Invocation, checkpoint_id: str) -> None:
    compared = invocation.client.files.compare(checkpoint_id)
    if invocation.printed_json(compared):
        return
    _show_diff(compared.diff)
    print(f"{printable_line(compared.checkpoint.path)} {FILE_STATES[compared.state]}.")


def _happened(checkpoint: FileCheckpoint) -> str:
    if checkpoint.before_digest is None:
        return "created"
    return "deleted" if checkpoint.after_digest is None else "changed"


def _show_diff(diff: str) -> None:
    for line in printable(diff).removesuffix("\n").split("\n"):
        colour = MARKS.get(line[:1])
        print(paint(line, colour) if colour else line)
