"""Changes to config.toml by commands: comments and order stay, and what would not load is not written.

The file is replaced as a whole, so that nobody ever reads half of it; and commands that change it wait for one another.
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
"""What is done to the tables of the file, be they plain dicts or those that keep their comments."""


class ConfigNotChanged(SettingsInvalid):
    """The settings would not load any more after this change. Nothing was written."""


class ConfigTooWoven(Conflict):
    """The settings are written in a way that this command can not change without disturbing others. Change the file by
    hand. Nothing was written."""


class ConfigMeanwhile(Conflict):
    """The settings were changed by somebody else in this very moment. Nothing was written; try again."""


class ConfigUnwritable(Unavailable):
    """The settings can not be written."""


@dataclass(frozen=True, slots=True)
class Written:
    """A change that was made: the file's text before and after it, and the settings that now hold."""

    before: str | None
    """None if there was no file."""
    after: str
    settings: Settings


def change(home: Home, what: Change) -> Written:
    """Make a change to the settings, or raise and change nothing."""
    with _alone(home):
        before = _text(home)
        # What was wrong before is told as it is: it is not this change that does not load.
        config.load(home)
        after = edited(before or "", what)
        reading = config.read(home, text=after)
        if reading.problems:
            raise ConfigNotChanged(f"{reading.problems[0].what} {reading.problems[0].remedy} Nothing was written.")
        _replace(home, before, after)
    return Written(before, after, reading.settings)


def take_back(home: Home, written: Written, undo: Change) -> None:
    """Bring the file back as it was; if somebody has changed it since, `undo` only what was done."""
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

    wanted = tomllib.loads(text)
    what(wanted)
    try:
        document = tomlkit.parse(text)
        what(document)
        made = tomlkit.dumps(document)
        if made.endswith("\n\n") and not text.endswith("\n\n"):
            made = made[:-1]
        if tomllib.loads(made) == wanted:
            return made
    except (TOMLKitError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError, AssertionError):
        pass  # a way to write tables that the editor does not master
    raise ConfigTooWoven


def table_in(tables: Any, *path: str) -> Any:
    """Return the table of that path, made if it is missing, in tables of either kind."""
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
    """Return values as a table of the same kind as those."""
    made = _table_like(tables)
    made.update(values)
    if type(made) is not dict:
        import tomlkit

        made.add(tomlkit.nl())
    return made


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Keep other commands from the settings. An editor knows nothing of that, and is watched for apart."""
    try:
        handle = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield  # where there is no folder that can be opened, nothing will be written either
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _text(home: Home) -> str | None:
    try:
        # With the line ends that it has.
        return home.config.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise SettingsInvalid(f"{home.config} is no UTF-8. Mend it, then try again.") from None
    except OSError as error:
        raise ConfigUnwritable(f"{home.config} can not be read: {error.strerror}. Make it readable.") from error


def _replace(home: Home, before: str | None, after: str) -> None:
    # A link stays one: many keep their settings elsewhere.
    path = home.config.resolve()
    fresh: Path | None = None
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
        fresh = _written(path, after, mode)
        if _text(home) != before:
            raise ConfigMeanwhile
        fresh.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise ConfigUnwritable(
            f"{home.config} can not be written: {error.strerror}. Nothing was changed; make the folder writable."
        ) from error
    finally:
        if fresh is not None:
            fresh.unlink(missing_ok=True)


def _written(beside: Path, text: str, mode: int) -> Path:
    """Return a new file beside another, with that text, safe on the disk."""
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
