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
    """The request is not valid. The same request will never succeed."""


class NotFound(PalyraError):
    """It does not exist, or you may not see it."""


class Conflict(PalyraError):
    """The request conflicts with the recorded state."""


class Denied(PalyraError):
    """This is not allowed."""


class Unavailable(PalyraError):
    """This is not possible right now. The same request may succeed later."""

    def __init__(self, detail: str | None = None, *, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class Internal(PalyraError):
    """Palyra itself has failed."""


class FileExists(Conflict):
    """The file already exists. Choose another name."""


class JournalClosed(Unavailable):
    """The journal is closed: the daemon is stopping."""


class FileChanged(Conflict):
    """The file has changed since it was read. Nothing was written. Read it again and retry."""


class OffsetBeyondEnd(Invalid):
    """The offset is beyond the end."""


class SearchQueryEmpty(Invalid):
    """The search query is empty. Give at least one word."""
