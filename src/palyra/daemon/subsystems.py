"""The subsystems of a daemon, below what executes runs and what serves clients."""

from dataclasses import dataclass

from palyra.daemon.guards import GuardParts
from palyra.daemon.journal import JournalParts
from palyra.daemon.vault import VaultParts
from palyra.runs.engine.models import ModelParts
from palyra.runs.engine.tool_contexts import ToolParts
from palyra.runs.system import System


@dataclass(frozen=True, slots=True)
class Subsystems:
    """What runs and services are built from."""

    system: System
    journal: JournalParts
    vault: VaultParts
    models: ModelParts
    tools: ToolParts
    guards: GuardParts
