"""How a provider is spoken to over HTTP: what is sent for a prompt, and what the pieces of the answer mean.

A dialect does no I/O. `Remote` sends the request, and gives the reader the answer's server-sent events as they come.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from palyra.core.model import ModelCard
from palyra.core.prompt import ModelEvent, Prompt
from palyra.providers.base import ProviderFailed

AS_JSON = "Give your final answer as JSON alone, without any other words, that keeps to this JSON Schema: "
"""How a model is asked for it that can not be held to a schema. The schema follows."""


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is asked, as the owner has set it up."""

    provider: str
    """What the configuration calls the provider: for messages."""
    model: str
    card: ModelCard
    """What is known of the model; nothing in it is None any more."""
    max_output_tokens: int
    base_url: str = ""
    """Where it is asked; some servers do not take all that others do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, but for the base URL."""

    path: str
    headers: Mapping[str, str]
    """Without the key."""
    body: bytes


class Reader(Protocol):
    """Reads one answer. It is given each event once, in order, and raises `ProviderFailed` at what can not be."""

    def feed(self, name: str, data: bytes) -> Iterable[ModelEvent]:
        """Take in one server-sent event; its name may be empty. Return what it adds."""
        ...

    def end(self) -> Iterable[ModelEvent]:
        """Say what is left when the stream has ended: the `TurnDone`, if none was given yet; raise if it is missing."""
        ...


class Speaks(Protocol):
    """A dialect. Its module has one value of this kind, `DIALECT`."""

    base_url: str
    """Where its maker answers."""

    def authorised(self, key: str) -> Mapping[str, str]:
        """Return the headers that carry the key."""
        ...

    def request(self, prompt: Prompt, target: Target) -> Request:
        """Return what asks the model for its next turn."""
        ...

    def reader(self, prompt: Prompt, target: Target) -> Reader:
        """Return who reads the answer to it."""
        ...

    def refused(self, status: int, headers: Mapping[str, str], body: bytes, target: Target) -> ProviderFailed:
        """Say what an answer means that is no stream: an error, or what no server of this kind would send."""
        ...

    def known(self, model: str) -> ModelCard:
        """Return what is known of a model by its name; what is not is guessed with care, and nothing is None."""
        ...

    def list_path(self) -> str:
        """Return where the provider lists its models."""
        ...

    def listed(self, body: bytes) -> list[str]:
        """Return the models of such a list."""
        ...
