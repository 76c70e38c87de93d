"""The result of one of the doctor's checks."""

from dataclasses import dataclass

from palyra.core.errors import PalyraError

OK = "ok"
WARN = "warn"
FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check, and how to fix it."""

    name: str
    state: str
    what: str
    remedy: str = ""


def error_text(error: Exception) -> str:
    """Return what an error says, of ours or of a library."""
    return error.detail if isinstance(error, PalyraError) else str(error)
