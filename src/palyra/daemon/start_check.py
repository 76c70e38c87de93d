"""Checks whether a start would succeed, without starting: a restart must not stop a daemon that cannot start again."""

from collections.abc import Iterable
from contextlib import ExitStack

from palyra.core.clock import Clock
from palyra.daemon.parts import journal_setup
from palyra.daemon.parts.models import check_model
from palyra.daemon.process.home_setup import WorkspaceFolders, prepare_home
from palyra.daemon.process.ports import listen, tls_context
from palyra.gateway.client.target import DaemonRecord, find_daemon
from palyra.gateway.grpc.server import PortInUse, port_taken
from palyra.home import Home
from palyra.journal import migrate
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stores import meta
from palyra.policy.current_policies import CurrentPolicies
from palyra.providers.prices import CurrentPrices
from palyra.settings import DEFAULT_PORT, Settings


def check(home: Home, settings: Settings, *, clock: Clock) -> None:
    """Raise what a start would raise. A daemon may be running on this home; its ports count as free. Blocks."""
    prepare_home(home)
    WorkspaceFolders(home, settings, owner=journal_setup.OWNER)
    CurrentPolicies(home)
    CurrentPrices(home, lambda: settings)
    tls_context(settings.http)
    _check_ports(settings, running=find_daemon(home))
    check_model(home, settings, clock=clock)
    _check_journal(home, settings)


def _check_ports(settings: Settings, *, running: DaemonRecord | None) -> None:
    ours = set(_ports(running)) if running is not None else set()
    # Both at once: they must be different.
    with ExitStack() as held:
        if settings.http.port not in ours:
            held.enter_context(listen(settings.http.host, settings.http.port, usual=DEFAULT_PORT))
        if settings.grpc.port is not None and settings.grpc.port not in ours:
            try:
                held.enter_context(listen(settings.grpc.host, settings.grpc.port, usual=0))
            except PortInUse as error:
                raise port_taken(settings.grpc.host, settings.grpc.port) from error
    if settings.grpc.port and settings.grpc.port == settings.http.port:
        raise port_taken(settings.grpc.host, settings.grpc.port)


def _ports(running: DaemonRecord) -> Iterable[int]:
    return (int(at.rpartition(":")[2] or 0) for at in (running.address, running.grpc))


def _check_journal(home: Home, settings: Settings) -> None:
    if settings.journal.database_url is None:
        journal_setup.require_journal(home)
        if not home.journal.exists():
            return
    else:
        journal_setup.require_driver()
    with open_snapshot(home, settings) as conn:
        if migrate.require_known(conn) > 0:
            journal_setup.require_key(home, meta.get(conn, "public_key"))
