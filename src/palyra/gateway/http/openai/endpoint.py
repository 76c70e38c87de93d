"""A call of `/v1` is a run like any other: it is accepted, followed on its tape, and answered in the OpenAI format."""

from collections.abc import Callable

from starlette.types import ASGIApp

from palyra.core import channel
from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage, Inbound
from palyra.core.model.request_options import RequestOptions
from palyra.gateway.http.openai.image_fetch import ImageFetcher
from palyra.gateway.http.openai.images import RequestImages
from palyra.gateway.http.openai.request_messages import RunInput
from palyra.gateway.http.openai.response_sender import AnswerFormat, BufferedSender, StreamingSender
from palyra.gateway.http.openai.run_answer import RunAnswer, discarded_turns
from palyra.gateway.http.openai.run_follower import RequestHeaders, RunFollower
from palyra.gateway.http.openai.services import V1Services
from palyra.journal import tape

MakeShape = Callable[[AcceptedMessage], AnswerFormat]


class V1Endpoint:
    """Accepts calls as runs and answers them."""

    def __init__(self, parts: V1Services) -> None:
        self._parts = parts
        self._linked = ImageFetcher(parts.gate, check=parts.intake.check_open, clock=parts.clock)

    async def with_pictures(self, inbound: Inbound, pictures: RequestImages) -> Inbound:
        """Return the message with the images fetched that it names by URL."""
        return await self._linked.fetched(inbound, pictures.links)

    async def answer(self, inbound: Inbound, manner: RequestHeaders, make: MakeShape, *, stream: bool) -> ASGIApp:
        """Accept a message, and return the response to send."""
        parts = self._parts
        with parts.streams.slot(inbound.principal) as position:
            accepted = await parts.intake.accept(inbound)
            void = await self._discarded_turns(accepted) if accepted.repeated else frozenset[int]()
            stored = position.pop_all()
        follower = parts.tail.follow(accepted.session_id, after_seq=accepted.after_seq, run_id=accepted.run_id)
        call = RunFollower(
            parts.engine,
            parts.control,
            inbound.principal,
            accepted,
            manner=manner,
            follower=follower,
            stack=stored,
            answer=RunAnswer(void=void),
        )
        return StreamingSender(call, make(accepted)) if stream else BufferedSender(call, make(accepted))

    async def _discarded_turns(self, accepted: AcceptedMessage) -> frozenset[int]:
        """Return the discarded turns of a run, so that a client that returns does not get them."""
        return discarded_turns(await self._parts.engine.read(lambda conn: tape.of_run(conn, accepted.run_id)))


def inbound_of(
    principal: PrincipalId,
    run_input: RunInput,
    manner: RequestHeaders,
    *,
    agent: str | None,
    options: RequestOptions,
    pictures: dict[str, bytes],
) -> Inbound:
    """Return the inbound message of a call."""
    return Inbound(
        principal=principal,
        text=run_input.text,
        images=run_input.images,
        history=run_input.history,
        session=manner.session,
        mode=manner.mode,
        idempotency_key=manner.idempotency_key,
        channel=channel.V1,
        agent=agent,
        options=options,
        pictures=pictures,
    )
