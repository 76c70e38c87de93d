"""Tools and MCP servers are reached in the same way: at addresses that were checked, and at no others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from palyra.sandbox.network.address import Address
from palyra.sandbox.network.egress import Egress, EgressRequest
from palyra.sandbox.network.pinning import (
    MAX_ADDRESSES,
    AddressNotAllowed,
    ConnectionFailed,
    HostNotAllowed,
    HostNotFound,
    connect,
    pin,
)
from palyra.tools.mcp.http_transport import PinnedConnector
from tests.support.web_site import HELLO, Names, Site

Reach = Callable[[Names, str, int], Awaitable[object]]


async def by_tool(names: Names, host: str, port: int) -> object:
    return await Egress(resolve=names).send(EgressRequest(f"http://{f'[{host}]' if ':' in host else host}:{port}/"))


async def by_mcp(names: Names, host: str, port: int) -> object:
    connector = PinnedConnector(host, allow_private=False, own_ports=frozenset(), resolve=names)
    return await connector.connect_tcp(host, port)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    site.replies["/"] = HELLO
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        yield site


@pytest.mark.parametrize("reach", [by_tool, by_mcp])
@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["169.254.169.254"],
        ["93.184.216.34", "127.0.0.1"],
        ["127.0.0.1", "93.184.216.34"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%eth0"],
        ["93.184.216.34", "no address"],
    ],
)
async def test_one_bad_address_of_several_is_enough(site: Site, reach: Reach, answers: list[str]) -> None:
    names = Names()
    names.answers["mixed.example"] = [answers]
    with pytest.raises(AddressNotAllowed, match=r"mixed\.example resolves to"):
        await reach(names, "mixed.example", site.port)
    assert site.asked == []


@pytest.mark.parametrize("reach", [by_tool, by_mcp])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.1.2.3", "::ffff:127.0.0.1"])
async def test_an_address_is_judged_and_never_looked_up(site: Site, reach: Reach, host: str) -> None:
    names = Names()
    names.answers[host] = [["93.184.216.34"]]
    with pytest.raises(AddressNotAllowed):
        await reach(names, host, site.port)
    assert names.asked == []


@pytest.mark.parametrize("reach", [by_tool, by_mcp])
async def test_a_name_without_an_address_is_not_found(reach: Reach) -> None:
    with pytest.raises(HostNotFound):
        await reach(Names(), "nobody.example", 80)


async def test_a_private_server_is_reached_if_the_owner_says_so_and_palyra_itself_never(site: Site) -> None:
    names = Names()
    names.answers["site.example"] = [["127.0.0.1"]]
    own = PinnedConnector("site.example", allow_private=True, own_ports=frozenset({site.port}), resolve=names)
    with pytest.raises(AddressNotAllowed, match="Palyra itself"):
        await own.connect_tcp("site.example", site.port)
    other = PinnedConnector("site.example", allow_private=True, own_ports=frozenset(), resolve=names)
    await (await other.connect_tcp("site.example", site.port)).aclose()
    with pytest.raises(HostNotAllowed):
        await other.connect_tcp("other.example", site.port)
    assert names.asked == ["site.example", "site.example"]


async def test_the_name_can_not_change_between_check_and_connection(site: Site) -> None:
    names = Names()
    names.answers["rebind.example"] = [["127.0.0.1"], ["10.0.0.1"]]

    def judge(place: Address, port: int) -> str:
        return "" if str(place) == "127.0.0.1" else "elsewhere"

    addresses = await pin("rebind.example", site.port, judge=judge, resolve=names)
    assert addresses == ("127.0.0.1",)
    assert names.asked == ["rebind.example"]
    with pytest.raises(AddressNotAllowed):
        await pin("rebind.example", site.port, judge=judge, resolve=names)


async def test_the_next_address_is_tried_and_no_more_than_a_few() -> None:
    tried: list[str] = []

    async def attempt(place: str) -> str:
        tried.append(place)
        if place == "192.0.2.1":
            raise ConnectionRefusedError(111, "Connection refused")
        return place

    assert await connect("a.example", ["192.0.2.1", "192.0.2.2", "192.0.2.3"], attempt) == "192.0.2.2"
    assert tried == ["192.0.2.1", "192.0.2.2"]
    with pytest.raises(ConnectionFailed, match="Connection refused"):
        await connect("a.example", ["192.0.2.1"], attempt)
    names = Names()
    names.answers["many.example"] = [[f"192.0.2.{last}" for last in range(20)]]
    assert len(await pin("many.example", 80, judge=lambda place, port: "", resolve=names)) == MAX_ADDRESSES
