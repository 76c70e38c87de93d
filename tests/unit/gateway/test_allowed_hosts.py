"""Which hosts are served, and which web pages may send requests."""

import pytest

from palyra.gateway.allowed_hosts import AllowedHosts, OriginNotAllowed, RequestHostNotAllowed, RequestOrigin

HOSTS = AllowedHosts(["palyra.example.com", "192.0.2.1", "2001:DB8::1", "0.0.0.0"], origins=["https://app.example.com"])


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:7717",
        "localhost.",
        "127.0.0.1:7717",
        "127.8.9.1",
        "[::1]:7717",
        "palyra.example.com",
        "Palyra.Example.Com.:443",
        "192.0.2.1:80",
        "[2001:db8:0::1]",
        "10.0.0.5:7717",
    ],
)
def test_the_daemons_own_names_and_addresses_are_served(host: str) -> None:
    assert not HOSTS.check(RequestOrigin(host, local="10.0.0.5"))


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":7717",
        "evil.example.com",
        "evil.localhost.example.com",
        "localhost.evil.example.com",
        "palyra.example.com.evil.example",
        "0.0.0.0:7717",
        "[::]:7717",
        "10.0.0.6",
        "localhost@evil.example.com",
        "evil.example.com@localhost",
        "localhost/x",
        "localhost:port",
        "localhost:7717:7717",
        "localhost\t",
        " localhost",
        "2130706433",
        "0x7f.1",
        "[::1",
        "\xff",
    ],
)
@pytest.mark.parametrize("local", ["10.0.0.5", None])
def test_no_other_host_is_served(host: str, local: str | None) -> None:
    with pytest.raises(RequestHostNotAllowed):
        HOSTS.check(RequestOrigin(host, local=local))


def test_who_names_no_host_is_no_browser() -> None:
    assert not HOSTS.check(RequestOrigin(None))
    with pytest.raises(OriginNotAllowed):
        HOSTS.check(RequestOrigin(None, "http://localhost"))


@pytest.mark.parametrize(
    "asked",
    [
        RequestOrigin("localhost:7717", "http://localhost:7717", "same-origin"),
        RequestOrigin("Localhost:7717", "http://localhost:7717"),
        RequestOrigin("palyra.example.com", "https://palyra.example.com", scheme="https"),
        RequestOrigin("localhost:7717", None, "none"),
        RequestOrigin("localhost:7717", None, "same-origin"),
    ],
)
def test_the_daemons_own_pages_may_ask(asked: RequestOrigin) -> None:
    assert not HOSTS.check(asked)


@pytest.mark.parametrize("site", [None, "cross-site", "same-site"])
def test_pages_of_an_allowed_origin_may_ask(site: str | None) -> None:
    assert HOSTS.check(RequestOrigin("localhost:7717", "https://app.example.com", site))
    with pytest.raises(RequestHostNotAllowed):
        HOSTS.check(RequestOrigin("evil.example.com", "https://app.example.com", site))


@pytest.mark.parametrize(
    "asked",
    [
        RequestOrigin("localhost:7717", "https://evil.example.com"),
        RequestOrigin("localhost:7717", "https://evil.example.com", "same-origin"),
        RequestOrigin("localhost:7717", "http://localhost:3000"),
        RequestOrigin("localhost:7717", "http://127.0.0.1:7717"),
        RequestOrigin("localhost:7717", "https://localhost:7717"),
        RequestOrigin("localhost:7717", "null"),
        RequestOrigin("localhost:7717", ""),
        RequestOrigin("localhost:7717", "http://app.example.com"),
        RequestOrigin("localhost:7717", "https://app.example.com:8443"),
        RequestOrigin("localhost:7717", "https://app.example.com.evil.example"),
        RequestOrigin("localhost:7717", None, "cross-site"),
        RequestOrigin("localhost:7717", None, "same-site"),
    ],
)
def test_no_other_page_may_ask(asked: RequestOrigin) -> None:
    with pytest.raises(OriginNotAllowed):
        HOSTS.check(asked)
