"""Nothing gets past the guard: over real connections to a server of this machine, which only a test's judge lets in."""

import asyncio
import gzip
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from palyra.sandbox.network import address
from palyra.sandbox.network.egress import (
    Egress,
    EgressLimits,
    EgressRequest,
    FetchTimeout,
    HeaderNotAllowed,
    RedirectLimitReached,
)
from palyra.sandbox.network.http_response import HttpResponseInvalid
from palyra.sandbox.network.pinning import (
    AddressNotAllowed,
    ConnectionFailed,
    HostNotAllowed,
    HostNotFound,
    address_problem,
)
from palyra.sandbox.network.url import HostNotPublic, UrlInvalid, parse
from tests.support.needs import OPENSSL, needs
from tests.support.web_site import HELLO, Names, Site, certificate


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        yield site


@pytest.fixture
def names() -> Names:
    names = Names()
    names.answers["site.example"] = [["127.0.0.1"]]
    return names


@pytest.fixture
def egress(site: Site, names: Names) -> Egress:
    """A guard that takes the server of the test, and nothing else of this machine, for public."""

    def judge(place: address.Address, port: int) -> str:
        return "" if (str(place), port) == ("127.0.0.1", site.port) else address.address_problem(place, port)

    return Egress(resolve=names, judge=judge, reach=EgressLimits(seconds=60, body_bytes=1000))


def at(site: Site, path: str = "/", *, host: str = "site.example") -> EgressRequest:
    return EgressRequest(f"http://{host}:{site.port}{path}")


async def test_the_checked_address_is_asked_under_the_hosts_name(site: Site, names: Names, egress: Egress) -> None:
    site.replies["/a?b=c"] = HELLO
    answer = await egress.send(at(site, "/a?b=c"))
    assert (answer.response.status, answer.response.body) == (200, b"hello")
    assert answer.response.header("content-type") == "text/plain"
    assert f"Host: site.example:{site.port}\r\n".encode() in site.asked[0]
    assert names.asked == ["site.example"]


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["fd00:ec2::254"],
        ["93.184.216.34", "10.0.0.1"],
        ["10.0.0.1", "93.184.216.34"],
        ["2606:4700::1111", "::1"],
        ["::ffff:93.184.216.34"],
        ["64:ff9b::5db8:d822"],
        ["2002:5db8:d822::1"],
        ["fe80::1%eth0"],
        ["93.184.216.34", "no address"],
    ],
)
async def test_one_bad_answer_of_several_is_enough(names: Names, egress: Egress, answers: list[str]) -> None:
    names.answers["mixed.example"] = [answers]
    with pytest.raises(AddressNotAllowed):
        await egress.send(EgressRequest("http://mixed.example/"))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "10.1.2.3", "[::ffff:127.0.0.1]", "169.254.169.254", "0.0.0.0"])
async def test_a_literal_address_is_judged_and_never_looked_up(names: Names, egress: Egress, host: str) -> None:
    with pytest.raises(AddressNotAllowed):
        await egress.send(EgressRequest(f"http://{host}/"))
    assert names.asked == []


async def test_the_server_of_this_machine_is_refused_by_the_real_judge(site: Site, names: Names) -> None:
    site.replies["/"] = HELLO
    with pytest.raises(AddressNotAllowed):
        await Egress(resolve=names).send(at(site))
    assert site.asked == []


@pytest.mark.parametrize(("place", "is_own"), [("127.0.0.1", True), ("::1", True), ("1.1.1.1", False)])
async def test_an_address_of_this_machine_is_not_reached_even_if_it_is_public(
    monkeypatch: pytest.MonkeyPatch, place: str, *, is_own: bool
) -> None:
    """Here every address counts as public: the loopback stands for one that the machine has in the internet."""
    monkeypatch.setattr(address, "address_problem", lambda place, port: "")
    assert address_problem(address.parse_address(place), 80) == ("an address of this machine" if is_own else "")
    if is_own:
        target = f"http://[{place}]/" if ":" in place else f"http://{place}/"
        with pytest.raises(AddressNotAllowed, match="of this machine"):
            await Egress().send(EgressRequest(target))


