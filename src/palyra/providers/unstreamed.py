"""Answers of servers that do not stream, whatever they are asked for: told as the events that would have come."""

from collections.abc import Iterator
from typing import Any

import msgspec

from palyra.core.model import Dialect
from palyra.core.tool import JsonObject

_encode = msgspec.json.Encoder().encode


def as_events(dialect: Dialect, body: bytes) -> bytes:
    """Return the stream of events that a whole answer comes to; nothing if it is no answer."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    events = {
        Dialect.OPENAI: _chat,
        Dialect.RESPONSES: _response,
        Dialect.ANTHROPIC: _message,
        Dialect.GEMINI: _contents,
    }
    told = events[dialect](found) if dialect in events else ()
    return b"".join(b"data: %s\n\n" % _encode(event) for event in told)


def _chat(found: Any) -> Iterator[JsonObject]:
    match found:
        case {"choices": [{"message": {}} as choice, *_]}:
            yield {**found, "choices": [{**choice, "finish_reason": choice.get("finish_reason") or "stop"}]}
        case _:
            return


def _response(found: Any) -> Iterator[JsonObject]:
    if isinstance(found, dict) and found.get("object") == "response":
        # One that is still being made, or was given up, is no answer, whatever it holds by now.
        kind = found.get("status") or "completed"
        kind = kind if kind in ("completed", "incomplete") else "failed"
        yield {"type": f"response.{kind}", "response": found}


def _message(found: Any) -> Iterator[JsonObject]:
    match found:
        case {"type": "message", "content": [*blocks]}:
            yield {"type": "message_start", "message": {"usage": found.get("usage")}}
            for index, block in enumerate(blocks):
                yield {"type": "content_block_start", "index": index, "content_block": block}
                yield {"type": "content_block_stop", "index": index}
            yield {"type": "message_delta", "delta": {"stop_reason": found.get("stop_reason") or "end_turn"}}
            yield {"type": "message_stop"}
        case _:
            return


def _contents(found: Any) -> Iterator[JsonObject]:
    """Gemini sends a list of its pieces where nobody has asked for events."""
    pieces = found if isinstance(found, list) else [found]
    if all(isinstance(piece, dict) and "candidates" in piece for piece in pieces):
        yield from pieces
