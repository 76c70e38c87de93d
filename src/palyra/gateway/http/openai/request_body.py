"""The body of a request: its JSON, its parameters, and which of them are supported."""

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from palyra.gateway.error_status import RequestInvalid, RequestTooLarge
from palyra.gateway.http.openai.errors import ParameterUnsupported

MAX_BODY_BYTES = 24 * 1024 * 1024
"""Images come in the body."""
MAX_VALUES = 2_000_000
"""Each takes about a hundred bytes once it is decoded, and may take only two in the body."""
LARGE = 256 * 1024
NAME_CHARS = 60

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `\$\.?([^`]*)`")


class AcceptedValues:
    """The values with which a parameter changes nothing. Any other would have an effect that is not supported."""

    def __init__(self, *values: object) -> None:
        self.values = values


ANYTHING = None
"""Marks a parameter that does not change the answer."""

Rules = dict[str, AcceptedValues | None]


async def read_json(request: Request) -> dict[str, Any]:
    """Decode the body as a JSON object, and read at most the limit."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise RequestTooLarge(f"The request is larger than {MAX_BODY_BYTES >> 20} MiB.")
    # Those in its texts are counted too: they are far fewer, and images have none.
    if len(data) > MAX_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise RequestTooLarge(f"The request has more than {MAX_VALUES:,} values. Send less at once.")
    try:
        # Decoding a body with images would block all other requests.
        result = await asyncio.to_thread(msgspec.json.decode, data) if len(data) > LARGE else msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(f"The body of the request is not JSON in UTF-8: {error}.") from None
    if not isinstance(result, dict):
        raise RequestInvalid("The body of the request must be a JSON object.")
    return result


def parse(body: dict[str, Any], kind: type[T], rules: Rules) -> T:
    """Return the request, or raise `ParameterUnsupported` naming a parameter that is unsupported or unknown."""
    names = kind.__struct_fields__
    for name, value in body.items():
        if name in names:
            continue
        if name not in rules:
            raise ParameterUnsupported(name[:NAME_CHARS], f"Unknown parameter {name[:NAME_CHARS]!r}. Remove it.")
        rule = rules[name]
        if rule is not ANYTHING and value is not None and value not in rule.values:
            allowed = " or ".join(msgspec.json.encode(one).decode() for one in rule.values)
            raise ParameterUnsupported(
                name, f"{name} is not supported{f' unless it is {allowed}' if allowed else ''}. Remove it."
            )
    try:
        return msgspec.convert({name: body[name] for name in names if name in body}, kind)
    except msgspec.ValidationError as error:
        match = _PLACE.search(str(error))
        raise ParameterUnsupported(match[1] if match else "", f"The request is not valid: {error}.") from None
    except RecursionError:
        raise RequestInvalid("The body of the request is nested too deeply.") from None