async def test_a_name_is_asked_for_once_so_that_it_can_not_change(site: Site, names: Names, egress: Egress) -> None:
    site.replies["/"] = HELLO
    names.answers["rebind.example"] = [["127.0.0.1"], ["10.0.0.1"]]
    assert (await egress.send(at(site, host="rebind.example"))).response.status == 200
    assert names.asked == ["rebind.example"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed(site: Site, egress: Egress, status: int) -> None:
    site.redirect("/", "/next", status=status)
    site.replies["/next"] = HELLO
    answer = await egress.send(at(site))
    assert answer.url == f"http://site.example:{site.port}/next"
    assert answer.response.body == b"hello"


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("http://localhost/", HostNotPublic),
        ("http://2130706433/", UrlInvalid),
        ("http://0x7f.1/", UrlInvalid),
        ("//user@site.example/", UrlInvalid),
        ("file:///etc/passwd", UrlInvalid),
        ("gopher://site.example/", UrlInvalid),
    ],
)
async def test_a_redirect_is_checked_from_the_start(
    site: Site, egress: Egress, *, location: str, error: type[Exception]
) -> None:
    site.redirect("/", location)
    with pytest.raises(error):
        await egress.send(at(site))
    assert len(site.asked) == 1


async def test_a_name_that_turns_inside_between_two_hops_is_caught(site: Site, names: Names, egress: Egress) -> None:
    names.answers["rebind.example"] = [["127.0.0.1"], ["10.0.0.1"]]
    site.redirect("/", "/again")
    with pytest.raises(AddressNotAllowed):
        await egress.send(at(site, host="rebind.example"))


async def test_only_allowed_hosts_are_asked(site: Site, names: Names, egress: Egress) -> None:
    with pytest.raises(HostNotAllowed):
        await egress.send(at(site), allowed=frozenset({"other.example"}))
    assert names.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location",
    [
        "http://other.example:{port}/page?x=1",
        "http://site.example:{other}/",
        "http://site.example/",
        "https://site.example:{port}/",
        "//other.example:{port}/",
        "http://127.0.0.1/",
        "http://127.0.0.1:7717/console/v1/status",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://inside.example/",
    ],
)
async def test_a_redirect_to_another_origin_is_told_and_not_followed(
    site: Site, names: Names, egress: Egress, *, location: str, status: int
) -> None:
    names.answers["other.example"] = [["127.0.0.1"]]
    names.answers["inside.example"] = [["10.0.0.1"]]
    other = Site()
    async with await asyncio.start_server(other.serve, "127.0.0.1", 0) as server:
        there = location.format(port=site.port, other=server.sockets[0].getsockname()[1])
        site.redirect("/", there, status=status)
        for allowed in (None, frozenset({"site.example"})):
            request = EgressRequest(at(site).url, "POST", {"Authorization": "Bearer abc"}, b"payload")
            answer = await egress.send(request, allowed=allowed)
            assert answer.leads_to == (f"http:{there}" if there.startswith("//") else there)
            assert answer.response.status == status
        assert other.asked == []
    assert len(site.asked) == 2
    assert set(names.asked) == {"site.example"}


async def test_what_was_sent_is_not_sent_again_unless_the_redirect_says_so(site: Site, egress: Egress) -> None:
    site.replies["/next"] = HELLO
    for status, expected in ((302, b"GET /next"), (303, b"GET /next"), (307, b"POST /next"), (308, b"POST /next")):
        site.redirect("/", "/next", status=status)
        await egress.send(EgressRequest(at(site).url, "POST", body=b"payload"))
        assert site.asked[-1].startswith(expected)
        assert site.asked[-1].endswith(b"payload") == (expected == b"POST /next")


async def test_redirects_come_to_an_end(site: Site, egress: Egress) -> None:
    site.redirect("/", "/")
    with pytest.raises(RedirectLimitReached):
        await egress.send(at(site))
    assert len(site.asked) == 6


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "inside"},
        {"Content-Length": "0"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "upgrade"},
        {"Proxy-Authorization": "x"},
        {"X-A": "b\r\nHost: inside"},
        {"X-A\r\nHost": "b"},
        {"X A": "b"},
        {"": "b"},
        {"X-A": "b\0"},
    ],
)
async def test_no_header_changes_the_request_itself(site: Site, egress: Egress, headers: dict[str, str]) -> None:
    with pytest.raises(HeaderNotAllowed):
        await egress.send(EgressRequest(at(site).url, headers=headers))
    assert site.asked == []


async def test_a_long_body_is_cut(site: Site, egress: Egress) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 10_000)
            await writer.drain()

    site.replies["/"] = endless
    response = (await egress.send(at(site))).response
    assert (len(response.body), response.is_complete) == (1000, False)


