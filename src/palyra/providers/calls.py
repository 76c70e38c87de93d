"""Tool calls as models write them: ids where a model gives none, arguments where they may be malformed."""

import hashlib

import msgspec

from palyra.core.prompt import Prompt
from palyra.core.tool import JsonObject

SHOWN_CHARS = 200

_decoder = msgspec.json.Decoder(JsonObject)


def call_id(prompt: Prompt, index: int) -> str:
    """Return the id of a turn's call: the same for the same conversation, another for every other."""
    digest = hashlib.sha256(msgspec.json.encode((prompt.messages, index))).hexdigest()
    return f"call_{digest[:20]}"


def read_arguments(text: str) -> tuple[JsonObject, str]:
    """Return the arguments and an empty reason, or no arguments and the reason why they can not be read."""
    # For a tool without arguments models leave the text empty, or write that there is nothing.
    if text.strip() in ("", "null"):
        return {}, ""
    try:
        return _decoder.decode(text), ""
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        shown = text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
        return {}, f"the arguments are no JSON object ({error}): {shown}"
