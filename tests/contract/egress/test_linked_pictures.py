"""Pictures that a request of `/v1` names by their addresses, fetched from a server of this machine."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from palyra.core.clock import Clock
from palyra.core.errors import Unavailable
from palyra.core.ids import PrincipalId
from palyra.core.message import Inbound
from palyra.core.model.prompt import Image, Message, Role
from palyra.daemon.process.system_clock import SystemClock
from palyra.gateway.http.openai.errors import ParameterUnsupported
from palyra.gateway.http.openai.image_fetch import ImageFetcher
from palyra.gateway.http.openai.images import LINK, MAX_BYTES, RequestImages
from palyra.policy.cedar_source import split
from palyra.policy.gate import Gate
from palyra.policy.loader import combine
from palyra.sandbox.network import address
from palyra.sandbox.network.egress import Egress, EgressLimits
from tests.support.builders import ANA
from tests.support.web_site import Names, Site

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
GIF = b"GIF89a" + bytes(40)
CLOCK: Clock = SystemClock()
NO_EVIL = '@id("no-evil") @reason("Evil is not asked.") forbid (principal, action, resource == Tool::"http.fetch")'
NO_EVIL += ' when { context.hosts.contains("evil.example") };'


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    site.replies["/a.png"] = whole(PNG)
    async with server:
        yield site


@pytest.fixture
def linked(site: Site) -> ImageFetcher:
    """What fetches; of this machine, it may reach the server of the test alone."""
    names = Names()
    for name in ("site.example", "other.example", "evil.example"):
        names.answers[name] = [["127.0.0.1"]]

    def judge(place: address.Address, port: int) -> str:
        return "" if (str(place), port) == ("127.0.0.1", site.port) else address.address_problem(place, port)

    egress = Egress(resolve=names, judge=judge, reach=EgressLimits(seconds=60, body_bytes=MAX_BYTES + 1))
    gate = Gate(combine(split(NO_EVIL, "own.cedar")))
    return ImageFetcher(lambda: gate, check=lambda principal: None, clock=CLOCK, egress=egress)


def whole(body: bytes, *, status: str = "200 OK", kind: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def named(*urls: str, given: tuple[Message, ...] = ()) -> tuple[Inbound, dict[str, str]]:
    pictures = RequestImages()
    images = tuple(pictures.read(url, param=f"messages[{place}]") for place, url in enumerate(urls))
    return Inbound(principal=ANA, text="What?", images=images, history=given), pictures.links


def at(site: Site, path: str, host: str = "site.example") -> str:
    return f"http://{host}:{site.port}{path}"


async def refused(linked: ImageFetcher, url: str) -> ParameterUnsupported:
    with pytest.raises(ParameterUnsupported) as caught:
        await linked.fetched(*named(url))
    assert caught.value.param == "messages[0]"
    return caught.value


async def test_a_picture_is_fetched_and_kept_by_its_content(linked: ImageFetcher, site: Site) -> None:
    got = await linked.fetched(*named(at(site, "/a.png")))
    digest = hashlib.sha256(PNG).hexdigest()
    assert got.images == (Image(digest=digest, media_type="image/png", size=len(PNG)),)
    assert got.pictures == {digest: PNG}


async def test_one_that_is_named_twice_is_fetched_once_and_also_for_earlier_messages(
    linked: ImageFetcher, site: Site
) -> None:
    url = at(site, "/a.png")
    earlier = Message(role=Role.USER, text="Look.", images=(Image(digest=url, media_type=LINK, size=0),))
    got = await linked.fetched(*named(url, url, given=(earlier,)))
    assert len(site.asked) == 1
    assert {image.media_type for image in (*got.images, *got.history[0].images)} == {"image/png"}


async def test_a_message_without_addresses_is_left_as_it_is(linked: ImageFetcher, site: Site) -> None:
    inbound = Inbound(principal=ANA, text="Hi.")
    assert await linked.fetched(inbound, {}) is inbound
    assert not site.asked


async def test_where_it_leads_on_it_is_followed_and_judged_there(linked: ImageFetcher, site: Site) -> None:
    site.redirect("/near", at(site, "/a.png"))
    site.redirect("/far", at(site, "/a.png", "other.example"))
    site.redirect("/evil", at(site, "/a.png", "evil.example"))
    site.redirect("/in", "http://10.0.0.1/a.png")
    for path in ("/near", "/far"):
        assert (await linked.fetched(*named(at(site, path)))).pictures
    assert "Evil is not asked." in (await refused(linked, at(site, "/evil"))).detail
    assert "10.0.0.1" in (await refused(linked, at(site, "/in"))).detail


async def test_what_a_policy_denies_to_tools_is_not_asked(linked: ImageFetcher, site: Site) -> None:
    assert "Evil is not asked." in (await refused(linked, at(site, "/a.png", "evil.example"))).detail
    assert not site.asked


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:7717/admin/v1/tokens", "127.0.0.1"),
        ("http://169.254.169.254/latest/meta-data", "169.254.169.254"),
        ("http://localhost/a.png", "localhost"),
        ("http://nobody.example/a.png", "has no address"),
        ("http://user:pass@site.example/a.png", "cannot be fetched"),
        ("http://", "cannot be fetched"),
    ],
)
async def test_what_no_tool_may_reach_is_not_reached(linked: ImageFetcher, site: Site, url: str, why: str) -> None:
    told = await refused(linked, url)
    assert why in told.detail
    assert "Send it in the request itself" in told.detail
    assert not site.asked


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (whole(b"", status="404 Not Found"), "The server returned 404."),
        (whole(b"<html>Sign in</html>", kind="image/png"), "is not supported"),
        (whole(b"<svg/>", kind="image/svg+xml"), "is not supported"),
        (whole(GIF + bytes(MAX_BYTES)), "larger than 5 MiB"),
        (whole(GIF)[:-5], "before it was complete"),
        (b"nonsense\r\n\r\n", "cannot be fetched"),
    ],
    ids=["missing", "a page", "svg", "too large", "broken off", "nonsense"],
)
async def test_what_is_no_picture_is_told(linked: ImageFetcher, site: Site, reply: bytes, why: str) -> None:
    site.replies["/b"] = reply
    assert why in (await refused(linked, at(site, "/b"))).detail


async def test_nothing_is_fetched_for_who_is_stopped(linked: ImageFetcher, site: Site) -> None:
    def stopped(principal: PrincipalId) -> None:
        raise Unavailable("All work is stopped.")

    linked._check = stopped
    with pytest.raises(Unavailable):
        await linked.fetched(*named(at(site, "/a.png")))
    assert not site.asked