async def test_a_small_body_that_unpacks_to_a_large_one_is_cut(site: Site, egress: Egress) -> None:
    packed = gzip.compress(b"x" * 500_000)
    site.replies["/"] = (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    )
    response = (await egress.send(at(site))).response
    assert (response.body, response.is_complete) == (b"x" * 1000, False)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n20\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 50\r\n\r\n" + gzip.compress(b"hello")[:-8],
    ],
    ids=["counted", "chunked", "packed"],
)
async def test_an_answer_that_breaks_off_is_not_taken_for_whole(site: Site, egress: Egress, reply: bytes) -> None:
    site.replies["/"] = reply
    response = (await egress.send(at(site))).response
    assert (response.body, response.is_complete) == (b"hello", False)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"5\r\nhello\r\n0\r\nX: ", b"y" * 10_000),
        (b"5\r\nhello\r\n0\r\n", b"X: y\r\n" * 2000),
        (b"5;", b"y" * 10_000),
        (b"", b"0" * 10_000),
    ],
)
async def test_what_is_no_body_does_not_go_on_for_ever(
    site: Site, egress: Egress, *, begin: bytes, piece: bytes
) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + begin)
        while True:
            writer.write(piece)
            await writer.drain()

    site.replies["/"] = endless
    with pytest.raises(HttpResponseInvalid, match="too long"):
        await egress.send(at(site))


@pytest.mark.parametrize("location", ["http://[::1", "//[x", "http://[v1.x]/", "http://a]b/"])
async def test_a_redirect_to_what_is_no_address_is_refused(site: Site, egress: Egress, location: str) -> None:
    site.replies["/"] = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    with pytest.raises(UrlInvalid):
        await egress.send(at(site))


async def test_an_answer_in_pieces_is_put_together(site: Site, egress: Egress) -> None:
    site.replies["/"] = (
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
    )
    response = (await egress.send(at(site))).response
    assert (response.status, response.body, response.header("link")) == (200, b"hello", "")


async def test_a_host_that_says_nothing_is_given_up(site: Site, names: Names, egress: Egress) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    site.replies["/"] = silent
    hasty = Egress(resolve=names, judge=lambda place, port: "", reach=EgressLimits(seconds=0.2))
    with pytest.raises(FetchTimeout):
        await hasty.send(at(site))


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"hello",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nxx",
    ],
)
async def test_nonsense_is_refused(site: Site, egress: Egress, reply: bytes) -> None:
    site.replies["/"] = reply
    with pytest.raises((HttpResponseInvalid, ConnectionFailed)):
        await egress.send(at(site))


async def test_names_that_nobody_answers_for_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def silent(*asked: object, **how: object) -> list[object]:
        goes_on.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    hasty = Egress(reach=EgressLimits(seconds=0.2))
    try:
        fetching = [hasty.send(EgressRequest(f"http://n{number}.example/")) for number in range(50)]
        found = await asyncio.gather(*fetching, return_exceptions=True)
        assert {type(one) for one in found} == {FetchTimeout}
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(lambda: "done") == "done"
    finally:
        goes_on.set()


async def test_a_host_without_an_address_is_unknown(names: Names, egress: Egress) -> None:
    with pytest.raises(HostNotFound):
        await egress.send(EgressRequest("http://nobody.example/"))


@needs(OPENSSL)
@pytest.mark.parametrize(
    ("name", "trusted"), [("site.example", True), ("site.example", False), ("other.example", True)]
)
async def test_a_host_must_prove_its_name(
    tmp_path: Path, names: Names, monkeypatch: pytest.MonkeyPatch, *, name: str, trusted: bool
) -> None:
    made, key = await asyncio.to_thread(certificate, tmp_path, name)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", made)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    wanted: list[str | None] = []
    context.sni_callback = lambda _, asked, __: wanted.append(asked)
    site = Site()
    site.replies["/"] = HELLO
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    egress = Egress(resolve=names, judge=lambda place, port: "", reach=EgressLimits(seconds=60))
    async with server:
        if trusted and name == "site.example":
            answer = await egress.send(EgressRequest(f"https://site.example:{port}/"))
            assert answer.response.body == b"hello"
        else:
            with pytest.raises(ConnectionFailed, match="is not trusted"):
                await egress.send(EgressRequest(f"https://site.example:{port}/"))
            assert site.asked == []
    assert wanted == ["site.example"]


async def test_a_cancelled_request_leaves_no_connection(site: Site, egress: Egress) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        try:
            await reader.read()
        finally:
            gone.set()

    site.replies["/"] = hold
    task = asyncio.create_task(egress.send(at(site)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        await gone.wait()


async def test_a_pinned_host_can_be_used_by_other_clients(names: Names, egress: Egress, site: Site) -> None:
    pinned = await egress.pin(parse(f"http://site.example:{site.port}/x"))
    assert pinned.addresses == ("127.0.0.1",)
