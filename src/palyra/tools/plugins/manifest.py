"""`plugin.toml`: describes a plugin, its tools, and what it requests. Pure: text in, a value or a fault out."""

import difflib
import re
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from palyra.core.errors import Denied, Invalid
from palyra.core.tool import FolderAccess, JsonObject, Risk
from palyra.policy.risk import highest
from palyra.sandbox.base import MIB
from palyra.sandbox.wasm.module import ModuleLimits
from palyra.tools.json_schema import ArgumentSchema, ToolSchemaInvalid

FILE = "plugin.toml"
MAX_BYTES = 256 * 1024
WORKSPACE = "workspace"
"""The folder of this name is the workspace of the run that calls."""
RESERVED = frozenset(
    "agent artifact files http journal mcp memory message palyra plugin plugins policy schedule session shell skill"
    " skills time tools wasm web".split()
)
"""First parts of names that are reserved for Palyra."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TOOL = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.wasm")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,39}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class PluginInvalid(Invalid):
    """The plugin's manifest is not valid."""


class PluginNetworkUnsupported(Denied):
    """The plugin requests network hosts, but modules have no network."""


class PluginFolder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder that the plugin requests. Which one it gets is decided when it is installed."""

    name: str
    access: FolderAccess = FolderAccess.READ
    purpose: str = ""

    @property
    def module_path(self) -> str:
        """The path at which the module sees it."""
        return f"/{self.name}"


class PluginTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool as its author describes it."""

    name: str
    description: Annotated[str, Meta(min_length=1, max_length=2000)]
    parameters: JsonObject = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    risk: Risk = Risk.LOW
    read_only: bool = False
    """It changes nothing: while it runs, the module can change nothing either."""
    repeatable: bool = False
    """A second run after an interruption does no harm."""


class PluginLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one call may use."""

    fuel: Annotated[int, Meta(ge=1_000, le=10**13)] = 5_000_000_000
    seconds: Annotated[int, Meta(ge=1, le=600)] = 10
    memory_mb: Annotated[int, Meta(ge=1, le=2048)] = 64
    output_kb: Annotated[int, Meta(ge=1, le=4096)] = 256

    @property
    def bounds(self) -> ModuleLimits:
        """The same limits for a module."""
        return ModuleLimits(
            fuel=self.fuel,
            wall=timedelta(seconds=self.seconds),
            memory_bytes=self.memory_mb * MIB,
            output_bytes=self.output_kb * 1024,
        )


class PluginManifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `plugin.toml`."""

    name: str
    version: str
    description: Annotated[str, Meta(min_length=1, max_length=2000)]
    module: str
    """The file with the module, next to the manifest."""
    sha256: str
    """Of that file."""
    tools: Annotated[tuple[PluginTool, ...], Meta(min_length=1, max_length=64)]
    folders: Annotated[tuple[PluginFolder, ...], Meta(max_length=16)] = ()
    hosts: tuple[str, ...] = ()
    limits: PluginLimits = PluginLimits()

    def full_name(self, tool: PluginTool) -> str:
        """Return the name by which agents and policies know a tool."""
        return f"{self.name}.{tool.name}"

    def may_write(self, tool: PluginTool) -> bool:
        """Tell whether the module can change a folder while this tool runs."""
        return not tool.read_only and any(folder.access is FolderAccess.WRITE for folder in self.folders)

    def risk_of(self, tool: PluginTool) -> Risk:
        """Return how risky a call is. The author's value never lowers what its capabilities imply."""
        return highest([tool.risk], at_least=Risk.MEDIUM if self.may_write(tool) else Risk.LOW)


def read(content: bytes, *, where: str = FILE) -> PluginManifest:
    """Return the content of a manifest; raise if anything in it is wrong."""
    if len(content) > MAX_BYTES:
        raise PluginInvalid(f"{where} is longer than {MAX_BYTES >> 10} KiB.")
    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PluginInvalid(f"{where} is not TOML: {error}.") from error
    if problem := next(_unknown_keys(table), None):
        raise PluginInvalid(f"{where}: {problem}")
    try:
        manifest = msgspec.convert(table, PluginManifest)
    except msgspec.ValidationError as error:
        raise PluginInvalid(f"{where}: {error}.") from error
    if problem := next(_faults(manifest), None):
        raise PluginInvalid(f"{where}: {problem}")
    if manifest.hosts:
        raise PluginNetworkUnsupported(
            f"{where} requests network hosts ({', '.join(manifest.hosts)[:200]}), but modules have no "
            "network. Let the agent fetch the data with http.fetch, and remove `hosts`."
        )
    return manifest


def _faults(manifest: PluginManifest) -> Iterator[str]:
    if not _NAME.fullmatch(manifest.name) or len(manifest.name) > 40:
        yield f"the name {manifest.name[:60]!r} must have up to 40 lower-case letters, digits and single dashes."
    if manifest.name in RESERVED:
        yield f"the name {manifest.name!r} is reserved. Choose another."
    if not _VERSION.fullmatch(manifest.version):
        yield f"the version {manifest.version[:60]!r} must be like 1.2.0."
    if not _MODULE.fullmatch(manifest.module):
        yield f"the module {manifest.module[:60]!r} must be the name of a .wasm file beside {FILE}."
    if not _DIGEST.fullmatch(manifest.sha256):
        yield "sha256 must be 64 hexadecimal digits, as `sha256sum` prints them."
    yield from _twice("tool", [tool.name for tool in manifest.tools])
    yield from _twice("folder", [folder.name for folder in manifest.folders])
    for folder in manifest.folders:
        if not _NAME.fullmatch(folder.name) or len(folder.name) > 40:
            yield f"the folder {folder.name[:60]!r} must have up to 40 lower-case letters, digits and single dashes."
    for tool in manifest.tools:
        if not _TOOL.fullmatch(tool.name) or len(tool.name) > 40:
            yield f"the tool {tool.name[:60]!r} must have up to 40 lower-case letters, digits and single underscores."
        try:
            ArgumentSchema(tool.parameters)
        except ToolSchemaInvalid as error:
            yield f"the parameters of {tool.name}: {error.detail}"


def _twice(what: str, names: list[str]) -> Iterator[str]:
    yield from (f"there are two {what}s {name!r}." for name in names if names.count(name) > 1)


def _unknown_keys(table: dict[str, Any]) -> Iterator[str]:
    """Find unknown keys, each with the nearest known one."""
    yield from _unknown(table, PluginManifest, "")
    for key, kind in (("tools", PluginTool), ("folders", PluginFolder)):
        listed = table.get(key)
        for index, entry in enumerate(listed if isinstance(listed, list) else (), 1):
            yield from _unknown(entry, kind, f" in {key} number {index}")
    yield from _unknown(table.get("limits"), PluginLimits, " in limits")


def _unknown(value: object, kind: type[Struct], where: str) -> Iterator[str]:
    names = kind.__struct_fields__
    for name in value if isinstance(value, dict) else ():
        if name not in names:
            near = difflib.get_close_matches(name[:60], names, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(names)}."
            yield f"unknown key {name[:60]!r}{where}. {remedy}"
