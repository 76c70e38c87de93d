"""`palyra sessions`: conversations."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.short_ids import find_by_suffix, is_id_suffix
from palyra.cli.terminal.output import date_time, facts, paint, say, show, table
from palyra.cli.terminal.printable import printable, printable_line
from palyra.core.errors import NotFound, PalyraError
from palyra.core.ids import parse_ulid
from palyra.core.session import Session, SessionNotFound, SessionRef
from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import RemoteError
from palyra.gateway.records.sessions import SessionMessage
from palyra.journal.atomic_file import atomic_file, explain_write_errors

RECENT = 10
TOOL_WIDTH = 100
MAX_CHECKED = 200
"""How many of the latest sessions are searched for an id suffix."""


class SessionMissing(NotFound):
    """There is no open session. Start one with `palyra chat`, or see `palyra sessions list --archived`."""


class ArchivedSessionMissing(NotFound):
    """There is no archived session. List the open ones with `palyra sessions`."""


@click.group(cls=PalyraGroup, default="list")
def sessions() -> None:
    """List, search, export and archive sessions. Without a command, lists them.

    SESSION is a session's id, its last six characters, its key, or `last` for the open session used last.
    """


@sessions.command("list")
@click.option("--archived", is_flag=True, help="List archived sessions.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 200), help="Maximum number of results.")
def list_sessions(invocation: Invocation, archived: bool = False, limit: int = 50) -> None:
    """List sessions, last used first."""
    page = invocation.client.sessions(archived=archived, limit=limit)
    none = "No archived sessions." if archived else "No sessions yet. Start one with `palyra chat`."
    invocation.report(page, session_table(page.sessions) if page.sessions else none)
    if page.next_cursor and not invocation.json:
        say(f"Showing the first {limit}. Use --limit to see more.")


@sessions.command("show")
@click.argument("session", default="last")
@click.option(
    "--limit", default=RECENT, show_default=True, type=click.IntRange(1, 200), help="Maximum number of messages."
)
def show_session(invocation: Invocation, session: str, *, limit: int) -> None:
    """Show a session and its last messages."""
    matching_session = find_session(invocation.client, session)
    messages = invocation.client.messages(matching_session.session_id, limit=limit)
    if invocation.printed_json({"session": matching_session, "messages": messages[::-1]}):
        return
    show(_facts(matching_session))
    print()
    for message in reversed(messages):
        _show_message(message)


@sessions.command("tape")
@click.argument("session", default="last")
@click.option("--after-seq", default=0, metavar="SEQ", type=click.IntRange(min=0), help="Start after this entry.")
def show_tape(invocation: Invocation, session: str, *, after_seq: int) -> None:
    """Print the tape of a session: all recorded entries. With --json, one entry per line."""
    from palyra.cli.run_view.tape_listing import print_tape

    client = invocation.client
    session_id = find_session(client, session).session_id
    print_tape(invocation, partial(client.session_tape, session_id), after_seq=after_seq)


@sessions.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200), help="Maximum number of results.")
def search_sessions(invocation: Invocation, words: tuple[str, ...], *, limit: int) -> None:
    """Search the messages of all sessions."""
    hits = invocation.client.search(" ".join(words), limit=limit)
    rows = [[hit.session_id, str(hit.tape_seq), hit.title or "", hit.text] for hit in hits]
    invocation.report({"hits": hits}, table(["SESSION", "SEQ", "TITLE", "TEXT"], rows) if rows else "No matches.")


@sessions.command("rename")
@click.argument("session")
@click.argument("title")
def rename_session(invocation: Invocation, session: str, title: str) -> None:
    """Rename a session."""
    client = invocation.client
    _print_session(invocation, client.rename(find_session(client, session).session_id, title), "renamed")


@sessions.command("archive")
@click.argument("session")
def archive_session(invocation: Invocation, session: str) -> None:
    """Archive a session. It keeps its key."""
    client = invocation.client
    _print_session(invocation, client.archive(find_session(client, session).session_id), "archived")


@sessions.command("unarchive")
@click.argument("session")
def unarchive_session(invocation: Invocation, session: str) -> None:
    """Restore an archived session; `last` is the one archived last."""
    client = invocation.client
    session_id = find_session(client, session, archived=True).session_id
    _print_session(invocation, client.unarchive(session_id), "restored")


@sessions.command("reset")
@click.argument("session")
def reset_session(invocation: Invocation, session: str) -> None:
    """Clear the agent's context of a session. The messages stay on the tape."""
    client = invocation.client
    _print_session(invocation, client.reset(find_session(client, session).session_id), "reset")


