"""A call of `/v1` is a run like any other: it is taken in, followed on its tape, and answered in the caller's words."""

from collections.abc import Callable

from starlette.types import ASGIApp

from palyra.core import channel
from palyra.core.brief import Brief
from palyra.core.ids import PrincipalId
from palyra.core.message import Accepted, Inbound
from palyra.gateway.http.openai.call import Call, Manner
from palyra.gateway.http.openai.conversation import Asked
from palyra.gateway.http.openai.linked import Linked
from palyra.gateway.http.openai.parts import Parts
from palyra.gateway.http.openai.pictures import Pictures
from palyra.gateway.http.openai.sending import Shape, Streamed, Whole
from palyra.gateway.http.openai.telling import Telling, void_turns
from palyra.journal import tape

MakeShape = Callable[[Accepted], Shape]


class Door:
    """Takes calls in and answers them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._linked = Linked(parts.gate, check=parts.intake.check_open, clock=parts.clock)

    async def with_pictures(self, inbound: Inbound, pictures: Pictures) -> Inbound:
        """Return the message with the pictures that it names by their addresses."""
        return await self._linked.fetched(inbound, pictures.links)

    async def answer(self, inbound: Inbound, manner: Manner, make: MakeShape, *, stream: bool) -> ASGIApp:
        """Take a message in, and return what answers it."""
        parts = self._parts
        with parts.streams.place(inbound.principal) as place:
            accepted = await parts.intake.accept(inbound)
            void = await self._void(accepted) if accepted.repeated else frozenset[int]()
            kept = place.pop_all()
        follower = parts.tail.follow(accepted.session_id, after_seq=accepted.after_seq, run_id=accepted.run_id)
        call = Call(
            parts.engine,
            parts.control,
            inbound.principal,
            accepted,
            manner=manner,
            follower=follower,
            place=kept,
            telling=Telling(void=void),
        )
        return Streamed(call, make(accepted)) if stream else Whole(call, make(accepted))

    async def _void(self, accepted: Accepted) -> frozenset[int]:
        """Return the turns of a run that are known not to count, so that who comes again is not told of them."""
        return void_turns(await self._parts.engine.read(lambda conn: tape.of_run(conn, accepted.run_id)))


def inbound_of(
    principal: PrincipalId,
    asked: Asked,
    manner: Manner,
    *,
    agent: str | None,
    brief: Brief,
    pictures: dict[str, bytes],
) -> Inbound:
    """Return the message that a call brings."""
    return Inbound(
        principal=principal,
        text=asked.text,
        images=asked.images,
        given=asked.given,
        session=manner.session,
        mode=manner.mode,
        idempotency_key=manner.idempotency_key,
        origin=channel.V1,
        agent=agent,
        brief=brief,
        pictures=pictures,
    )
