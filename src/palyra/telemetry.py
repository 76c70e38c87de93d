"""The log: one line of JSON per event, in a file of limited size."""

import io
import json
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from palyra.core.text.redaction import redact, redact_fields

LOG_BYTES = 8 * 1024 * 1024
LOGS_KEPT = 3
MAX_WAITING_LINES = 1_000
"""How many lines are kept in memory while the disk is full."""

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLogFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with the fields of `extra` next to the message."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        """`hide` removes known secrets from a text."""
        super().__init__()
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        line |= redact_fields({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if record.exc_info:
            line["error"] = redact(self.formatException(record.exc_info))
        return json.dumps(self._hidden(line), ensure_ascii=False)

    def _hidden(self, value: object) -> object:
        """Return the value as JSON data, with `hide` applied to every text in it."""
        match value:
            case None | bool() | int() | float():
                return value
            case dict():
                return {self._hide(str(name)): self._hidden(part) for name, part in value.items()}
            case list() | tuple():
                return [self._hidden(part) for part in value]
            case _:
                return self._hide(str(value))


class LogFile(io.FileIO):
    """The log file, opened to append: lines are written whole, and those that do not fit on a full disk are kept."""

    def __init__(self, path: str, waiting: deque[bytes]) -> None:
        """`waiting` holds lines that could not be written yet; it outlives this file when the log is rotated."""
        super().__init__(path, "ab")
        self._waiting = waiting
        if _is_torn(path):
            # The previous process, or the machine, crashed while writing.
            waiting.appendleft(b"\n")

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write a line after those that wait. A full disk is not an error here: it is reported elsewhere."""
        line = bytes(data)
        self._waiting.append(line)
        with suppress(OSError):
            while self._waiting and self._fits(self._waiting[0]):
                self._waiting.popleft()
        return len(line)

    def _fits(self, line: bytes) -> bool:
        size = os.fstat(self.fileno()).st_size
        written = super().write(line)
        if written == len(line):
            return True
        if os.fstat(self.fileno()).st_size == size + written:  # no other process has appended to it
            os.ftruncate(self.fileno(), size)
        return False


def _is_torn(path: str) -> bool:
    with open(path, "rb") as file:
        return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"


class LogHandler(RotatingFileHandler):
    """Writes the log to a file, and starts a new one when it is large."""

    def __init__(self, path: Path) -> None:
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING_LINES)
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        # Unbuffered: data left in a buffer when the file is closed on a full disk would raise an error.
        return io.TextIOWrapper(LogFile(self.baseFilename, self._waiting), encoding="utf-8", write_through=True)


def log_to(path: Path, *, hide: Callable[[str], str]) -> None:
    """Write the daemon's log to a file, readable by its owner only (the process sets its umask)."""
    # A full disk must not fill standard error with tracebacks about the log.
    logging.raiseExceptions = False
    handler = LogHandler(path)
    handler.setFormatter(JsonLogFormatter(hide))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
