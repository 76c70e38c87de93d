"""`palyrad`: the daemon in the foreground, for service supervisors and for `palyra up`."""

import os
import sys
import traceback
from contextlib import suppress

import click

from palyra.cli.app import run
from palyra.cli.options import Invocation, PalyraCommand
from palyra.core.errors import PalyraError
from palyra.core.version import VERSION
from palyra.home import Home
from palyra.settings import Settings


class ReadySignal:
    """Reports to the parent process, once, that the daemon serves or why it does not."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def serving(self, address: str) -> None:
        """Report where the daemon answers."""
        if self._descriptor is None:
            print(f"palyrad {VERSION} is listening at {address}", file=sys.stderr, flush=True)
        self._write(f"ready {address}")

    def checked(self) -> None:
        """Report that the daemon could start."""
        if self._descriptor is None:
            print("The daemon can be started.")
        self._write("ready")

    def failed(self, error: PalyraError) -> None:
        """Report why the daemon did not start."""
        self._write(f"error {error.code} {' '.join(error.detail.split())}")

    def _write(self, line: str) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # The parent process may be gone; the daemon serves all the same.
            with suppress(OSError):
                os.write(descriptor, f"{line}\n".encode())
            with suppress(OSError):
                os.close(descriptor)


@click.command(cls=PalyraCommand)
@click.version_option(VERSION, "--version", message="palyrad %(version)s", help="Show the version.")
@click.option("--debug", is_flag=True, envvar="PALYRA_DEBUG", hidden=True, help="Show tracebacks.")
@click.option("--ready-fd", type=int, hidden=True, help="Report on this file descriptor when the daemon is ready.")
@click.option(
    "--check", is_flag=True, help="Check whether the daemon could start, then exit. Another daemon may be running."
)
def palyrad(invocation: Invocation, ready_fd: int | None, debug: bool, check: bool) -> int:
    """Run the Palyra daemon in the foreground until SIGTERM or Ctrl-C."""
    invocation.debug = debug
    sign = ReadySignal(ready_fd)
    try:
        home, settings = invocation.home, invocation.settings
        # Imported here, after the settings are known to be valid: the daemon is most of Palyra.
        from palyra.daemon.serve import serve

        if check:
            return _check(home, settings, sign)
        return serve(home, settings, ready=sign.serving)
    except PalyraError as error:
        sign.failed(error)
        raise
    except Exception:
        # The parent process may be gone when a person looks for the reason, so it is logged.
        traceback.print_exc()
        raise


def _check(home: Home, settings: Settings, sign: ReadySignal) -> int:
    from palyra.daemon.process.system_clock import SystemClock
    from palyra.daemon.start_check import check

    check(home, settings, clock=SystemClock())
    sign.checked()
    return 0


def main() -> None:
    """Run the daemon and exit the process with its exit code."""
    sys.exit(run(palyrad, None, prog="palyrad"))


if __name__ == "__main__":
    main()
