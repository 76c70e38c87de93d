"""Which host names a request may use, and which web pages may send requests.

A browser sends requests for any page that is open in it. With DNS rebinding, a page points its own name at the daemon's
address and then reads the responses; the `Host` header shows that name. A page may also send requests to another
origin, which `Origin` and `Sec-Fetch-Site` show. Programs other than browsers send neither header.
"""

from collections.abc import Collection
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from palyra.core.errors import Denied

_FOREIGN = frozenset({"cross-site", "same-site"})


class RequestHostNotAllowed(Denied):
    """The request names a host that this daemon does not serve."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This daemon does not serve the host {host[:100]!r}. Use its address or localhost, or add the name to"
            " `names` in section [http] of the configuration."
        )


class OriginNotAllowed(Denied):
    """The request comes from a web page that may not send one."""

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"Web pages of {origin[:100]!r} may not send requests to this daemon. Add the origin to `origins` in"
            " section [http] of the configuration if they should."
        )


class RequestOrigin(NamedTuple):
    """The host that a request names, and the web page that it comes from."""

    host: str | None
    origin: str | None = None
    fetch_site: str | None = None
    scheme: str = "http"
    local: str | None = None
    """The local address that it was received at."""


class AllowedHosts:
    """Checks requests against the daemon's host names and the allowed web origins."""

    def __init__(self, names: Collection[str] = (), *, origins: Collection[str] = ()) -> None:
        """`names` are further host names and addresses of the daemon; `origins` are as browsers write them."""
        self._names = frozenset({"localhost", *(_plain(name) for name in names)})
        self._origins = frozenset(origin.lower() for origin in origins)

    def check(self, request_origin: RequestOrigin) -> bool:
        """Raise if the host or the page is not allowed. Return whether an allowed page of another origin sent it."""
        if request_origin.host is not None and not self._serves(request_origin):
            raise RequestHostNotAllowed(request_origin.host)
        if request_origin.origin is None:
            if request_origin.fetch_site in _FOREIGN:
                raise OriginNotAllowed("another site")
            return False
        if request_origin.origin.lower() in self._origins:
            return True
        if (
            request_origin.host is None
            or request_origin.origin.lower() != f"{request_origin.scheme}://{request_origin.host}".lower()
        ):
            raise OriginNotAllowed(request_origin.origin)
        return False

    def _serves(self, request_origin: RequestOrigin) -> bool:
        host = _host_of(request_origin.host or "")
        return bool(host) and (host in self._names or host == _plain(request_origin.local or ""))


@lru_cache(maxsize=256)
def _host_of(text: str) -> str:
    """Return the host of `HOST` or `HOST:PORT`, or an empty string if it is neither."""
    try:
        parts = urlsplit(f"//{text}")
        _ = parts.port  # raises if it is not one
    except ValueError:
        return ""
    return _plain(parts.hostname or "") if parts.netloc == text and "@" not in text else ""


@lru_cache(maxsize=256)
def _plain(name: str) -> str:
    """Return a host name or an address in its normalized form, for comparison."""
    bare = name.lower().strip("[]").partition("%")[0].removesuffix(".")
    try:
        address = ip_address(bare)
    except ValueError:
        return bare
    # A daemon bound to all addresses has no single address; browsers treat this one as their own machine.
    if address.is_unspecified:
        return ""
    return "localhost" if address.is_loopback else str(address)
