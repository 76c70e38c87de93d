"""The port behind which every language model stands, and how one fails."""

from collections.abc import AsyncIterator
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from palyra.core.errors import Unavailable
from palyra.core.model import Capabilities
from palyra.core.prompt import ModelEvent, Prompt


class FailureKind(StrEnum):
    """Why a model gave no answer; what to do about it depends on nothing else."""

    AUTH = "auth"
    PERMISSION = "permission"
    RATE_LIMIT = "rate_limit"
    QUOTA = "quota"
    CONTEXT_TOO_LONG = "context_too_long"
    CONTENT_POLICY = "content_policy"
    MALFORMED = "malformed"
    NETWORK = "network"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    UNUSABLE = "unusable"
    """Something is missing here: a package, or the model's file. It is the same until somebody sees to it."""


class ProviderFailed(Unavailable):
    """The model gave no answer."""

    def __init__(
        self,
        detail: str | None = None,
        *,
        kind: FailureKind = FailureKind.UNAVAILABLE,
        retry_after: timedelta = timedelta(0),
        refused: bool = False,
        is_well: bool = False,
        status: int = 0,
        cause: str = "",
    ) -> None:
        """`retry_after` is what the provider asks for, zero if nothing; if it `refused`, it did no work and takes no
        money for it. It `is_well` if it has answered, and only what the model wrote can not be used.

        `status` is that of HTTP, zero if none came. `cause` is for the log: our own words, nothing of what was sent or
        received."""
        super().__init__(detail, retry_after=retry_after)
        self.kind = kind
        self.refused = refused
        self.is_well = is_well
        self.status = status
        self.cause = cause


class Provider(Protocol):
    """Asks one model. An implementation has no memory between turns: all it knows is the prompt.

    `stream` is an async generator. It yields `TextDelta`, `ReasoningDelta` and `CallProposed` as they come, and exactly
    one `TurnDone`, last. A call is yielded whole; its `call_id` is unique within the turn. If the arguments that the
    model wrote can not be read, the call is yielded all the same, with `malformed` saying why and empty arguments.

    It raises `ProviderFailed` and nothing else, before or after text; its detail is one plain sentence without
    credentials. It is read by one task. When that task is cancelled, or the generator is closed, everything that it
    opened is closed before control returns.
    """

    name: str
    """What the configuration calls it."""
    model: str
    """The model that is asked, as its maker calls it."""
    capabilities: Capabilities

    def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Ask the model for its next turn."""
        ...
