"""Idempotency keys of messages: a repeated request gets the answer of the first one."""

import hashlib
from datetime import datetime

import msgspec
from msgspec.structs import replace

from palyra.core.clock import to_ms
from palyra.core.errors import Invalid, Unavailable
from palyra.core.message import MAX_IDEMPOTENCY_KEY_CHARS, AcceptedMessage, Inbound, clean_text
from palyra.core.model.request_options import NO_REQUEST_OPTIONS
from palyra.journal.engines.base import Connection
from palyra.journal.stores import idempotency_keys
from palyra.journal.stores.idempotency_keys import IdempotencyClaim

_encode = msgspec.json.Encoder()
_answer = msgspec.json.Decoder(AcceptedMessage)


class IdempotencyKeyInvalid(Invalid):
    """The idempotency key is not valid. It must have 1 to 200 characters."""


class IdempotencyKeyInUse(Unavailable):
    """Another request with this idempotency key is being recorded right now."""


def check(inbound: Inbound) -> None:
    """Raise if the key of a message, if it has one, is not valid."""
    if inbound.idempotency_key is not None:
        clean_text(inbound.idempotency_key, what="idempotency key")
        if not 1 <= len(inbound.idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARS:
            raise IdempotencyKeyInvalid


def answer(conn: Connection, claim: IdempotencyClaim | None) -> AcceptedMessage | None:
    """Return the answer to the same message, if it was accepted before."""
    known = idempotency_keys.answer(conn, claim) if claim is not None else None
    return replace(_answer.decode(known), repeated=True) if known is not None else None


def keep(conn: Connection, claim: IdempotencyClaim | None, accepted: AcceptedMessage, *, at: datetime) -> None:
    """Keep the answer to a message for its repetitions."""
    text = _encode.encode(accepted).decode()
    if claim is not None and not idempotency_keys.keep(conn, claim, text, now_ms=to_ms(at)):
        raise IdempotencyKeyInUse


def claim_of(inbound: Inbound) -> IdempotencyClaim | None:
    """Return what the key of a message stands for; None if it has none."""
    if inbound.idempotency_key is None:
        return None
    request: tuple[object, ...] = (inbound.text, inbound.session, inbound.mode)
    more = (inbound.agent, inbound.options, inbound.images, inbound.history)
    if more != (None, NO_REQUEST_OPTIONS, (), ()):
        # A key that came without them keeps the digest that it always had.
        request = (*request, *more)
    return IdempotencyClaim(
        inbound.principal, inbound.idempotency_key, hashlib.sha256(_encode.encode(request)).hexdigest()
    )
