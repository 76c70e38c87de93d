"""What stands in a request: its JSON, which parameters it has, and which of them can be honoured."""

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from palyra.gateway.http.openai.errors import ParameterRefused
from palyra.gateway.status import RequestMalformed, RequestTooLarge

MAX_BODY_BYTES = 24 * 1024 * 1024
"""Pictures come in the body."""
MOST_VALUES = 2_000_000
"""Each takes a hundred bytes or so once it is read, and may be as little as two in the body."""
LARGE = 256 * 1024
NAME_CHARS = 60

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `\$\.?([^`]*)`")


class Only:
    """The values with which a parameter changes nothing. Any other would, and there is no way to honour it."""

    def __init__(self, *values: object) -> None:
        self.values = values


ANYTHING = None
"""Stands for a parameter that changes nothing of the answer."""

Rules = dict[str, Only | None]


async def read_json(request: Request) -> dict[str, Any]:
    """Read the body as a JSON object, never more of it than the limit."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise RequestTooLarge(f"The request is larger than {MAX_BODY_BYTES >> 20} MiB.")
    # Those in its texts are counted too: they are far fewer, and pictures have none.
    if len(data) > MOST_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise RequestTooLarge(f"The request has more than {MOST_VALUES:,} values. Send less at once.")
    try:
        # One with pictures would hold everybody else up.
        found = await asyncio.to_thread(msgspec.json.decode, data) if len(data) > LARGE else msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestMalformed(f"The request's body is no valid JSON in UTF-8: {error}.") from None
    if not isinstance(found, dict):
        raise RequestMalformed("The request's body must be a JSON object.")
    return found


def parse(body: dict[str, Any], kind: type[T], rules: Rules) -> T:
    """Return the request, or raise `ParameterRefused` naming what in it can not be honoured or is not known."""
    known = kind.__struct_fields__
    for name, value in body.items():
        if name in known:
            continue
        if name not in rules:
            raise ParameterRefused(
                name[:NAME_CHARS], f"There is no parameter {name[:NAME_CHARS]!r} here. Leave it out."
            )
        rule = rules[name]
        if rule is not ANYTHING and value is not None and value not in rule.values:
            allowed = " or ".join(msgspec.json.encode(one).decode() for one in rule.values)
            raise ParameterRefused(
                name, f"{name} can not be honoured here{f' unless it is {allowed}' if allowed else ''}. Leave it out."
            )
    try:
        return msgspec.convert({name: body[name] for name in known if name in body}, kind)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        raise ParameterRefused(place[1] if place else "", f"The request does not fit: {error}.") from None
    except RecursionError:
        raise RequestMalformed("The request's body is nested too deeply.") from None
