"""`artifact.read`: the rest of a result that was too long to be shown in full."""

import codecs
from typing import Annotated

from msgspec import Meta

from palyra.core.errors import OffsetBeyondEnd
from palyra.core.ids import parse_ulid
from palyra.core.tool import Risk
from palyra.tools.base import ToolContext, tool

SLICE_BYTES = 15 * 1024
"""How much fits into a result after its header line."""


@tool(name="artifact.read", risk=Risk.LOW, repeatable=True, read_only=True)
async def read(
    context: ToolContext,
    *,
    artifact: str,
    byte: Annotated[int, Meta(ge=0)] = 0,
    length: Annotated[int, Meta(ge=1)] = SLICE_BYTES,
) -> str:
    """Read on in a result that was cut."""
    artifact_id = parse_ulid(artifact, "artifact id")
    # An offset above the databases' integers is beyond the end of anything.
    byte = min(byte, 2**53)
    part = await context.storage.read(artifact_id, start=byte, length=min(length, SLICE_BYTES))
    context.witness.learned(part.labels)
    if byte >= part.size:
        raise OffsetBeyondEnd(f"The artifact has {part.size} bytes, so there is nothing at byte {byte}.")
    # A slice may begin or end within a character; what it cuts at its end belongs to the next slice.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(part.data[_tail_of_char(part.data) :])
    end = byte + len(part.data)
    follows = end - len(decoder.getstate()[0]) if end < part.size else end
    if follows == byte:
        follows = end
    more = f"\n[more follows: read again with byte={follows}]" if follows < part.size else ""
    return f"artifact {artifact_id}, bytes {byte} to {follows} of {part.size}:\n{text}{more}"


def _tail_of_char(data: bytes) -> int:
    """Count the bytes at the start that continue a character whose beginning is missing."""
    return next((index for index, byte in enumerate(data[:3]) if byte & 0xC0 != 0x80), min(3, len(data)))
