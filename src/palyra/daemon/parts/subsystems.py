"""The subsystems of a daemon, below what executes runs and what serves clients."""

from dataclasses import dataclass

from palyra.daemon.parts.guards import GuardParts
from palyra.daemon.parts.journal import JournalParts
from palyra.daemon.parts.vault import VaultParts
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
