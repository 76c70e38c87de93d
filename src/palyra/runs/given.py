"""What a caller brings along with a message: the conversation so far, or results of tools of its own."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec

from palyra.core import labels
from palyra.core.brief import NO_BRIEF
from palyra.core.errors import Conflict, Invalid
from palyra.core.events import MessageGiven
from palyra.core.ids import PrincipalId
from palyra.core.message import MAX_MESSAGE_BYTES, Inbound, MessageTooLong, clean_text
from palyra.core.prompt import Message, Role
from palyra.core.run import Stage
from palyra.core.session import Session
from palyra.journal import blobs, runs
from palyra.journal.blobs import Packed
from palyra.journal.engine import Connection
from palyra.runs.learned import scanned
from palyra.runs.replay import replay
from palyra.runs.seals import MESSAGE, Sealing

_encode = msgspec.json.Encoder().encode

MOST_MESSAGES = 2_000
MOST_BYTES = 4 * 1024 * 1024


class GivenTooLong(Invalid):
    """There may be 2000 messages before the last one, of 4 MiB in all. Leave the oldest out."""


class ResultUnknown(Invalid):
    """A tool's result answers no call that was handed over. Send results of the calls of the last answer only."""


class CanNotJoin(Conflict):
    """This message can not join the run that is active: it has pictures, tools, options or messages of its own, and the
    run has begun without them. Queue it instead."""


def check(inbound: Inbound) -> None:
    """Raise unless what is brought along can be kept."""
    if len(inbound.given) > MOST_MESSAGES:
        raise GivenTooLong
    size = 0
    for message in inbound.given:
        clean_text(message.text, what="message")
        length = len(message.text.encode())
        if length > MAX_MESSAGE_BYTES:
            raise MessageTooLong
        size += length + (len(_encode(message.calls)) if message.calls else 0)
    if size > MOST_BYTES:
        raise GivenTooLong


@dataclass(frozen=True, slots=True)
class Along:
    """What comes along with a message, made ready to be written."""

    messages: tuple[MessageGiven, ...] = ()
    pictures: tuple[Packed, ...] = ()


def made_ready(inbound: Inbound, *, at: datetime) -> Along:
    """Make ready what comes along. Blocks for as long as packing pictures and scanning results takes."""
    pictures = tuple(blobs.pack(content) for content in inbound.pictures.values())
    return Along(tuple(_events(inbound, at=at)), pictures)


def _events(inbound: Inbound, *, at: datetime) -> Iterator[MessageGiven]:
    """Yield what is brought along as events. Only what the person said is the person's."""
    for message in inbound.given:
        yield MessageGiven(
            at=at,
            actor=inbound.principal,
            labels=(labels.OWNER,) if message.role is Role.USER else (labels.TOOL,),
            role=message.role,
            text=message.text,
            calls=message.calls,
            call_id=message.call_id,
            images=message.images,
            signals=scanned(message.text) if message.role is Role.TOOL else (),
        )


async def sealed(inbound: Inbound, sealing: Sealing) -> Inbound:
    """Return a message, and what comes along with it, with markers for secrets: from here on nobody has seen them."""
    brief = inbound.brief
    if brief.system:
        brief = msgspec.structs.replace(brief, system=await sealing.seal(brief.system, MESSAGE))
    text = await sealing.seal(inbound.text, MESSAGE)
    if brief is inbound.brief and text == inbound.text and not inbound.given:
        return inbound
    messages = tuple([await _sealed(message, sealing) for message in inbound.given])
    return msgspec.structs.replace(inbound, text=text, brief=brief, given=messages)


async def _sealed(message: Message, sealing: Sealing) -> Message:
    await asyncio.sleep(0)  # there may be many, and others want to go on
    calls = [
        msgspec.structs.replace(
            call,
            arguments=await sealing.seal_arguments(call.tool, call.arguments, only_inert=False),
            malformed=await sealing.seal(call.malformed, MESSAGE),
        )
        for call in message.calls
    ]
    return msgspec.structs.replace(message, text=await sealing.seal(message.text, MESSAGE), calls=tuple(calls))


def match(conn: Connection, principal: PrincipalId, session: Session, inbound: Inbound) -> None:
    """Raise unless each result answers a call that the session's last run has handed over, or one brought along."""
    wanted = {message.call_id for message in inbound.given if message.role is Role.TOOL}
    wanted -= {call.call_id for message in inbound.given for call in message.calls}
    if not wanted:
        return
    last = runs.last_in(conn, session.session_id, principal)
    # What a reset has put away is no longer context: nothing can answer it.
    calls = replay(conn, last.run_id).calls if last is not None and last.accepted_seq > session.reset_seq else ()
    if wanted - {call.call.call_id for call in calls if call.stage is Stage.HANDED_OVER}:
        raise ResultUnknown


def check_can_join(inbound: Inbound) -> None:
    """Raise if a message has more than its words, which is all that a run under way can take."""
    if inbound.brief != NO_BRIEF or inbound.images or inbound.given or inbound.agent is not None:
        raise CanNotJoin
