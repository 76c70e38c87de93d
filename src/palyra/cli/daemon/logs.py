"""`palyra logs`: the daemon's log."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.terminal.output import clock_time, paint, say
from palyra.cli.terminal.printable import printable, printable_line
from palyra.core.text.escaping import printable_json

BLOCK_BYTES = 64 * 1024
POLL_SECONDS = 0.25

_LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


@click.command(cls=PalyraCommand)
@click.option(
    "-n", "--lines", default=50, show_default=True, type=click.IntRange(min=0), help="Number of lines to show."
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
def logs(invocation: Invocation, *, lines: int, follow: bool) -> None:
    """Show the daemon's log. With --json, prints the lines as stored."""
    path = invocation.home.log
    if not path.exists() and not follow:
        say(f"palyra: no log yet: {path} does not exist.")
        return
    for line in followed(path, lines) if follow else last_lines(path, lines):
        print(printable_json(line) if invocation.json else log_line(line), flush=follow)


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file without reading the rest of it."""
    with path.open("rb") as file:
        return _lines(_tail(file, count))


def log_line(text: str) -> str:
    """Return a stored line for a person; what is not JSON (a crash) is shown as it is."""
    try:
        record = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return printable_line(text)
    trace = record.pop("error", "")
    at, level, logger, message = (str(record.pop(name, "")) for name in ("at", "level", "logger", "message"))
    rest = " ".join(f"{name}={_plain(value)}" for name, value in record.items())
    head = " ".join(
        filter(
            None,
            [
                paint(_time(at), "dim"),
                paint(printable_line(level).ljust(7), _LEVELS.get(level.upper(), "dim")),
                paint(printable_line(logger), "dim"),
                printable_line(message),
                paint(printable_line(rest), "dim"),
            ],
        )
    )
    return "\n    ".join([head, *printable(str(trace)).splitlines()])


def followed(path: Path, count: int) -> Iterator[str]:
    """Yield the last lines, then new ones, also after the file was replaced or truncated."""
    index, identity, rest = 0, -1, b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        tail = _tail(file, count)
        index, identity = file.tell(), os.fstat(file.fileno()).st_ino
        full_data, _, rest = tail.rpartition(b"\n")
        yield from _lines(full_data)
    while True:
        data = b""
        with suppress(FileNotFoundError), path.open("rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_ino != identity or stat.st_size < index:
                index, identity, rest = 0, stat.st_ino, b""
            file.seek(index)
            data = file.read(BLOCK_BYTES)
        index += len(data)
        full_data, _, rest = (rest + data).rpartition(b"\n")
        yield from _lines(full_data)
        if not data:
            time.sleep(POLL_SECONDS)


def _tail(file: BinaryIO, count: int) -> bytes:
    """Return the end of a file with this many lines, and leave the file at its end."""
    end = index = file.seek(0, os.SEEK_END)
    data = b""
    while index > 0 and count > 0 and data.count(b"\n") <= count:
        step = min(BLOCK_BYTES, index)
        index = file.seek(index - step)
        data = file.read(step) + data
    file.seek(end)
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""


def _lines(data: bytes) -> list[str]:
    # Not `splitlines` of the text: JSON may hold characters that it treats as the end of a line.
    return [line.decode(errors="replace") for line in data.splitlines()]


def _time(at: str) -> str:
    try:
        return clock_time(datetime.fromisoformat(at))
    except ValueError:
        return printable_line(at)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
