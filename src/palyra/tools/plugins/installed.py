"""The plugins of a home: copied in, pinned by their content, and not used if they differ from their pin.

`plugins/NAME.json` is the pin. It names the folder that holds the plugin, the digests of its two files, and the folders
that it may use. Installing, upgrading and removing replace that one file, so each is atomic,
and a daemon that reads meanwhile sees one state or the other. Everything here blocks.
"""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from palyra.core.errors import Denied, Internal, Invalid, NotFound, PalyraError
from palyra.home import Home
from palyra.sandbox.processes.mounts import links_on_the_way
from palyra.sandbox.wasm.module import MAX_MODULE_BYTES
from palyra.tools.plugins import manifest as manifests
from palyra.tools.plugins.manifest import WORKSPACE, PluginManifest

FORMAT = 1
MAX_PIN_BYTES = 64 * 1024

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIN = re.compile(r"([a-z][a-z0-9-]{0,39})\.json")


class PluginNotFound(NotFound):
    """Unknown plugin. `palyra plugins list` lists them."""


class PluginNotReadable(Invalid):
    """The plugin cannot be read. Name a folder with a plugin.toml and the module that it names."""


class PluginMismatch(Invalid):
    """The module does not match the manifest."""


class PluginChanged(Denied):
    """The plugin has changed since it was installed, so it is not run. Install it again if the change is yours."""


class PluginFolderMissing(Invalid):
    """The plugin needs a folder, and none was given."""


class PluginFolderNotAllowed(Denied):
    """A plugin may not use this folder."""


class PluginFolderNotWritable(Internal):
    """The plugin folder cannot be written."""


@dataclass(frozen=True, slots=True)
class PluginSource:
    """A plugin that is offered for installation."""

    manifest: PluginManifest
    text: bytes
    module: bytes


class PluginPin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was installed, and the folders that it may use."""

    format: int = FORMAT
    name: str
    version: str
    place: str
    """The folder with its files, below `plugins`."""
    manifest_sha256: str
    module_sha256: str
    folders: dict[str, str] = {}
    """By their names in the manifest."""
    installed_at: datetime

    @property
    def digest(self) -> str:
        """Identifies this plugin together with its folders."""
        decides = [self.name, self.manifest_sha256, self.module_sha256, sorted(self.folders.items())]
        return hashlib.sha256(msgspec.json.encode(decides)).hexdigest()


@dataclass(frozen=True, slots=True)
class Plugin:
    """An installed plugin whose manifest is the pinned one."""

    manifest: PluginManifest
    pin: PluginPin
    path: Path
    """The folder with its files."""

    @property
    def digest(self) -> str:
        """See `PluginPin`."""
        return self.pin.digest

    def module(self) -> bytes:
        """Return the module; raise `PluginChanged` if it or the manifest is not the pinned one."""
        _pinned(self.path / manifests.FILE, self.pin.manifest_sha256, self.pin, limit=manifests.MAX_BYTES)
        return _pinned(self.path / self.manifest.module, self.pin.module_sha256, self.pin, limit=MAX_MODULE_BYTES)


@dataclass(frozen=True, slots=True)
class FaultyPlugin:
    """A plugin that exists and cannot be used."""

    name: str
    error: PalyraError


@dataclass(frozen=True, slots=True)
class PluginCopy:
    """The files of a plugin as they were at one moment, by their names below `plugins`."""

    name: str
    files: dict[str, bytes]


def read_offered_plugin(folder: Path) -> PluginSource:
    """Read a plugin that is to be installed; raise if it is invalid."""
    try:
        text = _read(folder / manifests.FILE, limit=manifests.MAX_BYTES)
    except OSError as error:
        raise PluginNotReadable(
            f"{folder / manifests.FILE} cannot be read: {error.strerror}. Name a folder with a {manifests.FILE}."
        ) from error
    manifest = manifests.read(text, where=str(folder / manifests.FILE))
    path = folder / manifest.module
    try:
        module = _read(path, limit=MAX_MODULE_BYTES)
    except OSError as error:
        raise PluginNotReadable(f"The module {path} cannot be read: {error.strerror}.") from error
    match = _digest(module)
    if match != manifest.sha256:
        raise PluginMismatch(
            f"{path} has the sha256 {match}, but the manifest says {manifest.sha256}. Get the plugin "
            "again; if you built it yourself, put the new digest into the manifest."
        )
    return PluginSource(manifest, text, module)


def folders_for(
    home: Home, manifest: PluginManifest, arguments: Mapping[str, str], *, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the folders that a plugin gets: those `given` by name, else those that it had before."""
    names = {folder.name for folder in manifest.folders if folder.name != WORKSPACE}
    if unknown := sorted(set(arguments) - names):
        request = f"needs {', '.join(sorted(names))}" if names else "needs no folder that you could choose"
        raise PluginFolderMissing(f"{manifest.name} has no folder {unknown[0]!r}: it {request}.")
    values: dict[str, str] = {}
    for name in sorted(names):
        path = arguments.get(name) or before.get(name)
        if path is None:
            raise PluginFolderMissing(
                f"{manifest.name} needs a folder {name!r}. Choose it with --folder {name}=/path/to/it."
            )
        values[name] = _free_folder(home, path)
    return values


