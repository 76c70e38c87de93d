"""Edits config.toml for commands: comments and order stay, and what would not load is not written.

The file is replaced as a whole, so that it is never read half-written; and commands that change it wait for one
another.
"""

import fcntl
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from palyra import config
from palyra.core.errors import Conflict, Unavailable
from palyra.home import Home
from palyra.settings import Settings, SettingsInvalid

Change = Callable[[Any], None]
"""A change to the tables of the file, either plain dicts or those that keep their comments."""


class ConfigInvalid(SettingsInvalid):
    """The settings would not load any more after this change. Nothing was written."""


class ConfigNotEditable(Conflict):
    """This command cannot edit config.toml without losing other settings. Nothing was written. Edit it by hand."""


class ConfigChanged(Conflict):
    """Another process changed config.toml at the same time. Nothing was written. Try again."""


class ConfigNotWritable(Unavailable):
    """The settings cannot be written."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change that was made: the file's text before and after it, and the settings now in force."""

    before: str | None
    """None if there was no file."""
    after: str
    settings: Settings


def change(home: Home, what: Change) -> ConfigChange:
    """Change the settings, or raise and change nothing."""
    with _alone(home):
        before = _text(home)
        # What was wrong before is reported as it is: this change is not the cause.
        config.load(home)
        after = edited(before or "", what)
        reading = config.read(home, text=after)
        if reading.problems:
            raise ConfigInvalid(f"{reading.problems[0].what} {reading.problems[0].remedy} Nothing was written.")
        _replace(home, before, after)
    return ConfigChange(before, after, reading.settings)


def restore_text(home: Home, written: ConfigChange, undo: Change) -> None:
    """Restore the file; if it was changed since, only `undo` this change."""
    with _alone(home):
        untouched = _text(home) == written.after
        if untouched and written.before is None:
            home.config.unlink(missing_ok=True)
        elif untouched and written.before is not None:
            _replace(home, written.after, written.before)
    if not untouched:
        change(home, undo)


def edited(text: str, what: Change) -> str:
    """Return the text with a change, and everything else as it was."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    requested_document = tomllib.loads(text)
    what(requested_document)
    try:
        document = tomlkit.parse(text)
        what(document)
        made = tomlkit.dumps(document)
        if made.endswith("\n\n") and not text.endswith("\n\n"):
            made = made[:-1]
        if tomllib.loads(made) == requested_document:
            return made
    except (TOMLKitError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError, AssertionError):
        pass  # a way to write tables that the editor does not support
    raise ConfigNotEditable


def table_in(tables: Any, *path: str) -> Any:
    """Return the table at that path, created if it is missing, in tables of either kind."""
    for key in path:
        if key not in tables:
            tables[key] = _table_like(tables)
        tables = tables[key]
    return tables


def _table_like(tables: Any) -> Any:
    if type(tables) is dict:
        return {}
    import tomlkit

    return tomlkit.table()


def as_table(tables: Any, values: Mapping[str, Any]) -> Any:
    """Return values as a table of the same kind as the other."""
    made = _table_like(tables)
    made.update(values)
    if type(made) is not dict:
        import tomlkit

        made.add(tomlkit.nl())
    return made


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Lock the settings against other commands. An editor ignores the lock, so its changes are detected separately."""
    try:
        handle = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield  # if the folder cannot be opened, nothing will be written either
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _text(home: Home) -> str | None:
    try:
        # Keep its line endings.
        return home.config.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise SettingsInvalid(f"{home.config} is not valid UTF-8. Fix it, then try again.") from None
    except OSError as error:
        raise ConfigNotWritable(f"{home.config} cannot be read: {error.strerror}. Fix its permissions.") from error


def _replace(home: Home, before: str | None, after: str) -> None:
    # Keep a symbolic link: many people store their settings elsewhere.
    path = home.config.resolve()
    fresh: Path | None = None
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
        fresh = _written(path, after, mode)
        if _text(home) != before:
            raise ConfigChanged
        fresh.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise ConfigNotWritable(
            f"{home.config} cannot be written: {error.strerror}. Nothing was changed. Make the folder writable."
        ) from error
    finally:
        if fresh is not None:
            fresh.unlink(missing_ok=True)


def _written(beside: Path, text: str, mode: int) -> Path:
    """Return a new file next to another, with that text, synced to disk."""
    handle, name = mkstemp(dir=beside.parent, prefix=f".{beside.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            os.fchmod(handle, mode)
            file.write(text)
            file.flush()
            os.fsync(handle)
    except OSError:
        os.unlink(name)
        raise
    return Path(name)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
