"""Builds what holds runs back: emergency stops; and what judges calls beside the policies: shadow policies."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from palyra.daemon.parts.journal import JournalParts
from palyra.daemon.process.stop_file import HomeStopFile
from palyra.daemon.process.waiting import Waiting
from palyra.home import Home
from palyra.runs.services.emergency_stops import StopService
from palyra.runs.services.policy_shadow import PolicyShadowService
from palyra.runs.system import System


@dataclass(frozen=True, slots=True)
class GuardParts:
    """Emergency stops and shadow policies, as the journal has them."""

    stops: StopService
    shadows: PolicyShadowService


async def build_guards(
    home: Home, system: System, journal: JournalParts, waiting: Waiting, stack: AsyncExitStack
) -> GuardParts:
    """Return both, loaded from the journal."""
    clock, ids, shared = system.clock, system.ids, journal.shared
    stops = StopService(journal.engine, clock=clock, ids=ids, file=HomeStopFile(home.stop), shared=shared)
    await stops.load()
    shadows = PolicyShadowService(journal.engine, clock=clock, ids=ids, shared=shared)
    await waiting.for_space(shadows.load)
    stack.push_async_callback(shadows.flush)
    return GuardParts(stops, shadows)
