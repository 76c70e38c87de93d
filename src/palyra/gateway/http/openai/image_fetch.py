"""Fetches images that a request names by URL, as a tool would fetch them.

It uses the egress of the tools, so that nothing private can be reached. What a policy denies to `http.fetch` is denied
here too; where it would require an approval, the caller has already said that it wants the image.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain

from msgspec.structs import replace

from palyra.core import channel
from palyra.core.clock import Clock
from palyra.core.errors import PalyraError
from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.message import Inbound
from palyra.core.model.prompt import Image, Message
from palyra.core.policy import labels
from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import escape_line
from palyra.core.tool import Risk, Verdict
from palyra.gateway.http.openai.errors import ParameterUnsupported
from palyra.gateway.http.openai.images import MAX_BYTES, is_link, read_image
from palyra.policy.gate import Gate
from palyra.policy.query import PolicyQuery
from palyra.policy.risk import highest, of_host
from palyra.sandbox.network.egress import Egress, EgressLimits, EgressRequest, EgressResponse
from palyra.sandbox.network.pinning import HostNotAllowed
from palyra.sandbox.network.url import UrlTarget, parse
from palyra.tools.builtin.fetch import fetch

MAX_TOTAL_BYTES = 20 * 1024 * 1024
"""The total size of all images: as much as a prompt may have."""
SECONDS = 20.0
ALL_SECONDS = 60.0
HOSTS = 3
"""The maximum number of hosts that an image's redirects may lead through."""
SHOWN_CHARS = 200

_HEADERS = {"Accept": "image/png, image/jpeg, image/gif, image/webp"}


class ImageFetcher:
    """Fetches the images of messages."""

    def __init__(
        self,
        gate: Callable[[], Gate],
        *,
        check: Callable[[PrincipalId], None],
        clock: Clock,
        egress: Egress | None = None,
    ) -> None:
        """`gate` returns the policies in force; `check` raises while the principal's work is stopped."""
        self._gate = gate
        self._check = check
        self._clock = clock
        # One byte more than an image may have: so one that is too large can be told from one that just fits.
        self._egress = egress or Egress(reach=EgressLimits(seconds=SECONDS, body_bytes=MAX_BYTES + 1))

    async def fetched(self, inbound: Inbound, links: Mapping[str, str]) -> Inbound:
        """Return the message with its images fetched, or raise `ParameterUnsupported` with the reason.

        Only images that the message still has are fetched: ignored ones are not. `links` has their parameter in the
        request.
        """
        every = chain(inbound.images, *(message.images for message in inbound.history))
        urls = list(dict.fromkeys(image.digest for image in every if is_link(image)))
        if not urls:
            return inbound
        self._check(inbound.principal)
        matching_images: dict[str, Image] = {}
        pictures = dict(inbound.pictures)
        try:
            async with asyncio.timeout(ALL_SECONDS):
                for url in urls:
                    param = links[url]
                    content = await self._fetch(inbound.principal, url, param=param)
                    matching_images[url] = read_image(content, param=param, where=f" at {_short_url(url)}")
                    pictures[matching_images[url].digest] = content
                    if sum(map(len, pictures.values())) > MAX_TOTAL_BYTES:
                        raise ParameterUnsupported(
                            param, "The images are larger than 20 MiB in all. Send fewer of them."
                        )
        except TimeoutError:
            raise ParameterUnsupported(
                links[urls[len(matching_images)]],
                f"The images could not be fetched within {ALL_SECONDS:g} s. Send them in the request itself.",
            ) from None

        def put(images: tuple[Image, ...]) -> tuple[Image, ...]:
            return tuple(matching_images.get(image.digest, image) for image in images)

        def with_fetched(message: Message) -> Message:
            return replace(message, images=put(message.images)) if message.images else message

        return replace(
            inbound, images=put(inbound.images), history=tuple(map(with_fetched, inbound.history)), pictures=pictures
        )

    async def _fetch(self, principal: PrincipalId, url: str, *, param: str) -> bytes:
        try:
            answer = await self._answer(principal, url)
        except PalyraError as error:
            raise _refused(param, url, error.detail) from error
        status = answer.response.status
        if answer.leads_to:
            raise _refused(param, url, f"It redirects to {_short_url(answer.leads_to)}, which is not followed.")
        if status != 200:
            raise _refused(param, url, f"The server returned {status}.")
        if len(answer.response.body) > MAX_BYTES:
            raise _refused(param, url, "It is larger than 5 MiB.")
        if not answer.response.is_complete:
            raise _refused(param, url, "The server closed the connection before it was complete.")
        return answer.response.body

    async def _answer(self, principal: PrincipalId, url: str) -> EgressResponse:
        """Fetch an image; the policies judge each host that it is redirected to."""
        target = parse(url)
        for _ in range(HOSTS):
            if denied := await self._denied(principal, target):
                raise HostNotAllowed(f"A policy does not allow requests to {target.host}: {denied}")
            answer = await self._egress.send(
                EgressRequest(target.url, headers=_HEADERS), allowed=frozenset({target.host})
            )
            onward = parse(answer.leads_to) if answer.leads_to else None
            if onward is None or (target.scheme == "https" and onward.scheme == "http"):
                return answer
            target = onward
        return answer

    async def _denied(self, principal: PrincipalId, target: UrlTarget) -> str:
        """Return why a policy denies it; empty if none does."""
        question = PolicyQuery(
            principal=principal,
            agent_id=AgentId(""),
            session_id=SessionId(""),
            tool=fetch.spec,
            effect=Effect(
                risk=highest([of_host(target.host, writing=False)], at_least=Risk.MEDIUM),
                summary=f"GET {_short_url(target.url)}",
                hosts=(target.host,),
            ),
            labels=(labels.OWNER,),
            channels=(channel.V1,),
            approver_reachable=True,
            now=self._clock.now(),
        )
        judgement = await asyncio.to_thread(self._gate().judge, question, ())
        return judgement.reason if judgement.verdict is Verdict.DENY else ""


def _refused(param: str, url: str, why: str) -> ParameterUnsupported:
    return ParameterUnsupported(
        param,
        (
            f"The image at {_short_url(url)} cannot be fetched: {why} Send it in the request itself, as "
            "data:image/png;base64,…."
        ),
    )


def _short_url(url: str) -> str:
    line = escape_line(url)
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "…"
