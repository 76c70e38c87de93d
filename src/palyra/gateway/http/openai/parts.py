"""What `/v1` works with."""

from collections.abc import Callable
from dataclasses import dataclass

from palyra.core.clock import Clock
from palyra.gateway.streams import Streams
from palyra.journal.engine import Engine
from palyra.journal.tail import Tail
from palyra.policy.gate import Gate
from palyra.providers.remote import Remote
from palyra.providers.roster import Roster
from palyra.runs.agents import Agents
from palyra.runs.control import Control
from palyra.runs.embeddings import Embeddings
from palyra.runs.intake import Intake
from palyra.settings import ModelSettings
from palyra.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of the daemon, shared with its other doors."""

    engine: Engine
    tail: Tail
    streams: Streams
    intake: Intake
    control: Control
    agents: Agents
    toolbox: Toolbox
    gate: Callable[[], Gate]
    """Gives the policies in force."""
    roster: Roster
    remote: Callable[[str, str], Remote]
    """Gives the provider and the model of two names, for requests that are passed on."""
    embeddings: Embeddings
    settings: Callable[[], ModelSettings]
    clock: Clock
