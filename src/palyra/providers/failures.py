"""Failures of remote models: their kinds, and one plain sentence each that says what to do."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import msgspec

from palyra.core.text.redaction import redact
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialect import ModelTarget

SHOWN_CHARS = 200
MAX_WAIT = timedelta(days=1)
"""The maximum delay that a provider may ask for: beyond it, it counts as unavailable rather than busy."""

# What failed, a colon, what to do. The reason comes in between, in brackets.
_TELLS = {
    FailureKind.AUTH: "{provider} rejected the key for {model}: replace it with a valid one",
    FailureKind.PERMISSION: "{provider} does not allow this key to use {model}: check the model's name with"
    " `palyra providers models {provider}`, or allow it in the account",
    FailureKind.RATE_LIMIT: "{provider} is rate-limiting requests for {model}: wait, or set a fallback in [model]",
    FailureKind.QUOTA: "the account at {provider} has no credit left for {model}: top it up, or set a fallback in"
    " [model]",
    FailureKind.CONTEXT_TOO_LONG: "the conversation is too long for {model} of {provider}: start a new session, or"
    " choose a model with a larger window",
    FailureKind.CONTENT_POLICY: "the content policy of {provider} does not let {model} answer this: rephrase it, or"
    " choose another model",
    FailureKind.MALFORMED: "{provider} sent an invalid response for {model}: check its base_url and dialect",
    FailureKind.NETWORK: "{provider} cannot be reached for {model}: check its base_url and the network",
    FailureKind.TIMEOUT: "{provider} timed out for {model}: try again, or raise the timeouts in"
    " [model.providers.{provider}]",
    FailureKind.UNAVAILABLE: "{provider} is not available for {model}: try again later, or set a fallback in [model]",
    FailureKind.UNUSABLE: "{provider} lacks something that it needs for {model}: run `palyra doctor`",
}

BROKE_OFF = "{provider} closed the stream before the answer of {model} was complete: try again"
NOT_FOUND = (
    "{provider} returned 404 for {model}: check the base_url, which often ends in /v1, and the model's name with"
    " `palyra providers models {provider}`"
)
NOT_ACCEPTED = "{provider} rejected the request for {model}: fix what it names, or choose another model"
SERVER_ERROR = "{provider} returned a server error (STATUS) for {model}: try again later, or set a fallback in [model]"

_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size|limit)|maximum context|(prompt|input|request) is too long|too many tokens"
    r"|too many input tokens|exceeds? the (maximum|model|available).{0,40}(token|context)|reduce the length of"
    # Each of these is specific to one server: xAI, vLLM, GitHub, Moonshot, Zhipu, Alibaba, Hugging Face.
    r"|maximum prompt length|longer than the maximum model length|token count.{0,40}exceeds|exceeded model token limit"
    r"|prompt exceeds max|range of input length|inputs. tokens . .max_new_tokens. must be",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(r"(incorrect|invalid) api.?key|api.?key (is |provided is )?(not valid|invalid|incorrect)", re.I)
_FORBIDDEN = re.compile(r"content.?(filter|policy|management)|safety (system|policy)|flagged", re.IGNORECASE)
_NO_CREDIT = re.compile(r"insufficient.{0,10}(quota|balance|credit|funds)|exceeded your current quota|billing", re.I)
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


def failure(
    target: ModelTarget,
    kind: FailureKind,
    text: str = "",
    *,
    why: str = "",
    instead: str = "",
    retry_after: timedelta = timedelta(0),
    refused: bool = False,
    is_well: bool = False,
) -> ProviderFailed:
    """Return a failure that names provider and model and says what to do, with the server's message (`said`), or our
    own reason (`why`).

    `instead` replaces the sentence of the kind; it may name `{provider}` and `{model}`.
    """
    what, _, remedy = (instead or _TELLS[kind]).partition(": ")
    displayed = quoted(text)
    # An error message often contains the refused key.
    if displayed and kind is not FailureKind.AUTH:
        reason = f" (it says: {displayed})"
    else:
        reason = f" ({why})" if why else ""
    what, remedy = (
        part.replace("{provider}", target.provider).replace("{model}", target.model) for part in (what, remedy)
    )
    subject = what[0].upper() + what[1:] if what.startswith("the ") else what
    detail = f"{subject}{reason}. {remedy[:1].upper()}{remedy[1:]}"
    return ProviderFailed(
        detail.rstrip(". ") + ".",
        kind=kind,
        retry_after=retry_after,
        refused=refused,
        is_well=is_well,
        cause=why,
    )


def quoted(text: str) -> str:
    """Return a server's message as it may be shown: one line, without control characters, truncated."""
    # A body may be large: text far beyond the limit is not processed.
    words = redact(text if len(text) <= 20 * SHOWN_CHARS else text[: 20 * SHOWN_CHARS] + "…")
    line = " ".join("".join(char if char.isprintable() else " " for char in words).split()).rstrip(".")
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "…"


def kind_of(status: int, *words: str) -> FailureKind:
    """Return the kind of a status and the texts of the error: its code, type and message, as far as there are any."""
    text = " ".join(word for word in words if word)
    if status in (400, 413, 422, 500, 200) and _TOO_LONG.search(text):
        return FailureKind.CONTEXT_TOO_LONG
    if status in (200, 400, 403, 451) and _FORBIDDEN.search(text):
        return FailureKind.CONTENT_POLICY
    if status == 402 or (status in (200, 403, 429) and _NO_CREDIT.search(text)):
        return FailureKind.QUOTA
    # Some report a wrong key as a wrong request.
    if status == 400 and _BAD_KEY.search(text):
        return FailureKind.AUTH
    match status:
        case 401 | 407:
            return FailureKind.AUTH
        case 403 | 404:
            return FailureKind.PERMISSION
        case 408 | 504 | 524:
            return FailureKind.TIMEOUT
        case 413:
            return FailureKind.CONTEXT_TOO_LONG
        case 425 | 429:
            return FailureKind.RATE_LIMIT
        # Busy, aborted or out of capacity: the same request may succeed later.
        case _ if status >= 500 or status in (409, 424, 498):
            return FailureKind.UNAVAILABLE
        case _:
            return FailureKind.MALFORMED


