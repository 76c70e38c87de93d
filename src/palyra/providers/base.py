"""The interface of every model provider, and how a provider fails."""

from collections.abc import AsyncIterator
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from palyra.core.errors import Unavailable
from palyra.core.model.catalog import Capabilities
from palyra.core.model.prompt import ModelEvent, Prompt


class FailureKind(StrEnum):
    """Why a model gave no answer; how the failure is handled depends only on this."""

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
    """Something is missing on this machine: a package, or the model file. Retries do not help until it is installed."""


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
        """`retry_after` is the delay that the provider asks for, zero if none; if it `refused`, it did no work and
        charges nothing. It `is_well` if it answered, and only the model's output is unusable.

        `status` is the HTTP status, zero if there was none. `cause` is for the log: our own words, nothing of what was
        sent or received."""
        super().__init__(detail, retry_after=retry_after)
        self.kind = kind
        self.refused = refused
        self.is_well = is_well
        self.status = status
        self.cause = cause


class Provider(Protocol):
    """One model of a provider. An implementation has no memory between turns: all it knows is the prompt.

    `stream` is an async generator. It yields `TextDelta`, `ReasoningDelta` and `CallProposed` as they come, and exactly
    one `TurnDone`, last. A call is yielded when it is complete; its `call_id` is unique within the turn. If the model's
    arguments cannot be parsed, the call is yielded anyway, with the reason in `malformed` and empty arguments.

    It raises only `ProviderFailed`, before or after text; its detail is one plain sentence without credentials. It is
    read by one task. When that task is cancelled, or the generator is closed, everything that it opened is closed
    before control returns.
    """

    name: str
    """The provider's name in the configuration."""
    model: str
    """The model's name, as its vendor spells it."""
    capabilities: Capabilities

    def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Request the next turn of the model."""
        ...
