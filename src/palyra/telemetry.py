"""The log: one line of JSON for each event, in a file that can not grow without limit."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from palyra.core.redact import redact, redact_fields

LOG_BYTES = 8 * 1024 * 1024
LOGS_KEPT = 3

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON; what was given as `extra` stands beside the message."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        """`hide` takes out of a text what is known to be secret, whatever it looks like."""
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
        """Return the value as JSON has it, with every text in it searched."""
        match value:
            case None | bool() | int() | float():
                return value
            case dict():
                return {self._hide(str(name)): self._hidden(part) for name, part in value.items()}
            case list() | tuple():
                return [self._hidden(part) for part in value]
            case _:
                return self._hide(str(value))


def log_to(path: Path, *, hide: Callable[[str], str]) -> None:
    """Send the daemon's log to a file, readable by its owner only (the process sets its umask)."""
    # A full disk must not fill standard error with tracebacks about the log.
    logging.raiseExceptions = False
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8")
    handler.setFormatter(JsonLines(hide))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
