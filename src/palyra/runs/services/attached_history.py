"""Attached history: the messages a caller sends along, or results of the caller's own tools."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec

from palyra.core.errors import Conflict, Invalid
from palyra.core.events import HistoryAttached
from palyra.core.ids import PrincipalId
from palyra.core.message import MAX_MESSAGE_BYTES, Inbound, MessageTooLarge, clean_text
from palyra.core.model.prompt import Message, Role
from palyra.core.model.request_options import NO_REQUEST_OPTIONS
from palyra.core.policy import labels
from palyra.core.run.state import CallStage
from palyra.core.session import Session
from palyra.journal.content import blobs
from palyra.journal.content.blobs import PackedContent
from palyra.journal.engines.base import Connection
from palyra.journal.stores import runs
from palyra.runs.labels.result_labels import scan_result
from palyra.runs.recording.replay import replay
from palyra.runs.services.sealing import MESSAGE, SealingUnit

_encode = msgspec.json.Encoder().encode

MAX_MESSAGES = 2_000
MAX_BYTES = 4 * 1024 * 1024


class HistoryTooLarge(Invalid):
    """The attached history is too large: at most 2000 messages and 4 MiB in all. Leave out the oldest messages."""


class ToolResultUnexpected(Invalid):
    """A tool result does not answer a call that was handed over. Send results only for the calls of the last answer."""


class MessageNotJoinable(Conflict):
    """This message cannot be added to the active run, because it has images, tools, options or history of its own.
    Queue it instead.
    """


def check_history(inbound: Inbound) -> None:
    """Raise unless the attached history can be stored."""
    if len(inbound.history) > MAX_MESSAGES:
        raise HistoryTooLarge
    size = 0
    for message in inbound.history:
        clean_text(message.text, what="message")
        length = len(message.text.encode())
        if length > MAX_MESSAGE_BYTES:
            raise MessageTooLarge
        size += length + (len(_encode(message.calls)) if message.calls else 0)
    if size > MAX_BYTES:
        raise HistoryTooLarge


@dataclass(frozen=True, slots=True)
class AttachedHistory:
    """The history attached to a message, ready to be written."""

    messages: tuple[HistoryAttached, ...] = ()
    pictures: tuple[PackedContent, ...] = ()


def prepare_history(inbound: Inbound, *, at: datetime) -> AttachedHistory:
    """Prepare the attached history. Blocks while pictures are packed and results scanned."""
    pictures = tuple(blobs.pack(content) for content in inbound.pictures.values())
    return AttachedHistory(tuple(_events(inbound, at=at)), pictures)


def _events(inbound: Inbound, *, at: datetime) -> Iterator[HistoryAttached]:
    """Yield the attached history as events. Only what the person said counts as the person's."""
    for message in inbound.history:
        yield HistoryAttached(
            at=at,
            actor=inbound.principal,
            labels=(labels.OWNER,) if message.role is Role.USER else (labels.TOOL,),
            role=message.role,
            text=message.text,
            calls=message.calls,
            call_id=message.call_id,
            images=message.images,
            signals=scan_result(message.text) if message.role is Role.TOOL else (),
        )


async def seal_history(inbound: Inbound, sealing: SealingUnit) -> Inbound:
    """Return a message and its attached history with markers for secrets: nothing after this sees the values."""
    options = inbound.options
    if options.system:
        options = msgspec.structs.replace(options, system=await sealing.seal(options.system, MESSAGE))
    text = await sealing.seal(inbound.text, MESSAGE)
    if options is inbound.options and text == inbound.text and not inbound.history:
        return inbound
    messages = tuple([await _sealed(message, sealing) for message in inbound.history])
    return msgspec.structs.replace(inbound, text=text, options=options, history=messages)


async def _sealed(message: Message, sealing: SealingUnit) -> Message:
    await asyncio.sleep(0)  # there may be many; let other tasks run
    calls = [
        msgspec.structs.replace(
            call,
            arguments=await sealing.seal_arguments(call.tool, call.arguments, only_inert=False),
            malformed=await sealing.seal(call.malformed, MESSAGE),
        )
        for call in message.calls
    ]
    return msgspec.structs.replace(message, text=await sealing.seal(message.text, MESSAGE), calls=tuple(calls))


def match_results(conn: Connection, principal: PrincipalId, session: Session, inbound: Inbound) -> None:
    """Raise unless each result answers a call that the session's last run handed over, or one in the history."""
    call_ids = {message.call_id for message in inbound.history if message.role is Role.TOOL}
    call_ids -= {call.call_id for message in inbound.history for call in message.calls}
    if not call_ids:
        return
    last = runs.last_in(conn, session.session_id, principal)
    # What came before a reset is no longer context: nothing can answer it.
    calls = replay(conn, last.run_id).calls if last is not None and last.accepted_seq > session.reset_seq else ()
    if call_ids - {call.call.call_id for call in calls if call.stage is CallStage.HANDED_OVER}:
        raise ToolResultUnexpected


def check_can_join(inbound: Inbound) -> None:
    """Raise if a message has more than text, which is all that a running run can accept."""
    if inbound.options != NO_REQUEST_OPTIONS or inbound.images or inbound.history or inbound.agent is not None:
        raise MessageNotJoinable