@sessions.command("cleanup")
@click.argument("session")
def cleanup_session(invocation: Invocation, session: str) -> None:
    """Cancel a session's active runs, archive it and release its key."""
    client = invocation.client
    matching_session = client.cleanup(find_session(client, session).session_id)
    _print_session(invocation, matching_session, "archived, key released")


@sessions.command("export")
@click.argument("session", default="last")
@click.option("--format", "form", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write. Default: stdout.")
def export_session(invocation: Invocation, session: str, *, form: str, output: Path | None) -> None:
    """Export a session as a document."""
    client = invocation.client
    document = client.export(find_session(client, session).session_id, "json" if invocation.json else form)
    if output is not None:
        _write(output, document)
        say(f"Wrote {output}.")
    elif sys.stdout.isatty():
        print(printable(document.decode()))
    else:
        sys.stdout.buffer.write(document)


def _write(path: Path, document: bytes) -> None:
    if path.exists() and not path.is_file():
        with explain_write_errors(path):
            path.write_bytes(document)  # a device or a pipe
        return
    with atomic_file(path.resolve(), replace=True) as file:
        file.write(document)


def find_session(client: Client, name: str, *, archived: bool = False) -> Session:
    """Return the session that the person names: by id, by key, by the end of its id, or the last one.

    `archived` says which ones the last is chosen from.
    """
    if name == "last":
        return _last_archived(client) if archived else _last_open(client)
    try:
        session_id = parse_ulid(name)
    except PalyraError:
        return _by_key(client, name)
    return client.session(session_id)


def _last_open(client: Client) -> Session:
    if not (matching_sessions := client.sessions(limit=1).sessions):
        raise SessionMissing
    return matching_sessions[0]


def _last_archived(client: Client) -> Session:
    """Return the session that was archived last; those listed first may have been renamed since."""
    matching_sessions = [
        one for one in client.sessions(archived=True, limit=MAX_CHECKED).sessions if one.archived_at is not None
    ]
    if not matching_sessions:
        raise ArchivedSessionMissing
    return max(matching_sessions, key=lambda one: (one.archived_at, one.session_id))


def _by_key(client: Client, name: str) -> Session:
    """Return the session of a key; if there is none, the one whose id ends like this, archived or not."""
    try:
        return client.resolve(SessionRef(key=name, require_existing=True))
    except RemoteError as error:
        if error.code != SessionNotFound.code or not is_id_suffix(name):
            raise
    cached_sessions: dict[str, Session] = {
        one.session_id: one
        for archived in (False, True)
        for one in client.sessions(archived=archived, limit=MAX_CHECKED).sessions
    }
    return cached_sessions[find_by_suffix(name, cached_sessions)]


def session_table(matching_sessions: Sequence[Session]) -> list[str]:
    """Return sessions as a table."""
    rows = [
        [session.session_id, date_time(session.updated_at), session.key or session.label or "", name_of(session)]
        for session in matching_sessions
    ]
    return table(["SESSION", "LAST USED", "KEY", "TITLE"], rows)


def name_of(session: Session) -> str:
    """Return what a person calls the session."""
    return printable_line(session.title or session.label or session.key or "(untitled)")


def _print_session(invocation: Invocation, session: Session, done: str) -> None:
    invocation.report({"session": session}, f"{session.session_id} ({name_of(session)}): {done}.")


def _show_message(message: SessionMessage) -> None:
    if message.role == "tool":
        print(paint(f"· {printable_line(message.text, width=TOOL_WIDTH)}", "dim"))
    elif message.text.strip():
        who = "you" if message.role == "user" else "palyra"
        print(paint(f"{who}, {date_time(message.at)}", "dim"))
        print(printable(message.text))


def _facts(session: Session) -> list[str]:
    return facts(
        ("session", session.session_id),
        ("title", session.title),
        ("key", session.key),
        ("label", session.label),
        ("agent", session.agent_id),
        ("created", date_time(session.created_at)),
        ("last used", date_time(session.updated_at)),
        ("archived", date_time(session.archived_at)),
        ("active run", session.active_run_id),
    )
