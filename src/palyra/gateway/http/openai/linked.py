"""Pictures that a request only names by their addresses: they are fetched for the caller, as a tool would fetch them.

The way out is the one that tools take, so that nothing private can be reached. What a policy denies to `http.fetch` is
denied here too; where it would have a person asked, the caller has said already that it wants the picture.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain

from msgspec.structs import replace

from palyra.core import channel, labels
from palyra.core.clock import Clock
from palyra.core.display import escape_line
from palyra.core.effect import Effect
from palyra.core.errors import PalyraError
from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.message import Inbound
from palyra.core.prompt import Image, Message
from palyra.core.tool import Risk, Verdict
from palyra.gateway.http.openai.errors import ParameterRefused
from palyra.gateway.http.openai.pictures import MOST_BYTES, is_link, taken_in
from palyra.policy.gate import Gate, Question
from palyra.policy.risk import highest, of_host
from palyra.sandbox.egress import Answer, Egress, HostNotAllowed, Reach, Request
from palyra.sandbox.url import Target, parse
from palyra.tools.builtin.fetch import fetch

MOST_ALL_BYTES = 20 * 1024 * 1024
"""Of all pictures together: as much as a prompt shows."""
SECONDS = 20.0
ALL_SECONDS = 60.0
HOSTS = 3
"""So many hosts a picture may lead through."""
SHOWN_CHARS = 200

_HEADERS = {"Accept": "image/png, image/jpeg, image/gif, image/webp"}


class Linked:
    """Fetches the pictures of messages."""

    def __init__(
        self,
        gate: Callable[[], Gate],
        *,
        check: Callable[[PrincipalId], None],
        clock: Clock,
        egress: Egress | None = None,
    ) -> None:
        """`gate` returns the policies in force; `check` raises while nothing is done for a principal."""
        self._gate = gate
        self._check = check
        self._clock = clock
        # One byte more than a picture may have: so one that is too large is told from one that just fits.
        self._egress = egress or Egress(reach=Reach(seconds=SECONDS, body_bytes=MOST_BYTES + 1))

    async def fetched(self, inbound: Inbound, links: Mapping[str, str]) -> Inbound:
        """Return the message with the pictures that it names, or raise `ParameterRefused` saying why one can't be had.

        Only those are fetched that the message still has: what counts for nothing is not looked for. `links` says where
        in the request they stand.
        """
        every = chain(inbound.images, *(message.images for message in inbound.given))
        urls = list(dict.fromkeys(image.digest for image in every if is_link(image)))
        if not urls:
            return inbound
        self._check(inbound.principal)
        found: dict[str, Image] = {}
        pictures = dict(inbound.pictures)
        try:
            async with asyncio.timeout(ALL_SECONDS):
                for url in urls:
                    param = links[url]
                    content = await self._fetch(inbound.principal, url, param=param)
                    found[url] = taken_in(content, param=param, where=f" at {_shown(url)}")
                    pictures[found[url].digest] = content
                    if sum(map(len, pictures.values())) > MOST_ALL_BYTES:
                        raise ParameterRefused(param, "The pictures have more than 20 MiB in all. Send fewer of them.")
        except TimeoutError:
            raise ParameterRefused(
                links[urls[len(found)]],
                f"The pictures could not be fetched within {ALL_SECONDS:g} s. Send them in the request itself.",
            ) from None

        def put(images: tuple[Image, ...]) -> tuple[Image, ...]:
            return tuple(found.get(image.digest, image) for image in images)

        def mended(message: Message) -> Message:
            return replace(message, images=put(message.images)) if message.images else message

        return replace(inbound, images=put(inbound.images), given=tuple(map(mended, inbound.given)), pictures=pictures)

    async def _fetch(self, principal: PrincipalId, url: str, *, param: str) -> bytes:
        try:
            answer = await self._answer(principal, url)
        except PalyraError as error:
            raise _refused(param, url, error.detail) from error
        status = answer.response.status
        if answer.leads_to:
            raise _refused(param, url, f"It leads on to {_shown(answer.leads_to)}, which is not followed.")
        if status != 200:
            raise _refused(param, url, f"The server says {status}.")
        if len(answer.response.body) > MOST_BYTES:
            raise _refused(param, url, "It has more than 5 MiB.")
        if not answer.response.is_whole:
            raise _refused(param, url, "The server broke off in the middle of it.")
        return answer.response.body

    async def _answer(self, principal: PrincipalId, url: str) -> Answer:
        """Ask for a picture; where it lies with another host, that one is judged as the first was."""
        target = parse(url)
        for _ in range(HOSTS):
            if denied := await self._denied(principal, target):
                raise HostNotAllowed(f"A policy does not let {target.host} be asked: {denied}")
            answer = await self._egress.send(Request(target.url, headers=_HEADERS), allowed=frozenset({target.host}))
            onward = parse(answer.leads_to) if answer.leads_to else None
            if onward is None or (target.scheme == "https" and onward.scheme == "http"):
                return answer
            target = onward
        return answer

    async def _denied(self, principal: PrincipalId, target: Target) -> str:
        """Say why a policy denies it; nothing if none does."""
        question = Question(
            principal=principal,
            agent_id=AgentId(""),
            session_id=SessionId(""),
            tool=fetch.spec,
            effect=Effect(
                risk=highest([of_host(target.host, writing=False)], at_least=Risk.MEDIUM),
                summary=f"GET {_shown(target.url)}",
                hosts=(target.host,),
            ),
            labels=(labels.OWNER,),
            channels=(channel.V1,),
            has_channel=True,
            now=self._clock.now(),
        )
        judgement = await asyncio.to_thread(self._gate().judge, question, ())
        return judgement.reason if judgement.verdict is Verdict.DENY else ""


def _refused(param: str, url: str, why: str) -> ParameterRefused:
    return ParameterRefused(
        param,
        f"The picture at {_shown(url)} can not be had: {why} Send it in the request itself, as"
        " data:image/png;base64,….",
    )


def _shown(url: str) -> str:
    line = escape_line(url)
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "…"
