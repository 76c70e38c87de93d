"""The warm-up: once the daemon serves, it imports the modules that the first turns need but a start does not.

So a start stays short, and the first message does not wait for imports.
"""

import asyncio
import logging
import sys
import time
from importlib import import_module

from palyra.core.model.catalog import DialectName
from palyra.settings import Settings

TOOL_CALL = ("cedarpy", "palyra.core.text.scanner")
"""The modules that decide about a call and scan its result."""
REMOTE_MODEL = ("palyra.providers.transport.session", "encodings.idna")
"""The HTTP client for models and its name lookup: 8 MB, loaded only if a model is called over HTTP."""

SWITCH_SECONDS = 0.0005
"""How long the event loop waits for an import in progress."""

log = logging.getLogger(__name__)


async def warm_up(settings: Settings) -> None:
    """Import what the first turns with these settings need, in a thread."""
    await asyncio.to_thread(_load, modules(settings))


def modules(settings: Settings) -> tuple[str, ...]:
    """Return the names of the modules to import."""
    remote = any(table.dialect is not DialectName.LOCAL for table in settings.model.providers.values())
    return TOOL_CALL + REMOTE_MODEL if remote else TOOL_CALL


def _load(names: tuple[str, ...]) -> None:
    began = time.thread_time()
    usual = sys.getswitchinterval()
    # An import uses the CPU all the time. With the default of 5 ms, every wait of the event loop would end 5 ms late.
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        for name in names:
            import_module(name)
    except ImportError as error:
        # The daemon works without it. The code that needs the module reports the error each time.
        log.warning("the warm-up could not load a module: %s", error)
    finally:
        sys.setswitchinterval(usual)
    log.info("warmed up in %.0f ms of processor time", (time.thread_time() - began) * 1000)
