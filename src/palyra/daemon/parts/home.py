"""Opens the home folder of a daemon: locks it, starts the log, and reads the files that configure it."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from palyra import telemetry
from palyra.core.clock import Clock
from palyra.daemon.parts.journal_setup import OWNER
from palyra.daemon.parts.models import check_model
from palyra.daemon.process.home_setup import HomeLock, WorkspaceFolders, explain_write_errors, prepare_home
from palyra.daemon.process.live_config import LiveConfig
from palyra.home import Home
from palyra.policy.current_policies import CurrentPolicies
from palyra.runs.services.secrets import UsedSecrets
from palyra.tools.plugins.current import CurrentPlugins


@dataclass(frozen=True, slots=True)
class HomeParts:
    """What a daemon reads from its home folder."""

    home: Home
    config: LiveConfig
    workspaces: WorkspaceFolders
    policies: CurrentPolicies
    plugins: CurrentPlugins
    used_secrets: UsedSecrets
    """The secrets that were used; the log hides them."""


async def open_home(home: Home, config: LiveConfig, stack: AsyncExitStack, *, clock: Clock) -> HomeParts:
    """Lock the home until the stack is closed, and read its files. Raise if one is invalid."""
    used = UsedSecrets()
    prepare_home(home)
    stack.enter_context(HomeLock(home))
    with explain_write_errors(home):
        telemetry.log_to(home.log, hide=used.hide)
    workspaces = WorkspaceFolders(home, config.now, owner=OWNER)
    policies = await asyncio.to_thread(CurrentPolicies, home)
    plugins = await asyncio.to_thread(CurrentPlugins, home)
    config.include(policies, plugins)
    config.refuse(lambda settings: check_model(home, settings, clock=clock))
    return HomeParts(home, config, workspaces, policies, plugins, used)
