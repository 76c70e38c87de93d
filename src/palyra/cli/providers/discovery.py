"""Discovers providers on this machine: keys in the environment, and servers that answer."""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

import msgspec

from palyra.cli.providers.presets import PROVIDER_PRESETS, ProviderPreset

PROBE_SECONDS = 0.7
MAX_BYTES = 1024 * 1024


class _ServerModel(msgspec.Struct):
    id: str


class _ServerModels(msgspec.Struct):
    data: tuple[_ServerModel, ...] | None
    """Some servers send null where they have none."""


@dataclass(frozen=True, slots=True)
class DiscoveredProvider:
    """A provider that could be used now."""

    preset: ProviderPreset
    variable: str | None = None
    """The variable with its key."""
    base_url: str | None = None
    """Its base URL."""
    models: int = 0

    @property
    def summary(self) -> str:
        """What was discovered, as text."""
        if self.variable is not None:
            return f"API key in {self.variable}"
        return f"running at {self.base_url}, {self.models} model{'' if self.models == 1 else 's'}"


def discover_providers(
    environ: Mapping[str, str] = os.environ, presets: Iterable[ProviderPreset] = PROVIDER_PRESETS.values()
) -> list[DiscoveredProvider]:
    """Return the discovered providers: keys first, then servers. Takes no longer than the slowest server."""
    presets = list(presets)
    keys = [
        DiscoveredProvider(one, variable=name) for one in presets if (name := key_variable(one, environ)) is not None
    ]
    servers = [(one, address_of(one, environ)) for one in presets if one.is_server]
    return [*keys, *_answering(servers)]


def key_variable(preset: ProviderPreset, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable that holds the provider's key, if there is one."""
    return next((name for name in preset.variables if environ.get(name, "").strip()), None)


def address_of(preset: ProviderPreset, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a provider's base URL, unless the dialect defines it."""
    text = environ.get(preset.host_variable or "", "").strip()
    if not text or preset.base_url is None:
        return preset.base_url
    usual = urlsplit(preset.base_url)
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname, parts.port or usual.port
    except ValueError:
        return preset.base_url
    # The same variable sets the server's listen address: all addresses include this machine.
    host = usual.hostname if host in (None, "0.0.0.0", "::") else host
    return f"{parts.scheme or usual.scheme}://{f'[{host}]' if ':' in str(host) else host}:{port}{usual.path}"


def _answering(servers: list[tuple[ProviderPreset, str | None]]) -> Iterator[DiscoveredProvider]:
    request = [(one, url) for one, url in servers if url is not None]
    if not request:
        return
    with ThreadPoolExecutor(len(request)) as pool:
        counts = list(pool.map(models_at, (url for _, url in request)))
    for (one, url), count in zip(request, counts, strict=True):
        if count is not None:
            yield DiscoveredProvider(one, base_url=url, models=count)


def models_at(base_url: str) -> int | None:
    """Return how many models a server on this machine has; None if no such server answers there."""
    parts = urlsplit(base_url)
    if parts.scheme != "http" or parts.hostname is None:
        return None
    connection = HTTPConnection(parts.hostname, parts.port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", f"{parts.path}/models")
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES)
        if answer.status != 200:
            return None
        return len(msgspec.json.decode(body, type=_ServerModels).data or ())
    except (OSError, HTTPException, msgspec.DecodeError, ValueError):
        return None
    finally:
        connection.close()
