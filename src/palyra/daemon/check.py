"""What a start would refuse, found without starting: a restart must not stop a daemon that no other can follow."""

from collections.abc import Iterable
from contextlib import ExitStack

from palyra.core.clock import Clock
from palyra.daemon import journal, models
from palyra.daemon.current import Current
from palyra.daemon.home import Workspaces, prepare
from palyra.daemon.listen import PortTaken, listen, tls_context
from palyra.gateway.grpc.server import port_taken
from palyra.gateway.target import Daemon, find_daemon
from palyra.home import Home
from palyra.journal import meta, migrate
from palyra.journal.verify import opened
from palyra.policy.current import CurrentPolicies
from palyra.providers.http import Http
from palyra.providers.llama import Llama
from palyra.providers.prices import Prices
from palyra.settings import DEFAULT_PORT, Settings


def check(home: Home, settings: Settings, *, clock: Clock) -> None:
    """Raise what a start would raise. A daemon may be running in this home; its ports count as free. Blocks."""
    prepare(home)
    Workspaces(home, settings, owner=journal.OWNER)
    CurrentPolicies(home)
    Prices(home, lambda: settings)
    tls_context(settings.http)
    _check_ports(settings, running=find_daemon(home))
    check_model(home, settings, clock=clock)
    _check_journal(home, settings)


def _check_ports(settings: Settings, *, running: Daemon | None) -> None:
    ours = set(_ports(running)) if running is not None else set()
    # Both at once: they must not be the same.
    with ExitStack() as held:
        if settings.http.port not in ours:
            held.enter_context(listen(settings.http.host, settings.http.port, usual=DEFAULT_PORT))
        if settings.grpc.port is not None and settings.grpc.port not in ours:
            try:
                held.enter_context(listen(settings.grpc.host, settings.grpc.port, usual=0))
            except PortTaken as error:
                raise port_taken(settings.grpc.host, settings.grpc.port) from error
    if settings.grpc.port and settings.grpc.port == settings.http.port:
        raise port_taken(settings.grpc.host, settings.grpc.port)


def _ports(running: Daemon) -> Iterable[int]:
    return (int(at.rpartition(":")[2] or 0) for at in (running.address, running.grpc))


def check_model(home: Home, settings: Settings, *, clock: Clock) -> None:
    """Raise if the models that are set cannot be asked: a script or a model file is missing, or a name is unknown."""

    async def no_key(_: str) -> str:
        raise AssertionError("nothing is asked here")

    current = Current(home, settings)
    connect = models.connector(current, key=no_key, http=Http(), llama=Llama())
    models.build(current, connect=connect, clock=clock)


def _check_journal(home: Home, settings: Settings) -> None:
    if settings.journal.database_url is None:
        journal.require_journal(home)
        if not home.journal.exists():
            return
    else:
        journal.require_driver()
    with opened(home, settings) as conn:
        if migrate.require_known(conn) > 0:
            journal.require_key(home, meta.get(conn, "public_key"))
