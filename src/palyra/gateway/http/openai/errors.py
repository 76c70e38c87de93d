"""Errors in OpenAI's format: `{"error": {"message", "type", "param", "code"}}`.

The official clients obey the header `x-should-retry`. Without it they would retry any response with 409, 429 or 5xx;
but a failed run has cost time and money, and a second one would do so again.
"""

import msgspec
from msgspec import Struct
from starlette.responses import Response

from palyra.core.errors import Invalid, PalyraError, Unavailable
from palyra.core.events import RunCancelled, RunFailed
from palyra.core.model.catalog import ModelNotFound
from palyra.gateway.error_status import HTTP_STATUS, MethodNotAllowed, Unauthenticated, nearest
from palyra.gateway.rate_limit import RequestRateExceeded
from palyra.gateway.stream_limit import StreamLimitReached
from palyra.runs.services.intake import RunQueueFull

CODES: dict[type[PalyraError], str] = {
    Unauthenticated: "invalid_api_key",
    RunQueueFull: "rate_limit_exceeded",
    RequestRateExceeded: "rate_limit_exceeded",
    StreamLimitReached: "rate_limit_exceeded",
}
"""The codes that OpenAI clients expect, where they differ from ours."""

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
    "model_missing": (503, "model_missing"),
}
"""HTTP status and OpenAI code for the reasons that a run fails for; for all others the model is the cause."""


class ParameterUnsupported(Invalid):
    """A parameter has a value that is not supported."""

    def __init__(self, param: str, detail: str) -> None:
        super().__init__(detail)
        self.param = param


class ErrorBody(Struct, frozen=True, kw_only=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(Struct, frozen=True, kw_only=True):
    """An error as clients of OpenAI see it."""

    error: ErrorBody


class V1Error(Struct, frozen=True, kw_only=True):
    """An error that an answer ends with."""

    status: int
    body: ErrorBody

    def answer(self) -> Response:
        """Return it as a complete response."""
        return _response(self.body, self.status, {"x-should-retry": "false"})


def failure(error: PalyraError) -> Response:
    """Respond with an error."""
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
    """Return an error as OpenAI clients know it."""
    known_name = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), error.code)
    return ErrorBody(
        message=error.detail,
        type=_type(nearest(HTTP_STATUS, error)),
        param="model" if isinstance(error, ModelNotFound) else getattr(error, "param", None),
        code=known_name,
    )


def run_error(end: RunFailed | RunCancelled) -> V1Error:
    """Return the error for a run that ended without an answer."""
    if isinstance(end, RunCancelled):
        status, code, text = 409, "run_cancelled", f"The run was cancelled: {end.reason}."
    else:
        status, code = FAILURES.get(end.code, (502, end.code))
        text = end.reason
    return V1Error(status=status, body=ErrorBody(message=text, type=_type(status), code=code))


def v1_error(status: int, code: str, message: str) -> V1Error:
    """Return an error that the API itself ends an answer with."""
    return V1Error(status=status, body=ErrorBody(message=message, type=_type(status), code=code))


def _type(status: int) -> str:
    return TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def _response(body: ErrorBody, status: int, headers: dict[str, str]) -> Response:
    content = msgspec.json.encode(ErrorResponse(error=body))
    return Response(content, status, headers=headers, media_type="application/json")
