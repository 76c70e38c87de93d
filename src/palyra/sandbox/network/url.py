"""Parses URLs so that there is one meaning: what is checked is what is requested.

Anything that two programs could read in two ways is refused: names and passwords before the host, backslashes, control
characters, numbers that stand for an address in another way than `1.2.3.4`, dots at the end of a name.
"""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import quote, urljoin

from palyra.core.errors import Denied, Invalid

MAX_CHARS = 8192
PORTS = {"http": 80, "https": 443}

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<place>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?:#.*)?"
)
_PLACE = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNSEEN = re.compile(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\\]")
_KEPT = "/:?#[]@!$&'()*+,;=%~-._"
_INSIDE = ("localhost", "local", "internal", "intranet", "lan", "home.arpa", "in-addr.arpa", "ip6.arpa", "onion")
"""Names that never lead to the internet."""


class UrlInvalid(Invalid):
    """The URL is not valid. Write it like https://example.org/page."""


class HostNotPublic(Denied):
    """The host belongs to this machine or its own network, which no tool may reach."""


@dataclass(frozen=True, slots=True)
class UrlTarget:
    """The target of a request."""

    scheme: str
    host: str
    """A name in lower case as the network spells it, or an address without brackets."""
    port: int
    path: str
    """With the query; never empty."""

    @property
    def authority(self) -> str:
        """The host as a request names it."""
        displayed = f"[{self.host}]" if ":" in self.host else self.host
        return displayed if self.port == PORTS[self.scheme] else f"{displayed}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """The full URL, in its one spelling."""
        return f"{self.origin}{self.path}"


def parse(text: str) -> UrlTarget:
    """Parse a URL, or raise what is wrong with it."""
    if len(text) > MAX_CHARS:
        raise UrlInvalid(f"The URL is longer than {MAX_CHARS} characters.")
    if _UNSEEN.search(text):
        raise UrlInvalid("The URL contains a space, a backslash or an invisible character.")
    match = _URL.fullmatch(text)
    if match is None:
        raise UrlInvalid
    scheme = match["scheme"].lower()
    if scheme not in PORTS:
        raise UrlInvalid(f"Only http and https can be fetched, not {scheme}.")
    if "@" in match["place"]:
        raise UrlInvalid("The URL has a user name or password before the host. Remove it.")
    target_match = _PLACE.fullmatch(match["place"])
    if target_match is None:
        raise UrlInvalid("The host of the URL is not valid.")
    host = _address_in_brackets(target_match["six"]) if target_match["six"] is not None else _host(target_match["name"])
    try:
        path = quote(match["path"] or "/", safe=_KEPT) + quote(match["query"] or "", safe=_KEPT)
    except UnicodeEncodeError:
        raise UrlInvalid("The URL is not valid Unicode.") from None
    return UrlTarget(scheme, host, _port(target_match["port"], scheme), path)


def resolve_redirect(target: UrlTarget, location: str) -> UrlTarget:
    """Return the target of a redirect, checked like any other URL."""
    try:
        return parse(urljoin(target.url, location.strip(" \t")))
    except ValueError:
        raise UrlInvalid(f"{target.host} redirects to something that is not a URL.") from None


def _port(text: str | None, scheme: str) -> int:
    if text is None:
        return PORTS[scheme]
    if not text or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise UrlInvalid("The port of the URL is not a number from 1 to 65535.")
    return int(text)


def _address_in_brackets(text: str) -> str:
    try:
        address = IPv6Address(text)
    except AddressValueError:
        raise UrlInvalid("The text in brackets is not an IPv6 address.") from None
    if address.scope_id is not None:
        raise UrlInvalid("The URL names one of this machine's networks. Remove the % and what follows it.")
    return str(address)


def _host(text: str) -> str:
    name = text.lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode().lower()
        except UnicodeError:
            raise UrlInvalid("The host of the URL is not a valid name.") from None
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _dotted(name)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlInvalid("The host of the URL is not a valid name.")
    if len(labels) == 1 or any(name == inside or name.endswith(f".{inside}") for inside in _INSIDE):
        raise HostNotPublic(f"{name} belongs to this machine or its own network, which no tool may reach.")
    return name


def _dotted(text: str) -> str:
    """Return an IPv4 address that is written as four plain numbers; all other spellings are refused."""
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        raise UrlInvalid(
            "The host is a number in a form that can mean several addresses. Write it as 1.2.3.4."
        ) from None
