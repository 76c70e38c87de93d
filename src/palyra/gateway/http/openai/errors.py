"""Errors as programs expect them that speak to OpenAI: `{"error": {"message", "type", "param", "code"}}`.

`x-should-retry` is a header that the official clients obey. They would send again by themselves whatever ends with 409,
429 or 5xx; but a run that failed has taken its time and its money, and a second one would do so again.
"""

import msgspec
from msgspec import Struct
from starlette.responses import Response

from palyra.core.errors import Invalid, NotFound, PalyraError, Unavailable
from palyra.core.events import RunCancelled, RunFailed
from palyra.gateway.rate import TooManyRequests
from palyra.gateway.status import HTTP_STATUS, MethodNotAllowed, Unauthenticated, nearest
from palyra.gateway.streams import TooManyStreams
from palyra.runs.intake import QueueFull

CODES: dict[type[PalyraError], str] = {
    Unauthenticated: "invalid_api_key",
    QueueFull: "rate_limit_exceeded",
    TooManyRequests: "rate_limit_exceeded",
    TooManyStreams: "rate_limit_exceeded",
}
"""What programs look for, where that is not what we call it."""

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    409: "conflict_error",
    429: "rate_limit_error",
}

FAILURES = {
    "budget_denied": (429, "insufficient_quota"),
    "budget_exceeded": (429, "insufficient_quota"),
    "model_quota": (429, "insufficient_quota"),
    "model_rate_limit": (429, "rate_limit_exceeded"),
    "model_context_too_long": (400, "context_length_exceeded"),
    "model_content_policy": (400, "content_policy_violation"),
    "model_timeout": (504, "model_timeout"),
    "internal_error": (500, "internal_error"),
    "no_model": (503, "no_model"),
}
"""The status, and the code that programs know, of what a run fails by; for all others the model is at fault."""


class ParameterRefused(Invalid):
    """A parameter has a value that can not be honoured."""

    def __init__(self, param: str, detail: str) -> None:
        super().__init__(detail)
        self.param = param


class ModelNotFound(NotFound):
    """There is no such model or agent. `GET /v1/models` lists those that there are."""

    param = "model"


class ErrorBody(Struct, frozen=True, kw_only=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """An error as clients of OpenAI see it."""

    error: ErrorBody


class Fault(Struct, frozen=True, kw_only=True):
    """An error that an answer ends with."""

    status: int
    body: ErrorBody

    def answer(self) -> Response:
        """Return it as the whole answer."""
        return _response(self.body, self.status, {"x-should-retry": "false"})


def failure(error: PalyraError) -> Response:
    """Answer with an error."""
    status = nearest(HTTP_STATUS, error)
    headers = {"x-should-retry": "true" if isinstance(error, Unavailable) else "false"}
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(max(1, round(error.retry_after.total_seconds())))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    return _response(body_of(error), status, headers)


def body_of(error: PalyraError) -> ErrorBody:
    """Return an error in words that programs know."""
    known = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), error.code)
    return ErrorBody(
        message=error.detail,
        type=_type(nearest(HTTP_STATUS, error)),
        param=getattr(error, "param", None),
        code=known,
    )


def fault_of(end: RunFailed | RunCancelled) -> Fault:
    """Return the error that a run without an answer comes to."""
    if isinstance(end, RunCancelled):
        status, code, said = 409, "run_cancelled", f"The run was cancelled: {end.reason}."
    else:
        status, code = FAILURES.get(end.code, (502, end.code))
        said = end.reason
    return Fault(status=status, body=ErrorBody(message=said, type=_type(status), code=code))


def fault(status: int, code: str, message: str) -> Fault:
    """Return an error that the door itself ends an answer with."""
    return Fault(status=status, body=ErrorBody(message=message, type=_type(status), code=code))


def _type(status: int) -> str:
    return TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def _response(body: ErrorBody, status: int, headers: dict[str, str]) -> Response:
    content = msgspec.json.encode(ErrorAnswer(error=body))
    return Response(content, status, headers=headers, media_type="application/json")
