"""The home folder, which holds all data of one Palyra installation, and how it is found."""

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from palyra.core.errors import Conflict, Denied
from palyra.settings import SettingsInvalid

_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class DaemonRunning(Conflict):
    """A daemon is running on this home. Stop it first with `palyra down`."""


class HomeOwnerMismatch(Denied):
    """The home folder, or a file in it, belongs to another user."""


class HomePermissionsTooOpen(Denied):
    """Other users of this machine can change the home folder or a file in it, or can read a secret in it."""


class Home(Struct, frozen=True):
    """The folder that holds all data of one Palyra installation."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def lock(self) -> Path:
        return self.path / "daemon.lock"

    @property
    def daemon(self) -> Path:
        """The record of the running daemon: its process and its address."""
        return self.path / "daemon.json"

    @property
    def keep_file(self) -> Path:
        """The process id of a daemon that was started for one command and should keep running."""
        return self.path / "daemon.keep-running"

    @property
    def stop(self) -> Path:
        """The emergency stop file: everything is stopped while it exists; its text is the reason."""
        return self.path / "STOP"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def key(self) -> Path:
        """The key that signs the journal's anchors."""
        return self.path / "journal.key"

    @property
    def vault_key(self) -> Path:
        """The key that decrypts the vault; no backup contains it."""
        return self.path / "vault.key"

    @property
    def log(self) -> Path:
        return self.path / "palyrad.log"

    @property
    def policy(self) -> Path:
        """The folder with the owner's own policies."""
        return self.path / "policy"

    @property
    def prices(self) -> Path:
        """The owner's own prices for models."""
        return self.path / "prices.toml"

    @property
    def plugins(self) -> Path:
        """The folder with the installed plugins and their pins."""
        return self.path / "plugins"

    @property
    def workspace(self) -> Path:
        return self.path / "workspace"

    @property
    def history(self) -> Path:
        """The input history of the chat."""
        return self.path / "chat-history"

    @property
    def workspaces(self) -> tuple[Path, ...]:
        """The folders in the home that agents work in."""
        return self.workspace, self.path / "workspaces"

    def family(self) -> "tuple[Home, ...]":
        """Return this home and the homes of other profiles next to it: agents may reach none of them. Blocks."""
        result = [self]
        with suppress(OSError), os.scandir(self.path.parent) as beside:
            others = (Home(Path(entry.path)) for entry in beside if entry.name != self.path.name)
            result += [home for home in others if _is_home(home)]
        return tuple(result)


def _is_home(home: Home) -> bool:
    try:
        return home.token.is_file() and home.lock.is_file()
    except OSError:
        # A folder that we cannot read is closed to agents too.
        return False


def find_home(*, home: str | None = None, profile: str | None = None, environ: Mapping[str, str] = os.environ) -> Home:
    """Return the home folder: the one passed, PALYRA_HOME, or ~/.palyra; a profile is a home next to it.

    A home that this user may not use is refused: files that cannot be read would seem to be missing. A home that other
    users can change is refused too: a user who writes the settings or the policies decides what the daemon runs.
    """
    matching_home = choose_home(home=home, profile=profile, environ=environ)[0]
    for path in _needed(matching_home):
        if not _is_ours(path):
            raise foreign_file_message(matching_home, path)
    for path in (*_needed(matching_home), *_below(matching_home.policy), *_below(matching_home.plugins)):
        with suppress(FileNotFoundError, NotADirectoryError):
            _check_private(matching_home, path)
    return matching_home


def _below(folder: Path) -> Iterator[Path]:
    for location, folders, files in os.walk(folder):
        yield from (Path(location, name) for name in (*folders, *files))


def _check_private(home: Home, path: Path) -> None:
    matching_stat, me = path.stat(), os.geteuid()
    mode, location = stat.S_IMODE(matching_stat.st_mode), shlex.quote(str(path))
    # Root may manage the homes of other users; only its daemon must not run in one.
    if me and matching_stat.st_uid not in (me, 0):
        raise foreign_file_message(home, path)
    if mode & 0o022:
        raise HomePermissionsTooOpen(
            f"Other users can change {path} (mode {mode:04o}). Fix it with `chmod go-w {location}`."
        )
    if mode & 0o077 and path in (home.token, home.key, home.vault_key):
        raise HomePermissionsTooOpen(
            f"Other users can read the secret {path} (mode {mode:04o}). Fix it with `chmod 600 {location}`."
        )


def _needed(home: Home) -> tuple[Path, ...]:
    files = (home.config, home.token, home.key, home.vault_key, home.journal, home.log, home.lock, home.daemon)
    return (home.path, *files, home.policy, home.plugins, home.prices)


def _is_ours(path: Path) -> bool:
    """Return whether a file or folder can be read; True if it does not exist."""
    try:
        return os.access(path, os.R_OK | os.X_OK if stat.S_ISDIR(path.stat().st_mode) else os.R_OK)
    except PermissionError:
        return False
    except (OSError, ValueError):
        return True


def foreign_file_message(home: Home, path: Path) -> HomeOwnerMismatch:
    """Return the error for a file of the home that this user may not use."""
    me, location = _name(os.geteuid()), shlex.quote(str(home.path))
    try:
        owner = _name(path.stat().st_uid)
    except OSError:
        return HomeOwnerMismatch(f"User {me} has no access to {path}. Name another home with --home.")
    if owner == me:
        return HomeOwnerMismatch(
            f"{path} is yours, but its permissions deny you access. Fix it with `chmod -R u+rwX {location}`."
        )
    text = f"{path} belongs to {owner}, and you are {me}."
    if owner != "root":
        return HomeOwnerMismatch(f"{text} Run the command as {owner}, or name another home with --home.")
    return HomeOwnerMismatch(
        f"{text} If a daemon of root uses it, stop it with `sudo palyra --home {location} down`; then run "
        f"`sudo chown -R {shlex.quote(me)} {location}`. Or name another home with --home."
    )


def expand_home(path: str) -> Path:
    """Return a path with its `~` replaced by the user's home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        whose = path.partition("/")[0]
        raise SettingsInvalid(
            f"The home folder {whose} of {path} is unknown. If it is your own, HOME is not set and user "
            f"{os.geteuid()} has no entry in /etc/passwd. Set HOME, or give all folders as absolute "
            "paths (PALYRA_HOME)."
        ) from error


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def choose_home(
    *, home: str | None = None, profile: str | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[Home, tuple[str, ...]]:
    """Return the home folder and why it was chosen."""
    named = environ.get("PALYRA_HOME")
    base = expand_home(home or named or "~/.palyra").absolute()
    because = [f"--home is {home}" if home else f"PALYRA_HOME is {named}" if named else "~/.palyra is the usual home"]
    name = profile or environ.get("PALYRA_PROFILE")
    if not name:
        return Home(base), tuple(because)
    if not _PROFILE.fullmatch(name):
        raise SettingsInvalid(f"{name!r} is not a valid profile name. Use up to 64 letters, digits, '-' and '_'.")
    because.append(f"--profile is {name}" if profile else f"PALYRA_PROFILE is {name}")
    return Home(base.with_name(f"{base.name}-{name}")), tuple(because)
