"""Plugins to install: folders with a manifest and a module."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from palyra.home import Home
from palyra.tools.base import Tool
from palyra.tools.plugins import installed
from palyra.tools.plugins.installed import Plugin
from palyra.tools.plugins.tools import tools_of
from tests.support import modules

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)

TOOL = """
[[tools]]
name = "run"
description = "Run it."
"""


def manifest(
    module: bytes = modules.ECHOES, *, name: str = "probe", version: str = "1.0.0", top: str = "", rest: str = TOOL
) -> str:
    """Return the text of a manifest; `top` are further keys, `rest` its tables."""
    return f"""
name = "{name}"
version = "{version}"
description = "Tries something."
module = "{name}.wasm"
sha256 = "{hashlib.sha256(module).hexdigest()}"
{top}
{rest}
"""


def a_plugin(folder: Path, module: bytes = modules.ECHOES, *, name: str = "probe", text: str | None = None) -> Path:
    """Make the folder of a plugin, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plugin.toml").write_text(text if text is not None else manifest(module, name=name))
    (folder / f"{name}.wasm").write_bytes(module)
    return folder


def installed_from(home: Home, folder: Path, *, given: Mapping[str, str] | None = None) -> Plugin:
    source = installed.read_offered_plugin(folder)
    folders = installed.folders_for(home, source.manifest, given or {}, before={})
    return installed.install(home, source, folders, at=AT)


def tools_from(home: Home, folder: Path, *, given: Mapping[str, str] | None = None) -> list[Tool]:
    """Install a plugin and return its tools."""
    return list(tools_of(installed_from(home, folder, given=given)))