def install(home: Home, source: PluginSource, folders: Mapping[str, str], *, at: datetime) -> Plugin:
    """Install a plugin, replacing the one of the same name, if there is one."""
    name = source.manifest.name
    pin = PluginPin(
        name=name,
        version=source.manifest.version,
        place=f"{name}@{_digest(source.text + source.module)[:16]}",
        manifest_sha256=_digest(source.text),
        module_sha256=_digest(source.module),
        folders=dict(folders),
        installed_at=at,
    )
    path = home.plugins / pin.place
    try:
        # One by one: the mode applies to the last folder only, not to those above it.
        for folder in (home.path, home.plugins, path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path / manifests.FILE, source.text)
        _write(path / source.manifest.module, source.module)
        _write(_pin_of(home, name), msgspec.json.format(msgspec.json.encode(pin), indent=2) + b"\n")
    except OSError as error:
        raise PluginFolderNotWritable(f"The plugin cannot be written to {home.plugins}: {error.strerror}.") from error
    _sweep(home, name, spare=pin.place)
    return Plugin(source.manifest, pin, path)


def remove(home: Home, name: str) -> None:
    """Remove a plugin, whatever state it is in."""
    try:
        _pin_of(home, name).unlink()
    except FileNotFoundError:
        raise PluginNotFound(f"Unknown plugin {name!r}. `palyra plugins list` lists them.") from None
    except OSError as error:
        raise PluginFolderNotWritable(f"The plugin cannot be removed from {home.plugins}: {error.strerror}.") from error
    _sweep(home, name, spare=None)


def load(home: Home, name: str) -> Plugin:
    """Return a plugin; raise `PluginNotFound`, or `PluginChanged` if its manifest is not the pinned one."""
    try:
        pin = msgspec.json.decode(_pin_text(home, name), type=PluginPin)
    except msgspec.DecodeError as error:
        raise PluginChanged(f"The pin of plugin {name} cannot be read: {error}. Install the plugin again.") from error
    if pin.name != name or pin.format != FORMAT or pin.place != Path(pin.place).name:
        raise PluginChanged(f"The pin of plugin {name} belongs to another plugin. Install the plugin again.")
    path = home.plugins / pin.place
    text = _pinned(path / manifests.FILE, pin.manifest_sha256, pin, limit=manifests.MAX_BYTES)
    return Plugin(manifests.read(text, where=str(path / manifests.FILE)), pin, path)


def load_all(home: Home) -> Iterator[Plugin | FaultyPlugin]:
    """Return every plugin by name, with the reason for those that cannot be used."""
    for name in _names(home):
        try:
            yield load(home, name)
        except PalyraError as error:
            yield FaultyPlugin(name, error)


def copies(home: Home) -> Iterator[PluginCopy | FaultyPlugin]:
    """Return the files of every plugin by name; for those that differ from their pin, why there is no copy."""
    for name in _names(home):
        try:
            yield _copy(home, name)
        except PluginNotFound:
            continue  # It was removed meanwhile.
        except PalyraError as error:
            yield FaultyPlugin(name, error)


