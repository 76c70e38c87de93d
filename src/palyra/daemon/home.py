"""The home folder of a daemon: who may have it, what must be in it, and where the daemon says that it is."""

import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from palyra.core.errors import Conflict
from palyra.core.ids import PrincipalId
from palyra.core.version import VERSION
from palyra.gateway.remote import TokenUnusable
from palyra.gateway.target import read_token
from palyra.home import Home, foreign
from palyra.journal.engine import StorageFull, StorageReadOnly
from palyra.sandbox.forbidden import Forbidden
from palyra.sandbox.workspace import Workspace
from palyra.settings import Settings, SettingsInvalid

WELCOME = """# Welcome

This is the agent's workspace: what you put here it can list, read and search. It asks before it changes anything.
Try: "list the files", "read welcome.md", "find workspace in the files", "write a note: Palyra works".
"""


class AlreadyRunning(Conflict):
    """A daemon is running on this home already."""


def prepare(home: Home) -> None:
    """Make the folder, for its owner only; refuse one of another user, who could tell a daemon of root what to run."""
    with writing(home):
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (home.path, home.config, home.policy, home.plugins):
        with suppress(FileNotFoundError):
            if path.stat().st_uid not in (os.geteuid(), 0):
                raise foreign(home, path)


class Workspaces:
    """The folder that tools may see, for each principal one of its own."""

    def __init__(self, home: Home, settings: Settings, *, owner: PrincipalId) -> None:
        """Find the owner's folder; the home's own is made, with a word of welcome, if it is not there."""
        self._home = home
        folder = _owners_folder(home, settings)
        family = home.family()
        self._homes = tuple(one.path for one in family)
        spared = tuple(one.workspace for one in family)
        self._known = {owner: Workspace((folder,), forbidden=Forbidden(self._homes, spared))}

    def __call__(self, principal: PrincipalId) -> Workspace:
        """Return the folder of a principal, made at its first use."""
        known = self._known.get(principal)
        if known is None:
            folder = self._home.path / "workspaces" / quote(principal, safe="")
            with writing(self._home):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = self._known[principal] = Workspace((folder,), forbidden=Forbidden(self._homes, (folder,)))
        return known

    def conceal(self, text: str, principal: PrincipalId) -> str:
        """Return a text without the home's path: what is in the principal's own folder is named relative to that."""
        for home in sorted({str(self._home.path), os.path.realpath(self._home.path)}, key=len, reverse=True):
            own = re.escape(f"{home}/workspaces/{quote(principal, safe='')}")
            text = re.sub(rf"{own}/", "", text)
            text = re.sub(rf"{own}(?![\w%.@+-])", "the workspace", text)
            text = text.replace(home, "PALYRA_HOME")
        return text


def _owners_folder(home: Home, settings: Settings) -> Path:
    if settings.workspace.root is not None:
        root = Path(os.path.expanduser(settings.workspace.root))
        if not root.is_dir():
            raise SettingsInvalid(f"workspace.root is {root}, which is no folder. Make it, or set another.")
        return root
    if not home.workspace.exists():
        with writing(home):
            home.workspace.mkdir(mode=0o700)
            try:
                write_private(home.workspace / "welcome.md", WELCOME)
            except OSError:
                home.workspace.rmdir()
                raise
    return home.workspace


def token(home: Home) -> str:
    """Return the owner's token, made at the first start for the owner's eyes only, and anew if it is not a token."""
    with suppress(TokenUnusable):
        return read_token(home)
    fresh = "palyra_" + secrets.token_urlsafe(32)
    write_private(home.token, fresh + "\n")
    return fresh


@contextmanager
def writing(home: Home) -> Iterator[None]:
    """Say what keeps a file of the home from being written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"The disk that holds {home.path} is full. Free some space, then start again.") from error
        raise StorageReadOnly(f"{error.filename or home.path} can not be written: {error.strerror}.") from error


def write_private(path: Path, text: str) -> None:
    """Write a file as a whole or not at all, for its owner only."""
    fresh = path.with_name(path.name + ".new")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


class Lock:
    """Holds the home for this process. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def __enter__(self) -> None:
        with writing(self._home):
            self._file = os.open(self._home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise AlreadyRunning(_who_runs(self._home)) from None
        # What an earlier daemon said before it was killed is not true any more.
        _put_by(self._home)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _who_runs(home: Home) -> str:
    with suppress(OSError, ValueError, KeyError):
        said = json.loads(home.daemon.read_text())
        return (
            f"A daemon is running on {home.path} already: process {said['pid']} at {said['address']}. "
            "Use it, or end it with `palyra down`."
        )
    return f"A daemon is running on {home.path} already. Use it, or end it with `palyra down`."


class Announcement:
    """The record that tells others of this home where its daemon is, for as long as it is there."""

    def __init__(self, home: Home, address: str, *, certificate: str | None, started_at: datetime) -> None:
        self._home = home
        self._said: dict[str, str | int | None] = {
            "pid": os.getpid(),
            "address": address,
            "certificate": certificate,
            "version": VERSION,
            "started_at": started_at.isoformat(),
        }

    def publish(self, **changed: str | None) -> bool:
        """Write the record with what changed of it, as `gateway/target.py` reads it; False if the disk is full."""
        self._said |= changed
        record = json.dumps(self._said)
        try:
            with writing(self._home):
                _write_over(_spare(self._home), record)
                _spare(self._home).rename(self._home.daemon)
        except StorageFull:
            return False
        return True

    def warn(self, text: str) -> None:
        """Write what whoever starts or asks for the daemon should know; it is in the log and the status in any case."""
        self.publish(warning=text)

    def withdraw(self) -> None:
        """Take the record away."""
        _put_by(self._home)


def _put_by(home: Home) -> None:
    """Take the record away but keep its file: the next daemon writes into it, also on a full disk."""
    with suppress(OSError):
        home.daemon.rename(_spare(home))


def _spare(home: Home) -> Path:
    return home.daemon.with_name(f"{home.daemon.name}.old")


def _write_over(path: Path, text: str) -> None:
    """Write a file in the room that it has."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
