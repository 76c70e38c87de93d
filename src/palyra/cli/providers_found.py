"""What there is on this machine to begin with: keys in the environment, and servers that answer."""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

import msgspec

from palyra.cli.providers_known import KNOWN, Known

PROBE_SECONDS = 0.7
MOST_BYTES = 1024 * 1024


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: tuple[_Model, ...] | None
    """Some servers say null where they have none."""


@dataclass(frozen=True, slots=True)
class Found:
    """A provider that could be used now."""

    known: Known
    variable: str | None = None
    """Where its key stands."""
    base_url: str | None = None
    """Where it answers."""
    models: int = 0

    @property
    def words(self) -> str:
        """What was found."""
        if self.variable is not None:
            return f"its key is in {self.variable}"
        return f"answers at {self.base_url}, with {self.models} model{'' if self.models == 1 else 's'}"


def look_around(environ: Mapping[str, str] = os.environ, known: Iterable[Known] = KNOWN.values()) -> list[Found]:
    """Return what there is: keys first, then servers. Takes no longer than one of them does to answer."""
    known = list(known)
    keys = [Found(one, variable=name) for one in known if (name := key_variable(one, environ)) is not None]
    servers = [(one, address_of(one, environ)) for one in known if one.is_server]
    return [*keys, *_answering(servers)]


def key_variable(known: Known, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable in which the provider's key stands, if there is one."""
    return next((name for name in known.variables if environ.get(name, "").strip()), None)


def address_of(known: Known, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return where a provider answers, as far as it is not the dialect that knows."""
    said = environ.get(known.host_variable or "", "").strip()
    if not said or known.base_url is None:
        return known.base_url
    usual = urlsplit(known.base_url)
    try:
        given = urlsplit(said if "://" in said else f"//{said}")
        host, port = given.hostname, given.port or usual.port
    except ValueError:
        return known.base_url
    # Where the server listens is said in the same variable: everywhere is here, too.
    host = usual.hostname if host in (None, "0.0.0.0", "::") else host
    return f"{given.scheme or usual.scheme}://{f'[{host}]' if ':' in str(host) else host}:{port}{usual.path}"


def _answering(servers: list[tuple[Known, str | None]]) -> Iterator[Found]:
    asked = [(one, url) for one, url in servers if url is not None]
    if not asked:
        return
    with ThreadPoolExecutor(len(asked)) as pool:
        counts = list(pool.map(models_at, (url for _, url in asked)))
    for (one, url), count in zip(asked, counts, strict=True):
        if count is not None:
            yield Found(one, base_url=url, models=count)


def models_at(base_url: str) -> int | None:
    """Return how many models a server on this machine has; None if none answers there in the way that is meant."""
    place = urlsplit(base_url)
    if place.scheme != "http" or place.hostname is None:
        return None
    connection = HTTPConnection(place.hostname, place.port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", f"{place.path}/models")
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES)
        if answer.status != 200:
            return None
        return len(msgspec.json.decode(body, type=_Models).data or ())
    except (OSError, HTTPException, msgspec.DecodeError, ValueError):
        return None
    finally:
        connection.close()
