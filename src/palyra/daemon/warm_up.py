"""The warm-up: once the daemon serves, it loads the code that first turns need and a start does not.

A start stays as short as it was, and the first message does not wait for imports.
"""

import asyncio
import logging
import sys
import time
from importlib import import_module

from palyra.core.model import Dialect
from palyra.settings import Settings

TOOL_CALL = ("cedarpy", "palyra.core.scan")
"""What judges a call, and what looks at its result."""
REMOTE_MODEL = ("palyra.providers.line", "encodings.idna")
"""The HTTP client of models, and what looks up a host: 8 MB, loaded where a model is asked over HTTP."""

SWITCH_SECONDS = 0.0005
"""How long the event loop waits for an import that is under way."""

log = logging.getLogger(__name__)


async def warm_up(settings: Settings) -> None:
    """Load what the first turns of these settings need, beside the event loop."""
    await asyncio.to_thread(_load, modules(settings))


def modules(settings: Settings) -> tuple[str, ...]:
    """Return the names of the modules to load."""
    remote = any(table.dialect is not Dialect.LOCAL for table in settings.model.providers.values())
    return TOOL_CALL + REMOTE_MODEL if remote else TOOL_CALL


def _load(names: tuple[str, ...]) -> None:
    began = time.thread_time()
    usual = sys.getswitchinterval()
    # An import computes all the time. With the usual 5 ms, every wait of the event loop would end 5 ms late.
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        for name in names:
            import_module(name)
    except ImportError as error:
        # The daemon serves without it. What needs the module says so itself, each time.
        log.warning("the warm-up could not load a module: %s", error)
    finally:
        sys.setswitchinterval(usual)
    log.info("warmed up in %.0f ms of processor time", (time.thread_time() - began) * 1000)
