"""The base classes of all errors: what happened, why, and what the caller can do about it.

The six families are not raised themselves outside of tests. Each concrete error names its fact, is defined in the file
that raises it, and has its docstring as default message. The code is the class name in snake case and is part of the
interface: clients match on it, so a class is never renamed. The family decides the status that a transport answers with
(`gateway/error_status.py`).
"""

import re
from datetime import timedelta
from typing import ClassVar

_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class PalyraError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            cls.code = _CAPITAL.sub("_", cls.__name__).lower()

    def __init__(self, detail: str | None = None) -> None:
        self.detail = detail or " ".join((type(self).__doc__ or "").split())
        super().__init__(self.detail)


class Invalid(PalyraError):
    """The request can not be understood; the same request will never succeed."""


class NotFound(PalyraError):
    """There is no such thing, or it is not yours to see."""


class Conflict(PalyraError):
    """The request contradicts what is recorded."""


class Denied(PalyraError):
    """This is not allowed."""


class Unavailable(PalyraError):
    """Not now; the same request may succeed later."""

    def __init__(self, detail: str | None = None, *, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class Internal(PalyraError):
    """Palyra itself is at fault."""


class FileExists(Conflict):
    """The file exists already. Choose another name."""


class JournalClosed(Unavailable):
    """The journal is closed: the daemon is stopping."""


class FileChanged(Conflict):
    """The file changed since it was read. Nothing was written; read it and try again."""


class OffsetBeyondEnd(Invalid):
    """The offset lies beyond the end."""


class SearchQueryEmpty(Invalid):
    """The search has no word in it. Give at least one."""
