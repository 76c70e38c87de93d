"""Decides which internet addresses may be reached: public ones, and none that embeds another one."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

Address = IPv4Address | IPv6Address

_REFUSED_V4 = tuple(
    (ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "this machine"),
        ("10.0.0.0/8", "a private network"),
        ("100.64.0.0/10", "a provider's private network"),
        ("127.0.0.0/8", "this machine"),
        ("169.254.0.0/16", "link-local, where clouds keep their metadata"),
        ("172.16.0.0/12", "a private network"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a relay to IPv6"),
        ("192.168.0.0/16", "a private network"),
        ("198.18.0.0/15", "for measurements"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_PUBLIC_V6 = ip_network("2000::/3")
_REFUSED_V6 = tuple(
    (ip_network(network), what)
    for network, what in (
        ("::1/128", "this machine"),
        ("::/96", "an IPv4 address in IPv6"),
        ("::ffff:0:0/96", "an IPv4 address in IPv6"),
        ("::ffff:0:0:0/96", "an IPv4 address in IPv6"),
        ("64:ff9b::/96", "an IPv4 address in IPv6 (NAT64)"),
        ("64:ff9b:1::/48", "an IPv4 address in IPv6 (NAT64)"),
        ("2001::/32", "an IPv4 address in IPv6 (Teredo)"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "an IPv4 address in IPv6 (6to4)"),
        ("3fff::/20", "for documentation"),
        ("fc00::/7", "a private network"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "a private network"),
        ("ff00::/8", "multicast"),
    )
)
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The middle of an address that ends with an IPv4 address."""


def address_problem(address: Address, port: int) -> str:
    """Return why an address may not be reached; empty if it may. The port makes no difference."""
    if isinstance(address, IPv4Address):
        return next((what for network, what in _REFUSED_V4 if address in network), "")
    if address.scope_id is not None:
        return "bound to one of this machine's networks"
    if what := next((what for network, what in _REFUSED_V6 if address in network), ""):
        return what
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return "an IPv4 address in IPv6 (ISATAP)"
    return "" if address in _PUBLIC_V6 else "not public"


def parse_address(text: str) -> Address:
    """Return the address that a resolver gave; raise ValueError if it is not one."""
    return ip_address(text)
