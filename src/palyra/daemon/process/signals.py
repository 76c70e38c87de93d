"""The signals that a daemon obeys: SIGTERM and SIGINT stop it, SIGHUP reloads its settings."""

import asyncio
import os
import signal


def stop_signal() -> asyncio.Event:
    """Return an event that is set by the first signal to stop; the second signal ends the process at once."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, on_signal)
    return stop


def reload_signal() -> asyncio.Event:
    """Return an event that is set by the signal to reload the settings."""
    reload = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    return reload
