"""Approvals as a document that proves itself."""

import hashlib
from collections.abc import AsyncGenerator

import msgspec

from palyra.core.ids import PrincipalId
from palyra.gateway.cursor import from_approval, to_position
from palyra.runs.approvals import Approvals

PAGE = 200
_encode = msgspec.json.Encoder()


async def chained(approvals: Approvals, principal: PrincipalId) -> AsyncGenerator[bytes, None]:
    """Yield the approvals as lines of JSON, the latest first, and last a line with how many there were.

    Each line holds the hash of all before it: `chain = SHA-256(chain before it + the approval's own JSON)`.
    """
    chain, count, before = "0" * 64, 0, None
    while page := await approvals.page(principal, only_open=False, before=before, limit=PAGE):
        for one in page:
            content = _encode.encode(one)
            chain = hashlib.sha256(chain.encode() + content).hexdigest()
            yield b'{"approval":' + content + b',"chain":"' + chain.encode() + b'"}\n'
        count += len(page)
        before = to_position(from_approval(page[-1]))
    yield _encode.encode({"end": True, "count": count, "chain": chain}) + b"\n"
