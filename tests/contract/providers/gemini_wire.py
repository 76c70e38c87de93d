"""Google Gemini."""

import json

from palyra.core.model.catalog import DialectName
from palyra.core.model.prompt import StopReason
from palyra.core.spending.usage import Usage
from palyra.providers.base import FailureKind
from tests.contract.providers.wire import Heard, Refusal, Wire

MODEL = "gemini-2.5-pro"


def _event(found: object) -> bytes:
    return b"data: " + json.dumps(found).encode() + b"\n\n"


def _piece(**part: object) -> bytes:
    return _event({"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0}]})


def _error(code: int, status: str, message: str, *details: object) -> object:
    return {"error": {"code": code, "status": status, "message": message, "details": list(details)}}


def _quota(name: str) -> object:
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": name}]}


WIRE = Wire(
    dialect=DialectName.GEMINI,
    model=MODEL,
    path=f"/v1/models/{MODEL}:streamGenerateContent",
    key_header="x-goog-api-key",
    turns={
        "text": Heard(text="Grüße aus Wien 🎻.", usage=Usage(input_tokens=19, output_tokens=10)),
        "calls": Heard(
            text="I will look.",
            calls=(("files.read", {"path": "a.txt"}), ("time.now", {"zone": "Europe/Wien"})),
            shown_again=({"model": MODEL, "signature": "CikB0e2Kb7u1Zt", "call": 0},),
            stop=StopReason.CALLS,
            usage=Usage(input_tokens=82, output_tokens=34, reasoning_tokens=4),
        ),
        "reasoning": Heard(
            text="Four.",
            reasoning="Two and two.",
            shown_again=({"model": MODEL, "signature": "EsYDCsMDAXLI2nx", "text": 5},),
            usage=Usage(input_tokens=12, output_tokens=40, reasoning_tokens=36),
        ),
        "cached": Heard(text="Yes.", usage=Usage(input_tokens=2006, output_tokens=300, cached_tokens=1920)),
        "refusal": Heard(text="I can't help", stop=StopReason.REFUSED, usage=Usage(input_tokens=20, output_tokens=9)),
        "length": Heard(text="Once upon", stop=StopReason.LENGTH, usage=Usage(input_tokens=9, output_tokens=2)),
        "no_ids": Heard(
            calls=(("time.now", {}),) * 3, stop=StopReason.CALLS, usage=Usage(input_tokens=10, output_tokens=5)
        ),
        "every_piece_stops": Heard(text="One, two.", usage=Usage(input_tokens=5, output_tokens=3)),
    },
    refusals=(
        Refusal(
            FailureKind.AUTH,
            400,
            _error(
                400,
                "INVALID_ARGUMENT",
                "API key not valid. Please pass a valid API key.",
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"},
            ),
        ),
        Refusal(FailureKind.AUTH, 401, _error(401, "UNAUTHENTICATED", "Request had invalid credentials.")),
        Refusal(FailureKind.PERMISSION, 403, _error(403, "PERMISSION_DENIED", "The caller has no permission.")),
        Refusal(FailureKind.PERMISSION, 404, _error(404, "NOT_FOUND", "models/gemini-x is not found.")),
        Refusal(
            FailureKind.PERMISSION, 400, _error(400, "FAILED_PRECONDITION", "User location is not supported for this.")
        ),
        Refusal(
            FailureKind.RATE_LIMIT,
            429,
            _error(
                429,
                "RESOURCE_EXHAUSTED",
                "You exceeded your current quota, please check your plan and billing details.",
                _quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"),
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"},
            ),
        ),
        Refusal(
            FailureKind.QUOTA,
            429,
            _error(
                429,
                "RESOURCE_EXHAUSTED",
                "You exceeded your current quota.",
                _quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
            ),
        ),
        Refusal(
            FailureKind.CONTEXT_TOO_LONG,
            400,
            [
                _error(
                    400,
                    "INVALID_ARGUMENT",
                    "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
                )
            ],
        ),
        Refusal(FailureKind.MALFORMED, 400, _error(400, "INVALID_ARGUMENT", 'Unknown name "x": Cannot find field.')),
        Refusal(FailureKind.TIMEOUT, 504, _error(504, "DEADLINE_EXCEEDED", "Deadline expired.")),
        Refusal(FailureKind.UNAVAILABLE, 500, _error(500, "INTERNAL", "An internal error has occurred.")),
        Refusal(FailureKind.UNAVAILABLE, 503, _error(503, "UNAVAILABLE", "The model is overloaded.")),
    ),
    begin=_event({"usageMetadata": {"promptTokenCount": 5}}),
    piece=_piece(text="la "),
    thought=_piece(text="hm " * 1000, thought=True),
    sealed=_piece(text="", thought=True, thoughtSignature="x" * 40_000),
    argument=_piece(functionCall={"name": "files_read", "args": {"path": "x" * 60_000}}),
    error_inside=lambda words: _event(_error(500, "INTERNAL", words)),
    models={
        "models": [
            {"name": "models/two", "supportedGenerationMethods": ["generateContent"]},
            {"name": "models/one", "supportedGenerationMethods": ["generateContent"]},
            {"name": "models/embeds", "supportedGenerationMethods": ["embedContent"]},
        ]
    },
)
