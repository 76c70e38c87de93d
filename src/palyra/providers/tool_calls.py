"""Helpers for tool calls as models write them: missing ids, and arguments that may be malformed."""

import hashlib

import msgspec

from palyra.core.model.prompt import Prompt
from palyra.core.tool import JsonObject

SHOWN_CHARS = 200

_decoder = msgspec.json.Decoder(JsonObject)


def call_id(prompt: Prompt, index: int) -> str:
    """Return the id of a turn's call: the same for the same conversation, unique otherwise."""
    digest = hashlib.sha256(msgspec.json.encode((prompt.messages, index))).hexdigest()
    return f"call_{digest[:20]}"


def read_arguments(text: str) -> tuple[JsonObject, str]:
    """Return the arguments and an empty reason, or no arguments and the reason why they cannot be parsed."""
    # For a tool without arguments models write an empty text, or null.
    if text.strip() in ("", "null"):
        return {}, ""
    try:
        return _decoder.decode(text), ""
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        displayed = text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
        return {}, f"the arguments are not a JSON object ({error}): {displayed}"
