"""The services that `/v1` uses."""

from collections.abc import Callable
from dataclasses import dataclass

from palyra.core.clock import Clock
from palyra.gateway.stream_limit import StreamLimiter
from palyra.journal.engines.base import Engine
from palyra.journal.tail import Tail
from palyra.policy.gate import Gate
from palyra.providers.model_pool import ModelPool
from palyra.providers.transport.remote_provider import RemoteProvider
from palyra.runs.services.agents import AgentService
from palyra.runs.services.cancellation import CancellationService
from palyra.runs.services.embeddings import EmbeddingsService
from palyra.runs.services.intake import MessageIntake
from palyra.settings import ModelSettings
from palyra.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True, kw_only=True)
class V1Services:
    """Parts of the daemon, shared with its other APIs."""

    engine: Engine
    tail: Tail
    streams: StreamLimiter
    intake: MessageIntake
    control: CancellationService
    agents: AgentService
    toolbox: Toolbox
    gate: Callable[[], Gate]
    """Returns the policies in force."""
    roster: ModelPool
    remote: Callable[[str, str], RemoteProvider]
    """Returns the provider and the model of two names, for requests that are forwarded."""
    embeddings: EmbeddingsService
    settings: Callable[[], ModelSettings]
    clock: Clock
