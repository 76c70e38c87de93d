"""Credentials reach the very host that they are meant for, over TLS, and nobody else: tried with real servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from palyra.sandbox.network.egress import (
    CredentialsNeedTls,
    Egress,
    EgressLimits,
    EgressRequest,
    HeaderNotAllowed,
)
from palyra.sandbox.network.pinning import ConnectionFailed
from tests.support.needs import OPENSSL, needs
from tests.support.web_site import HELLO, Names, Site, certificate, served

pytestmark = needs(OPENSSL)

CREDENTIALS = {"X-Key": "hunter2-hunter2", "Authorization": "Bearer hunter2-hunter2"}


@pytest.fixture
def names() -> Names:
    names = Names()
    names.answers = {name: [["127.0.0.1"]] for name in ("site.example", "other.example")}
    return names


@pytest.fixture
def egress(names: Names) -> Egress:
    return Egress(resolve=names, judge=lambda place, port: "", reach=EgressLimits(seconds=60))


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Site, Site]]:
    """Two servers of one trusted name, on two ports."""
    made, key = await asyncio.to_thread(certificate, tmp_path, "site.example")
    monkeypatch.setenv("SSL_CERT_FILE", made)
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(served(Site(), made=made, key=key)) for _ in range(2)]
        yield one, other


def request(site: Site, path: str = "/", **more: dict[str, str]) -> EgressRequest:
    return EgressRequest(f"https://site.example:{site.port}{path}", credentials=CREDENTIALS, **more)  # type: ignore[arg-type]


def carried(head: bytes) -> bool:
    return b"hunter2" in head


async def test_the_host_gets_them(pair: tuple[Site, Site], egress: Egress) -> None:
    site, _ = pair
    site.replies["/"] = HELLO
    assert (await egress.send(request(site))).response.body == b"hello"
    assert b"X-Key: hunter2-hunter2\r\n" in site.asked[0]
    assert b"Authorization: Bearer hunter2-hunter2\r\n" in site.asked[0]


async def test_they_stand_in_the_place_of_what_else_was_to_be_sent(pair: tuple[Site, Site], egress: Egress) -> None:
    site, _ = pair
    site.replies["/"] = HELLO
    await egress.send(request(site, headers={"authorization": "Bearer guessed", "x-key": "guessed", "X-Other": "kept"}))
    assert b"guessed" not in site.asked[0]
    assert b"X-Other: kept\r\n" in site.asked[0]
    assert site.asked[0].lower().count(b"authorization:") == 1


async def test_they_are_sent_on_within_the_host(pair: tuple[Site, Site], egress: Egress) -> None:
    site, _ = pair
    site.redirect("/", "/next")
    site.replies["/next"] = HELLO
    await egress.send(request(site))
    assert [carried(head) for head in site.asked] == [True, True]


async def test_another_port_of_the_host_does_not_get_them(pair: tuple[Site, Site], egress: Egress) -> None:
    site, other = pair
    site.redirect("/", f"https://site.example:{other.port}/next")
    answer = await egress.send(request(site))
    assert answer.leads_to == f"https://site.example:{other.port}/next"
    assert [carried(head) for head in site.asked] == [True]
    assert other.asked == []


async def test_another_host_does_not_get_them(
    pair: tuple[Site, Site], egress: Egress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, _ = pair
    made, key = await asyncio.to_thread(certificate, tmp_path, "other.example")
    both = tmp_path / "both.pem"
    both.write_text("".join((tmp_path / f"{name}.pem").read_text() for name in ("site.example", "other.example")))
    monkeypatch.setenv("SSL_CERT_FILE", str(both))
    async with served(Site(), made=made, key=key) as elsewhere:
        elsewhere.replies["/next"] = HELLO
        site.redirect("/", f"https://other.example:{elsewhere.port}/next")
        answer = await egress.send(request(site))
    assert answer.leads_to == f"https://other.example:{elsewhere.port}/next"
    assert elsewhere.asked == []


async def test_a_host_that_can_not_prove_its_name_does_not_get_them(
    pair: tuple[Site, Site], egress: Egress, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, _ = pair
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ConnectionFailed, match="is not trusted"):
        await egress.send(request(site))
    assert site.asked == []


async def test_nothing_is_sent_without_tls(names: Names, egress: Egress) -> None:
    with pytest.raises(CredentialsNeedTls):
        await egress.send(EgressRequest("http://site.example/", credentials=CREDENTIALS))
    assert names.asked == []


async def test_they_can_not_change_the_request_itself(pair: tuple[Site, Site], egress: Egress) -> None:
    site, _ = pair
    for name, value in (("Host", "inside"), ("X-Key", "a\r\nHost: inside"), ("Proxy-Authorization", "x")):
        with pytest.raises(HeaderNotAllowed):
            await egress.send(EgressRequest(f"https://site.example:{site.port}/", credentials={name: value}))
    assert site.asked == []
