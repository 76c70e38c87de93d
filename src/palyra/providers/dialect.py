"""The interface of HTTP dialects: how a prompt becomes a request, and how the answer is parsed.

A dialect does no I/O. `RemoteProvider` sends the request, and passes the server-sent events to the reader as they come.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from palyra.core.model.catalog import ModelCard
from palyra.core.model.prompt import ModelEvent, Prompt
from palyra.providers.base import ProviderFailed

AS_JSON = "Give your final answer as JSON alone, without any other words, that keeps to this JSON Schema: "
"""The instruction for a model that cannot be constrained by a schema. The schema follows."""


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """The model of a request, as the owner configured it."""

    provider: str
    """The provider's name in the configuration, for messages."""
    model: str
    card: ModelCard
    """The model's properties; no field is None."""
    max_output_tokens: int
    base_url: str = ""
    """The base URL; some servers do not accept everything that others do."""


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """A request, without the base URL."""

    path: str
    headers: Mapping[str, str]
    """Without the key."""
    body: bytes


class AnswerReader(Protocol):
    """Parses one answer. It gets each event once, in order, and raises `ProviderFailed` for invalid ones."""

    def feed(self, name: str, data: bytes) -> Iterable[ModelEvent]:
        """Parse one server-sent event; its name may be empty. Return what it adds."""
        ...

    def end(self) -> Iterable[ModelEvent]:
        """Return what is left at the end of the stream: the `TurnDone`, if still due; raise if it is missing."""
        ...


class Dialect(Protocol):
    """A dialect. Its module has one value of this type, `DIALECT`."""

    base_url: str
    """The base URL of its vendor."""

    def authorised(self, key: str) -> Mapping[str, str]:
        """Return the headers with the key."""
        ...

    def request(self, prompt: Prompt, target: ModelTarget) -> ProviderRequest:
        """Return the request for the model's next turn."""
        ...

    def reader(self, prompt: Prompt, target: ModelTarget) -> AnswerReader:
        """Return the parser of the answer."""
        ...

    def refused(self, status: int, headers: Mapping[str, str], body: bytes, target: ModelTarget) -> ProviderFailed:
        """Return the failure for an answer that is not a stream: an error, or something unexpected."""
        ...

    def model_card(self, model: str) -> ModelCard:
        """Return what is known about a model by its name; the rest is estimated conservatively, and nothing is None."""
        ...

    def list_path(self) -> str:
        """Return the path of the list of models."""
        ...

    def listed(self, body: bytes) -> list[str]:
        """Return the models of such a list."""
        ...
