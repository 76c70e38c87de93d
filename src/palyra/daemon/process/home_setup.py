"""Sets up the home folder of a daemon: permissions, required files, the lock, and the record of its address."""

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

from palyra.core.ids import PrincipalId
from palyra.core.version import VERSION
from palyra.gateway.client.errors import TokenUnusable
from palyra.gateway.client.target import read_token
from palyra.home import DaemonRunning, Home, foreign_file_message
from palyra.journal.engines.base import StorageFull, StorageReadOnly
from palyra.sandbox.files.reserved_files import ReservedFiles
from palyra.sandbox.files.workspace import Workspace
from palyra.settings import Settings, SettingsInvalid

WELCOME = (
    "# Welcome\n\nThis is the agent's workspace. The agent can list, read and search the files here. It asks "
    'before it changes anything.\nTry: "list the files", "read welcome.md", "find workspace in the files", '
    '"write a note: Palyra works".\n'
)


def prepare_home(home: Home) -> None:
    """Create the folder, for its owner only; refuse another user's: that user could tell a root daemon what to run."""
    with explain_write_errors(home):
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (home.path, home.config, home.policy, home.plugins):
        with suppress(FileNotFoundError):
            if path.stat().st_uid not in (os.geteuid(), 0):
                raise foreign_file_message(home, path)


class WorkspaceFolders:
    """The folders that tools can access, one per principal."""

    def __init__(self, home: Home, settings: Settings, *, owner: PrincipalId) -> None:
        """Find the owner's folder; create the default one, with a welcome text, if it does not exist."""
        self._home = home
        folder = _owners_folder(home, settings)
        family = home.family()
        self._homes = tuple(one.path for one in family)
        spared = tuple(one.workspace for one in family)
        self._known = {owner: Workspace((folder,), forbidden=ReservedFiles(self._homes, spared))}

    def __call__(self, principal: PrincipalId) -> Workspace:
        """Return the folder of a principal, created at its first use."""
        workspace = self._known.get(principal)
        if workspace is None:
            folder = self._home.path / "workspaces" / quote(principal, safe="")
            with explain_write_errors(self._home):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            workspace = self._known[principal] = Workspace((folder,), forbidden=ReservedFiles(self._homes, (folder,)))
        return workspace

    def conceal(self, text: str, principal: PrincipalId) -> str:
        """Return a text without the home's path: paths in the principal's own folder become relative to that folder."""
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
            raise SettingsInvalid(f"workspace.root is {root}, which is not a folder. Create it, or set another one.")
        return root
    if not home.workspace.exists():
        with explain_write_errors(home):
            home.workspace.mkdir(mode=0o700)
            try:
                write_private(home.workspace / "welcome.md", WELCOME)
            except OSError:
                home.workspace.rmdir()
                raise
    return home.workspace


def owner_token(home: Home) -> str:
    """Return the owner's token, created at the first start, readable by the owner only; replace it if it is invalid."""
    with suppress(TokenUnusable):
        return read_token(home)
    fresh = "palyra_" + secrets.token_urlsafe(32)
    write_private(home.token, fresh + "\n")
    return fresh


@contextmanager
def explain_write_errors(home: Home) -> Iterator[None]:
    """Turn write errors in the home into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"The disk of {home.path} is full. Free some space, then start the daemon again."
            ) from error
        raise StorageReadOnly(f"{error.filename or home.path} cannot be written: {error.strerror}.") from error


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only."""
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


class HomeLock:
    """Holds the lock on the home for this process. The kernel releases it when the process ends, even after a kill."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def __enter__(self) -> None:
        with explain_write_errors(self._home):
            self._file = os.open(self._home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise DaemonRunning(_who_runs(self._home)) from None
        # The record of an earlier daemon that was killed is out of date.
        _put_by(self._home)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _who_runs(home: Home) -> str:
    with suppress(OSError, ValueError, KeyError):
        text = json.loads(home.daemon.read_text())
        return (
            f"A daemon is already running on {home.path}: process {text['pid']} at {text['address']}. "
            "Use it, or stop it with `palyra down`."
        )
    return f"A daemon is already running on {home.path}. Use it, or stop it with `palyra down`."


class Announcement:
    """The record that tells clients of this home where its daemon is, while the daemon runs."""

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
        """Write the changed record, which `gateway/client/target.py` reads; return False if the disk is full."""
        self._said |= changed
        record = json.dumps(self._said)
        try:
            with explain_write_errors(self._home):
                _write_over(_spare(self._home), record)
                _spare(self._home).rename(self._home.daemon)
        except StorageFull:
            return False
        return True

    def warn(self, text: str) -> None:
        """Add a warning for clients that start or look up the daemon; it is also in the log and the status."""
        self.publish(warning=text)

    def withdraw(self) -> None:
        """Remove the record."""
        _put_by(self._home)


def _put_by(home: Home) -> None:
    """Remove the record but keep its file: the next daemon overwrites it, even on a full disk."""
    with suppress(OSError):
        home.daemon.rename(_spare(home))


def _spare(home: Home) -> Path:
    return home.daemon.with_name(f"{home.daemon.name}.old")


def _write_over(path: Path, text: str) -> None:
    """Overwrite a file within the space that it already has."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
