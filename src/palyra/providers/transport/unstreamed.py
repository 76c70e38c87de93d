"""Converts the answers of servers that do not stream into the events that would have come."""

from collections.abc import Iterator
from typing import Any

import msgspec

from palyra.core.model.catalog import DialectName
from palyra.core.tool import JsonObject

_encode = msgspec.json.Encoder().encode


def as_events(dialect: DialectName, body: bytes) -> bytes:
    """Return the events for a complete answer; empty if it is not an answer."""
    try:
        result = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    events = {
        DialectName.OPENAI: _chat,
        DialectName.RESPONSES: _response,
        DialectName.ANTHROPIC: _message,
        DialectName.GEMINI: _contents,
    }
    lines = events[dialect](result) if dialect in events else ()
    return b"".join(b"data: %s\n\n" % _encode(event) for event in lines)


def _chat(result: Any) -> Iterator[JsonObject]:
    match result:
        case {"choices": [{"message": {}} as choice, *_]}:
            yield {**result, "choices": [{**choice, "finish_reason": choice.get("finish_reason") or "stop"}]}
        case _:
            return


def _response(result: Any) -> Iterator[JsonObject]:
    if isinstance(result, dict) and result.get("object") == "response":
        # One that is in progress, or was aborted, is not an answer, whatever it contains by now.
        kind = result.get("status") or "completed"
        kind = kind if kind in ("completed", "incomplete") else "failed"
        yield {"type": f"response.{kind}", "response": result}


def _message(result: Any) -> Iterator[JsonObject]:
    match result:
        case {"type": "message", "content": [*blocks]}:
            yield {"type": "message_start", "message": {"usage": result.get("usage")}}
            for index, block in enumerate(blocks):
                yield {"type": "content_block_start", "index": index, "content_block": block}
                yield {"type": "content_block_stop", "index": index}
            yield {"type": "message_delta", "delta": {"stop_reason": result.get("stop_reason") or "end_turn"}}
            yield {"type": "message_stop"}
        case _:
            return


def _contents(result: Any) -> Iterator[JsonObject]:
    """Yield Gemini's pieces: it sends a list of them if no event stream was requested."""
    pieces = result if isinstance(result, list) else [result]
    if all(isinstance(piece, dict) and "candidates" in piece for piece in pieces):
        yield from pieces
