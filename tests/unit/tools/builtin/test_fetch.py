"""What a person is shown before a request leaves, and what a model is told of the answer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from palyra.core.policy import labels
from palyra.core.policy.effect import Effect
from palyra.core.tool import CallOutcome, Risk
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.network.egress import Egress, EgressRequest, EgressResponse
from palyra.sandbox.network.http_response import HttpResponse
from palyra.sandbox.network.url import HostNotPublic, UrlInvalid
from palyra.tools.base import ToolContext
from palyra.tools.builtin import fetch
from palyra.tools.execution import ToolResult, execute
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.unit.tools.surroundings import StillClock, a_call, a_context


class Canned(Egress):
    """A way out that leads to one answer."""

    def __init__(
        self, body: bytes = b"", *, kind: str = "text/plain", leads_to: str = "", is_whole: bool = True
    ) -> None:
        super().__init__()
        self.asked: list[tuple[EgressRequest, frozenset[str] | None]] = []
        self._answer = HttpResponse(200, [("content-type", kind)] if kind else [], body, is_whole)
        self._leads_to = leads_to

    async def send(self, request: EgressRequest, *, allowed: frozenset[str] | None = None) -> EgressResponse:
        self.asked.append((request, allowed))
        return EgressResponse(request.url, self._answer, self._leads_to)


async def effect(**arguments: object) -> Effect:
    return await fetch.fetch.effect(a_context(), msgspec.convert(arguments, fetch.fetch.arguments))


async def told(egress: Egress, arguments: Mapping[str, object]) -> ToolResult:
    context = ToolContext(workspace=Workspace((Path("/nonexistent"),)), clock=StillClock(), egress=egress)
    call = a_call("http.fetch", dict(arguments))
    finished = await execute(call, catalog=BUILTIN_ONLY.catalog(None), context=context, timeout_ms=1000)
    assert isinstance(finished, ToolResult)
    return finished


async def test_reading_is_shown_as_method_and_address() -> None:
    found = await effect(url="HTTPS://Example.ORG/a?b#c")
    assert found == Effect(
        risk=Risk.MEDIUM,
        summary="GET https://example.org/a?b",
        detail="GET https://example.org/a?b",
        hosts=("example.org",),
        kind="host:example.org",
    )


async def test_sending_is_shown_with_all_that_is_sent_and_is_another_class() -> None:
    found = await effect(url="https://example.org/", method="POST", headers={"X-A": "b"}, body="secret plans")
    assert found.risk is Risk.HIGH
    assert found.detail == "POST https://example.org/\n> X-A: b\n\n> secret plans"
    assert found.kind == "host:example.org POST"


class Wallet:
    """Credentials for one host."""

    async def names(self, host: str, *, tool: str) -> tuple[str, ...]:
        return ("a", "b") if (host, tool) == ("example.org", "http.fetch") else ()

    async def headers(self, host: str, *, tool: str) -> dict[str, str]:
        return {"X-Key": "hunter2"} if (host, tool) == ("example.org", "http.fetch") else {}

    def only(self, names: tuple[str, ...]) -> "Wallet":
        return self


async def test_a_request_in_the_persons_name_is_shown_as_one_and_is_another_class() -> None:
    context = replace(a_context(), credentials=Wallet())
    for arguments, kind in (
        ({"url": "https://example.org/"}, "host:example.org with a, b"),
        ({"url": "https://example.org/", "method": "PUT"}, "host:example.org PUT with a, b"),
    ):
        found = await fetch.fetch.effect(context, msgspec.convert(arguments, fetch.fetch.arguments))
        assert found.summary.endswith("https://example.org/ with your credential a, b")
        assert (found.credentials, found.kind) == (("a", "b"), kind)
        assert "hunter2" not in repr(found)


async def test_credentials_go_with_the_request_over_tls_only() -> None:
    for url, sent in (
        ("https://example.org/", {"X-Key": "hunter2"}),
        ("http://example.org/", {}),
        ("https://example.org:8443/", {}),
        ("https://other.org/", {}),
    ):
        egress = Canned(b"hello")
        context = replace(a_context(), egress=egress, credentials=Wallet())
        call = a_call("http.fetch", {"url": url})
        await execute(call, catalog=BUILTIN_ONLY.catalog(None), context=context, timeout_ms=1000)
        ((request, _),) = egress.asked
        assert request.credentials == sent
        assert request.headers == {}


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://10.0.0.1/", "http://[::1]/"])
async def test_an_address_inside_is_of_the_highest_risk(url: str) -> None:
    assert (await effect(url=url)).risk is Risk.CRITICAL


@pytest.mark.parametrize(("url", "error"), [("file:///etc/passwd", UrlInvalid), ("http://localhost/", HostNotPublic)])
async def test_what_can_not_be_fetched_is_refused_before_anybody_is_asked(url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await effect(url=url)


async def test_only_the_host_that_was_shown_is_asked() -> None:
    egress = Canned(b"hello")
    finished = await told(egress, {"url": "https://Example.org/x", "method": "PUT", "body": "ä", "headers": {"A": "b"}})
    assert egress.asked == [
        (EgressRequest("https://example.org/x", "PUT", {"A": "b"}, "ä".encode()), frozenset({"example.org"}))
    ]
    assert finished == ToolResult(CallOutcome.OK, "status 200, text/plain, 5 bytes\n\nhello")


async def test_a_page_is_given_as_text() -> None:
    page = b"<html><title>T</title><p>Hello <a href='/x'>there</a></p><script>no()</script>"
    finished = await told(Canned(page, kind="text/html; charset=utf-8"), {"url": "https://example.org/"})
    assert finished.text.endswith("\n\nT\n\nHello there <https://example.org/x>")


async def test_another_encoding_is_read() -> None:
    egress = Canned("grün".encode("latin-1"), kind="text/plain; charset=ISO-8859-1")
    assert (await told(egress, {"url": "https://example.org/"})).text.endswith("grün")


@pytest.mark.parametrize("charset", ["zlib", "rot13", "idna", "punycode", "undefined", "unicode_escape", "no-such"])
async def test_an_encoding_that_no_page_has_is_not_believed(charset: str) -> None:
    egress = Canned("gr\\u00fcn grün".encode(), kind=f"text/plain; charset={charset}")
    assert (await told(egress, {"url": "https://example.org/"})).text.endswith("gr\\u00fcn grün")


async def test_what_is_no_text_is_named_and_not_shown() -> None:
    finished = await told(Canned(b"\x89PNG\r\n\x1a\n" + b"\0" * 50, kind="image/png"), {"url": "https://example.org/"})
    assert finished.text.endswith("It is a PNG image; its content is not shown.")


async def test_a_redirect_elsewhere_and_a_cut_are_told() -> None:
    egress = Canned(b"x", leads_to="https://other.example/", is_whole=False)
    finished = await told(egress, {"url": "https://example.org/"})
    assert "redirects to https://other.example/, which was not followed" in finished.text
    assert "only the first 1 bytes were read" in finished.text


async def test_an_address_inside_is_refused_by_the_guard_itself() -> None:
    finished = await told(Egress(), {"url": "http://127.0.0.1:7717/console/v1/status"})
    assert finished.outcome is CallOutcome.ERROR
    assert "this machine" in finished.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "https://example.org/", "method": "TRACE"},
        {"url": "https://example.org/", "body": "x" * 70_000},
        {"url": "https://example.org/", "headers": {str(n): "x" for n in range(30)}},
    ],
)
async def test_too_much_is_refused(arguments: dict[str, object]) -> None:
    egress = Canned()
    assert (await told(egress, arguments)).outcome is CallOutcome.ERROR
    assert egress.asked == []


def test_results_are_known_to_come_from_the_web() -> None:
    assert fetch.fetch.label == labels.WEB
    assert not fetch.fetch.spec.repeatable


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"url": "https://example.org:443/"}, "host:example.org"),
        ({"url": "http://example.org/"}, "host:http://example.org"),
        ({"url": "https://example.org:8443/"}, "host:https://example.org:8443"),
        ({"url": "https://www.example.org/"}, "host:www.example.org"),
        ({"url": "https://example.org/", "body": "x"}, "host:example.org GET"),
        ({"url": "https://example.org/", "headers": {"X-HTTP-Method-Override": "DELETE"}}, "host:example.org GET"),
    ],
)
async def test_an_answer_about_a_host_is_none_about_another_port_or_scheme_nor_about_sending(
    arguments: dict[str, object], kind: str
) -> None:
    found = await effect(**arguments)
    assert found.kind == kind
    assert found.risk is (Risk.HIGH if kind.endswith("GET") else Risk.MEDIUM)
