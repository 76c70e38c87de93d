"""`http.fetch`: send an HTTP request to a web address.

A secret that is meant for the host goes with the request, over TLS only. The model neither sees it nor chooses it; the
approver is shown its name.
"""

import asyncio
import codecs
import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from palyra.core.policy import labels
from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import MARGIN, escape_line, escape_start, quote
from palyra.core.tool import Risk
from palyra.policy.risk import highest, of_host
from palyra.sandbox.files.content_type import SNIFFED_BYTES, binary_kind
from palyra.sandbox.network.egress import EgressRequest, EgressResponse
from palyra.sandbox.network.url import PORTS, UrlTarget, parse
from palyra.tools.base import ToolContext, tool
from palyra.tools.call_slots import CallPool

NAME = "http.fetch"
MAX_BODY_CHARS = 64 * 1024
MAX_HEADERS = 20
SUMMARY_CHARS = 120
SECONDS = 40

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Value = Annotated[str, Meta(max_length=4096)]

_OVERRIDES = re.compile(r"x-http-method(-override)?|x-method-override", re.IGNORECASE)
_CHARSET = re.compile(r"charset=[\"']?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_OF_PAGES = re.compile(
    r"ascii|utf-8(-sig)?|utf-(16|32)(-[bl]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|tis-620|gb2312|gbk|gb18030|hz"
    r"|big5(hkscs)?|euc_\w+|iso2022_\w+|shift_jis\w*|johab"
)
"""The encodings of web pages, as Python names them. Python knows others: some are not text, one takes hours."""


async def _preview(context: ToolContext, value: Any) -> Effect:
    target = parse(value.url)
    writing = _sends(value)
    at_least = Risk.HIGH if writing else Risk.MEDIUM
    names = await context.credentials.names(_bound_host(target), tool=NAME) if _proves(target) else ()
    credential = f" with your credential {', '.join(names)}" if names else ""
    # Permission to read from a host does not allow sending data to it, nor doing so in the person's name.
    kind = f"host:{_service(target)} {value.method}" if writing else f"host:{_service(target)}"
    return Effect(
        risk=highest([of_host(target.host, writing=writing)], at_least=at_least),
        summary=f"{value.method} {escape_start(target.url, SUMMARY_CHARS)}{credential}",
        detail=_detail(f"{value.method} {escape_line(target.url)}{credential}", value.headers, value.body),
        hosts=(target.host,),
        credentials=names,
        kind=f"{kind} with {', '.join(names)}" if names else kind,
    )


async def _ready(context: ToolContext, value: Any) -> None:
    await asyncio.to_thread(context.egress.check, EgressRequest(value.url, value.method, value.headers))


FETCHES = CallPool("fetch", 8)
"""Each holds a connection, and one whose name server does not answer holds a thread."""


@tool(
    name=NAME,
    risk=Risk.MEDIUM,
    timeout_ms=SECONDS * 1000,
    preview=_preview,
    ready=_ready,
    label=labels.WEB,
    pool=FETCHES,
)
async def fetch(
    context: ToolContext,
    *,
    url: str,
    method: Method = "GET",
    headers: Annotated[dict[str, Value], Meta(max_length=MAX_HEADERS)] = {},  # noqa: B006
    body: Annotated[str, Meta(max_length=MAX_BODY_CHARS)] = "",
) -> str:
    """Fetch a public web page or call a web API."""
    target = parse(url)
    credentials = await context.credentials.headers(_bound_host(target), tool=NAME) if _proves(target) else {}
    request = EgressRequest(target.url, method, headers, body.encode(), credentials)
    answer = await context.egress.send(request, allowed=frozenset({target.host}))
    return await asyncio.to_thread(_result_text, answer, target)


def _sends(value: Any) -> bool:
    """Tell whether the request sends more than a plain read: some hosts take a header for the method."""
    return value.method not in ("GET", "HEAD") or bool(value.body) or any(map(_OVERRIDES.fullmatch, value.headers))


def _service(target: UrlTarget) -> str:
    """Return what an approval is bound to: another port is another service; without TLS anyone can pose as the host."""
    return target.host if target.scheme == "https" and target.port == PORTS["https"] else target.origin


def _bound_host(target: UrlTarget) -> str:
    """Return the address a credential is bound to: the host, and its port if that is not the default."""
    return target.host if target.port == PORTS["https"] else f"{target.host}:{target.port}"


def _proves(target: UrlTarget) -> bool:
    """Tell whether it is certain that only the host itself gets what is sent."""
    return target.scheme == "https"


def _detail(line: str, headers: dict[str, str], body: str) -> str:
    lines = [line, *(f"{MARGIN}{escape_line(name)}: {escape_line(value)}" for name, value in headers.items())]
    return "\n".join([*lines, "", quote(body)] if body else lines)


def _result_text(answer: EgressResponse, url_target: UrlTarget) -> str:
    response = answer.response
    kind = response.header("content-type")
    lines = [f"status {response.status}, {escape_line(kind) or 'no content type'}, {len(response.body)} bytes"]
    if answer.url != url_target.url:
        lines.append(f"from {answer.url}")
    if answer.leads_to:
        lines.append(f"It redirects to {answer.leads_to}, which was not followed. Fetch that address if you need it.")
    if not response.is_complete:
        lines.append(f"[only the first {len(response.body)} bytes were read]")
    if response.body:
        lines += ["", _content(response.body, kind, url=answer.url)]
    return "\n".join(lines)


def _content(body: bytes, kind: str, *, url: str) -> str:
    charset = _charset(kind)
    if charset == "utf-8" and (binary := binary_kind(body[:SNIFFED_BYTES])):
        return f"It is {binary}; its content is not shown."
    text = body.decode(charset, "replace")
    if "html" not in kind.lower() and not text[:200].lstrip().lower().startswith(("<!doctype html", "<html")):
        return text
    # Imported here, off the event loop: it is large, and few daemons read pages.
    from palyra.sandbox.html.text import read_page

    title, words = read_page(text, url=url)
    return f"{title}\n\n{words}" if title else words


def _charset(kind: str) -> str:
    match = _CHARSET.search(kind)
    try:
        name = codecs.lookup(match[1]).name if match else "utf-8"
    except LookupError:
        return "utf-8"
    return name if _OF_PAGES.fullmatch(name) else "utf-8"
