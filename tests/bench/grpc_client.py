"""A gRPC client that costs little: methods without generated stubs, answers decoded only where they are looked at."""

from typing import Any, Self

import grpc

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.runs import PROTOCOL_VERSION
from palyra.gateway.grpc.server import SERVICE
from tests.bench.ground import grpc_address
from tests.support.daemon import Daemon

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 8 * 1024 * 1024)]


class Broken(Exception):
    """A run did not complete."""


class GrpcClient:
    """One connection, for any number of calls at once."""

    def __init__(self, daemon: Daemon) -> None:
        self._metadata = (("authorization", f"Bearer {daemon.token}"),)
        self._channel = grpc.aio.insecure_channel(grpc_address(daemon), options=OPTIONS)
        self._run_stream: Any = self._channel.stream_stream(
            f"/{SERVICE}/RunStream",
            request_serializer=pb.RunStreamRequest.SerializeToString,
            response_deserializer=pb.RunStreamResponse.FromString,
        )
        # The bytes as they come: a follower looks into them when nothing is measured any more.
        self._attach: Any = self._channel.unary_stream(
            f"/{SERVICE}/AttachSession", request_serializer=pb.AttachSessionRequest.SerializeToString
        )

    async def __aenter__(self) -> Self:
        await self._channel.channel_ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def turn(self, request: pb.RunStreamRequest) -> list[pb.TapeEntry]:
        """Send a message, follow its run to the end, and return its entries."""
        call = self._run_stream(metadata=self._metadata)
        await call.write(request)
        entries: list[pb.TapeEntry] = []
        while (response := await call.read()) is not grpc.aio.EOF:
            entries += response.entries
        if not entries or entries[-1].kind != "run_completed":
            raise Broken(f"{await call.code()}: {entries[-1:]}")
        return entries

    async def session(self, key: str) -> str:
        """Return the id of the session of that key, made if there is none."""
        answer = await self._ask("ResolveSession", pb.ResolveSessionRequest(session=pb.SessionRef(key=key)))
        return str(pb.ResolveSessionResponse.FromString(answer).session.session_id)

    async def send(self, text: str, session: str) -> None:
        """Send a message without following it."""
        await self._ask("RouteMessage", pb.RouteMessageRequest(message=_message(text, session)))

    def attach(self, session_id: str) -> Any:
        """Follow a session from its start: an iterator of batches, still encoded."""
        return self._attach(pb.AttachSessionRequest(session_id=session_id), metadata=self._metadata)

    async def _ask(self, method: str, request: Any) -> bytes:
        call: Any = self._channel.unary_unary(f"/{SERVICE}/{method}")
        answer: bytes = await call(request.SerializeToString(), metadata=self._metadata)
        return answer


def start_request(text: str, session: str) -> pb.RunStreamRequest:
    """Return the request that sends a message to the session of a key."""
    return pb.RunStreamRequest(
        start=pb.StartRun(protocol_version=PROTOCOL_VERSION, message=_message(text, session)),
    )


def _message(text: str, session: str) -> pb.InboundMessage:
    return pb.InboundMessage(text=text, session=pb.SessionRef(key=session))
