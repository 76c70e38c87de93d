"""What comes in: one message from a person or a service, whatever door it took."""

from msgspec import Struct

from palyra.core.brief import NO_BRIEF, Brief
from palyra.core.errors import Invalid
from palyra.core.events import Mode
from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.prompt import Image, Message, Role
from palyra.core.session import SessionRef

MAX_MESSAGE_BYTES = 256 * 1024
MAX_IDEMPOTENCY_KEY_CHARS = 200


class MessageEmpty(Invalid):
    """The message is empty. Say something."""


class MessageTooLong(Invalid):
    """The message is longer than 256 KiB. Put long material into a file of the workspace and name it instead."""


class TextUnclean(Invalid):
    """The text holds characters that no text should: NUL, or half of a surrogate pair."""


class Inbound(Struct, frozen=True, kw_only=True):
    """A message at the door, decoded and not yet judged."""

    principal: PrincipalId
    text: str
    session: SessionRef = SessionRef()
    after: RunId | None = None
    """The run that this goes on from: it is taken in only if that is still the last one of its session."""
    mode: Mode = Mode.QUEUE
    idempotency_key: str | None = None
    origin: str = "api"
    agent: str | None = None
    """The agent that should answer, by its id or name; whoever answers in the session if none is named."""
    brief: Brief = NO_BRIEF
    images: tuple[Image, ...] = ()
    given: tuple[Message, ...] = ()
    """What the caller brings along, in its order: messages from before, or results of its own tools."""
    pictures: dict[str, bytes] = {}
    """The pictures of all messages, by their digests."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could be answered."""
        results = bool(self.given) and self.given[-1].role is Role.TOOL
        return not self.text.strip() and not self.images and not results


class Accepted(Struct, frozen=True, kw_only=True):
    """The answer of the door: the run that will carry the message, and where its tape stood before it."""

    run_id: RunId
    session_id: SessionId
    after_seq: int
    """Attach with this to see everything from the message on."""
    steered: bool = False
    """The message joined a run that was active already."""
    queued: bool = False
    """Another run is active; this one waits for its turn."""
    waiting_for: str | None = None
    """What the active run waits for, if the message is queued behind one that waits."""
    repeated: bool = False
    """The idempotency key was seen before; this is the run of then."""
    sealed: int = 0
    """How many secrets in the message the vault took: what is recorded, and what the model sees, has markers."""
    removed: int = 0
    """How many it could not take: they are lost."""


def clean_text(text: str, *, what: str = "text") -> str:
    """Return the text unchanged, or raise `TextUnclean` saying where it is bad."""
    if (place := text.find("\0")) >= 0:
        raise TextUnclean(f"The {what} holds a NUL character at position {place}. Remove it and send again.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextUnclean(
                f"The {what} is no valid Unicode at position {error.start} (half of a surrogate pair). "
                "Send it as UTF-8."
            ) from None
    return text


def mend_text(text: str) -> str:
    """Return the text with NULs and half surrogates replaced, for what models and tools give us."""
    if text.isascii():
        return text.replace("\0", "�")
    return text.encode("utf-8", "replace").decode().replace("\0", "�")