def _copy(home: Home, name: str) -> PluginCopy:
    while True:
        pin = _pin_text(home, name)
        try:
            plugin = load(home, name)
            text = _pinned(
                plugin.path / manifests.FILE, plugin.pin.manifest_sha256, plugin.pin, limit=manifests.MAX_BYTES
            )
            files = {manifests.FILE: text, plugin.manifest.module: plugin.module()}
        except PluginChanged:
            # An upgrade installs another version, and deletes the files of this one.
            if _pin_text(home, name) == pin:
                raise
        else:
            if _pin_text(home, name) == pin:
                placed = {f"{plugin.pin.place}/{file}": content for file, content in files.items()}
                return PluginCopy(name, {**placed, f"{name}.json": pin})


def _names(home: Home) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(match[1] for match in map(_PIN.fullmatch, os.listdir(home.plugins)) if match)
    return []


def _pin_text(home: Home, name: str) -> bytes:
    try:
        return _read(_pin_of(home, name), limit=MAX_PIN_BYTES)
    except FileNotFoundError:
        raise PluginNotFound(f"Unknown plugin {name!r}. `palyra plugins list` lists them.") from None
    except (OSError, PluginNotReadable) as error:
        raise PluginChanged(f"The pin of plugin {name} cannot be read: {error}. Install the plugin again.") from error


def _pin_of(home: Home, name: str) -> Path:
    if not _PIN.fullmatch(f"{name}.json"):
        raise PluginNotFound(f"Unknown plugin {name[:60]!r}. `palyra plugins list` lists them.")
    return home.plugins / f"{name}.json"


def _free_folder(home: Home, text: str) -> str:
    """Return the real path of a folder; refuse one that contains Palyra's own home, or is inside it."""
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise PluginFolderNotAllowed(f"{text!r} is not an absolute path. Write the full path.")
    real = Path(os.path.realpath(path))
    if not real.is_dir():
        raise PluginFolderNotAllowed(f"{text} is not a folder. Create it, or name another one.")
    own = Path(os.path.realpath(home.path))
    if own.is_relative_to(real):
        raise PluginFolderNotAllowed(
            f"{text} contains Palyra's own home, which no plugin may see. Name a smaller folder."
        )
    if link := next((link for link in links_on_the_way(home.path) if link.is_relative_to(real)), None):
        raise PluginFolderNotAllowed(f"{text} contains {link}, the link to Palyra's own home. Name a smaller folder.")
    shared = tuple(Path(os.path.realpath(spared)) for spared in (home.workspace,))
    if real.is_relative_to(own) and not any(real.is_relative_to(spared) for spared in shared):
        raise PluginFolderNotAllowed(
            f"{text} is inside Palyra's own home, which no plugin may see. Name another folder."
        )
    return str(real)


def _pinned(path: Path, digest: str, pin: PluginPin, *, limit: int) -> bytes:
    try:
        content = _read(path, limit=limit)
    except (OSError, PluginNotReadable) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a regular file, or too large"
        raise PluginChanged(
            f"Plugin {pin.name} is not run: {path.name} cannot be read ({why}). Install the plugin again."
        ) from error
    if _digest(content) != digest:
        raise PluginChanged(
            f"Plugin {pin.name} is not run: {path.name} is not what was installed (sha256 "
            f"{_digest(content)[:16]}…, pinned {digest[:16]}…). If you changed it, install the plugin "
            "again; if not, find out who did."
        )
    return content


def _read(path: Path, *, limit: int) -> bytes:
    descriptor = os.open(path, _FILE)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PluginNotReadable(f"{path} is not a regular file.")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise PluginNotReadable(f"{path} is larger than {limit >> 10} KiB.")
    return content


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise


def _sweep(home: Home, name: str, *, spare: str | None) -> None:
    """Delete the files of earlier versions; what cannot be deleted does no harm."""
    for path in home.plugins.glob(f"{name}@*"):
        if path.name != spare:
            shutil.rmtree(path, ignore_errors=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
