"""Export of approvals as a document that can be verified."""

import hashlib
import re
from collections.abc import AsyncGenerator

import msgspec

from palyra.core.ids import PrincipalId
from palyra.gateway.cursor import from_approval, to_position
from palyra.runs.services.approvals import ApprovalService

PAGE = 200
_encode = msgspec.json.Encoder()
_BEYOND = re.compile(r"[^\x20-\x7e]")


async def chained(approvals: ApprovalService, principal: PrincipalId) -> AsyncGenerator[bytes, None]:
    """Yield the approvals as JSON lines, the latest first; the final line holds their count.

    Each line holds the hash of all lines before it: `chain = SHA-256(previous chain + the approval's own JSON)`. The
    JSON is ASCII: a terminal, a locale or a line reader could change other characters, and the hash would not match.
    """
    chain, count, before = "0" * 64, 0, None
    while page := await approvals.page(principal, only_open=False, before=before, limit=PAGE):
        for one in page:
            content = _BEYOND.sub(_escaped, _encode.encode(one).decode()).encode()
            chain = hashlib.sha256(chain.encode() + content).hexdigest()
            yield b'{"approval":' + content + b',"chain":"' + chain.encode() + b'"}\n'
        count += len(page)
        before = to_position(from_approval(page[-1]))
    yield _encode.encode({"end": True, "count": count, "chain": chain}) + b"\n"


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
