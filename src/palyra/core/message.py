"""Inbound messages: one message from a person or a service, from any channel."""

from msgspec import Struct

from palyra.core.channel import UNKNOWN
from palyra.core.errors import Invalid
from palyra.core.events import InputMode
from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.model.prompt import Image, Message, Role
from palyra.core.model.request_options import NO_REQUEST_OPTIONS, RequestOptions
from palyra.core.session import SessionRef

MAX_MESSAGE_BYTES = 256 * 1024
MAX_IDEMPOTENCY_KEY_CHARS = 200


class MessageEmpty(Invalid):
    """The message is empty. Write some text."""


class MessageTooLarge(Invalid):
    """The message is longer than 256 KiB. Put long text into a file in the workspace and name the file instead."""


class TextInvalid(Invalid):
    """The text is not valid Unicode: it contains a NUL character or half of a surrogate pair."""


class Inbound(Struct, frozen=True, kw_only=True):
    """An inbound message, decoded and not yet judged."""

    principal: PrincipalId
    text: str
    session: SessionRef = SessionRef()
    after: RunId | None = None
    """The run that this continues: it is accepted only if that is still the last run of its session."""
    mode: InputMode = InputMode.QUEUE
    idempotency_key: str | None = None
    channel: str = UNKNOWN
    agent: str | None = None
    """The agent that should answer, by its id or name; the session's agent if none is named."""
    options: RequestOptions = NO_REQUEST_OPTIONS
    images: tuple[Image, ...] = ()
    history: tuple[Message, ...] = ()
    """The attached history, in order: earlier messages, or results of client tools."""
    pictures: dict[str, bytes] = {}
    """The images of all messages, by their digests."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer."""
        results = bool(self.history) and self.history[-1].role is Role.TOOL
        return not self.text.strip() and not self.images and not results


class AcceptedMessage(Struct, frozen=True, kw_only=True):
    """The receipt of a message: the run that executes it, and the end of the tape before it."""

    run_id: RunId
    session_id: SessionId
    after_seq: int
    """Stream from this position to see everything from the message on."""
    steered: bool = False
    """The message was added to a run that was active already."""
    queued: bool = False
    """Another run is active; this one is queued."""
    waiting_for: str | None = None
    """What the active run waits for, if the message is queued behind one that waits."""
    repeated: bool = False
    """The idempotency key was seen before; this is the run it created."""
    sealed: int = 0
    """How many secrets in the message were stored in the vault; the record and the model have markers instead."""
    removed: int = 0
    """How many secrets could not be stored: they are lost."""


def clean_text(text: str, *, what: str = "text") -> str:
    """Return the text unchanged, or raise `TextInvalid` and say where it is invalid."""
    if (index := text.find("\0")) >= 0:
        raise TextInvalid(
            f"The {what} contains a NUL character at position {index}. Remove it and send the message again."
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextInvalid(
                f"The {what} is not valid Unicode at position {error.start} (half of a surrogate pair). "
                "Send it as UTF-8."
            ) from None
    return text


def repair_text(text: str) -> str:
    """Return the text with NULs and lone surrogates replaced; for the output of models and tools."""
    if text.isascii():
        return text.replace("\0", "�")
    return text.encode("utf-8", "replace").decode().replace("\0", "�")