def kind_of_error(message: str, code: str) -> FailureKind:
    """Return the kind of an error that came without a status, within an answer that had begun."""
    status = next((int(word) for word in code.split() if re.fullmatch(r"[45]\d\d", word)), None)
    if status is not None:
        return kind_of(status, code, message)
    kind = kind_of(200, code, message)
    if kind is not FailureKind.MALFORMED:
        return kind
    if re.search(r"rate.?limit|too many requests", f"{code} {message}", re.IGNORECASE):
        return FailureKind.RATE_LIMIT
    if re.search(r"auth|api.?key", code, re.IGNORECASE):
        return FailureKind.AUTH
    return FailureKind.UNAVAILABLE


def retry_after(headers: Mapping[str, str]) -> timedelta:
    """Return how long a provider asks us to wait; zero if it does not say. Header names are in lower case."""
    wait = (
        _milliseconds(headers.get("retry-after-ms", ""))
        or _seconds_or_date(headers.get("retry-after", ""), headers.get("date", ""))
        or _reset(headers)
    )
    return min(max(wait, timedelta(0)), MAX_WAIT)


def _milliseconds(text: str) -> timedelta:
    return timedelta(milliseconds=float(text)) if re.fullmatch(r"\d{1,12}(\.\d+)?", text) else timedelta(0)


def _seconds_or_date(text: str, now: str) -> timedelta:
    if re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        return timedelta(seconds=float(text))
    # By the server's own clock: ours may differ.
    at, since = _date(text), _date(now)
    return at - since if at is not None and since is not None else timedelta(0)


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text[:64]) if text else None
    except (ValueError, TypeError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _reset(headers: Mapping[str, str]) -> timedelta:
    """Return when an exhausted quota resets: the latest of several; if none is known to be exhausted, the first."""
    resets = {
        what: wait
        for what in ("requests", "tokens")
        if (wait := _duration(headers.get(f"x-ratelimit-reset-{what}", "")))
    }
    used_up = [wait for what, wait in resets.items() if headers.get(f"x-ratelimit-remaining-{what}") == "0"]
    return max(used_up) if used_up else min(resets.values(), default=timedelta(0))


def _duration(text: str) -> timedelta:
    """Parse `1h2m3.5s` or `20ms`."""
    match = _DURATION.fullmatch(text) if 0 < len(text) <= 40 else None
    if match is None:
        return timedelta(0)
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    try:
        return timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    except OverflowError:
        return MAX_WAIT


def refusal(status: int, headers: Mapping[str, str], body: bytes, target: ModelTarget) -> ProviderFailed:
    """Return the failure for an answer that is not a stream, from its status and the usual error object."""
    wait, refused = retry_after(headers), status >= 400
    result = error_in(body)
    if result is None:
        is_page = body.lstrip()[:1] == b"<" or "html" in headers.get("content-type", "").lower()
        # HTML comes from a proxy, a portal or a wrong path: then the status is not about the model.
        kind = FailureKind.MALFORMED if is_page and status in (400, 404, 405) else kind_of(status)
        why = f"it sent {'a web page' if is_page else 'a response without events'}, status {status}"
        return failure(target, kind, why=why, instead=_by_status(status, kind), retry_after=wait, refused=refused)
    message, code = result
    kind = kind_of(status, code, message) if refused else kind_of_error(message, code)
    instead = refusal_text(status, kind)
    text = message or code or f"status {status}"
    return failure(target, kind, text, instead=instead, retry_after=wait, refused=refused)


def refusal_text(status: int, kind: FailureKind) -> str:
    """Return the sentence for a refused request whose error the server described; empty for the one of the kind."""
    return NOT_ACCEPTED if kind is FailureKind.MALFORMED else _by_status(status, kind)


def _by_status(status: int, kind: FailureKind) -> str:
    """Return the sentence for a status that says more than the kind of the failure; empty if it does not."""
    if status == 404 and kind is not FailureKind.MALFORMED:
        return NOT_FOUND
    return SERVER_ERROR.replace("STATUS", str(status)) if kind is FailureKind.UNAVAILABLE and status >= 500 else ""


def error_in(body: bytes) -> tuple[str, str] | None:
    """Return the message and the code of an error object, however it is wrapped; None if there is none."""
    try:
        result = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(result, list) and result:
        result = result[0]
    return error_words(result) if isinstance(result, dict) else None


def error_words(document: JsonObject) -> tuple[str, str] | None:
    """Return the message and the code of a decoded error object."""
    error = document.get("error", document.get("errors"))
    if isinstance(error, str):
        return error, ""
    if isinstance(error, dict):
        document = error
    elif "choices" in document or not {"message", "detail", "msg"} & document.keys():
        return None
    message = next((document[name] for name in ("message", "detail", "msg") if document.get(name)), "")
    codes = (document.get(name) for name in ("code", "type", "status", "param"))
    words = " ".join(str(code) for code in codes if isinstance(code, str | int))
    return message if isinstance(message, str) else msgspec.json.encode(message).decode(), words
