"""The standard gRPC services: health and reflection."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default as descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from palyra.gateway.error_status import GrpcStatus
from palyra.gateway.grpc.methods import (
    ANYBODYS_BYTES,
    RESPONSE_TIMEOUT_SECONDS,
    Handler,
    decode,
    public_method,
    read,
    reply,
    send,
)
from palyra.gateway.grpc.server_call import ServerCall

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
"""The same messages under the name that newer tools try first."""

LOOK_SECONDS = 1.0
"""How often a watched state is checked."""

_Found = reflection_pb2.ServerReflectionResponse


class HealthService:
    """The standard health service."""

    def __init__(self, names: Sequence[str], *, ready: Callable[[], str | None]) -> None:
        """`ready` returns the code of a problem, None if there is none."""
        self._names = frozenset({"", *names})
        self._ready = ready
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopped.set()

    def services(self) -> dict[str, dict[str, Handler]]:
        return {HEALTH: {"Check": public_method(self._check), "Watch": public_method(self._watch)}}

    async def _check(self, call: ServerCall) -> None:
        request = await read(call, health_pb2.HealthCheckRequest, maximum=ANYBODYS_BYTES)
        if request.service in self._names:
            await reply(call, self._state())
        else:
            await call.finish(GrpcStatus.NOT_FOUND, "Unknown service.")

    async def _watch(self, call: ServerCall) -> None:
        request = await read(call, health_pb2.HealthCheckRequest, maximum=ANYBODYS_BYTES)
        is_known = request.service in self._names
        unknown = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        sent = self._state() if is_known else unknown
        await send(call, sent, seconds=RESPONSE_TIMEOUT_SECONDS)
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._stopped.wait()
            if is_known and (state := self._state()) != sent:
                sent = state
                await send(call, sent, seconds=RESPONSE_TIMEOUT_SECONDS)
        await call.finish(GrpcStatus.OK)

    def _state(self) -> health_pb2.HealthCheckResponse:
        state = health_pb2.HealthCheckResponse
        return state(status=state.NOT_SERVING if self._stopped.is_set() or self._ready() else state.SERVING)


def reflection_service(names: Sequence[str]) -> dict[str, dict[str, Handler]]:
    """Return the reflection service for these services and itself."""
    offered = sorted({*names, REFLECTION, REFLECTION_V1})

    async def tell(call: ServerCall) -> None:
        while (message := await call.read(ANYBODYS_BYTES)) is not None:
            request = decode(reflection_pb2.ServerReflectionRequest, message)
            answer = _answer(request, offered)
            answer.original_request.CopyFrom(request)
            answer.valid_host = request.host
            await send(call, answer, seconds=RESPONSE_TIMEOUT_SECONDS)
        await call.finish(GrpcStatus.OK)

    handlers = {"ServerReflectionInfo": public_method(tell)}
    return {REFLECTION: handlers, REFLECTION_V1: handlers}


def _answer(request: reflection_pb2.ServerReflectionRequest, offered: Sequence[str]) -> _Found:
    pool = descriptor_pool()
    try:
        match request.WhichOneof("message_request"):
            case "list_services":
                services = [reflection_pb2.ServiceResponse(name=name) for name in offered]
                return _Found(list_services_response=reflection_pb2.ListServiceResponse(service=services))
            case "file_by_filename":
                return _described(pool.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                return _described(pool.FindFileContainingSymbol(request.file_containing_symbol))
            case "file_containing_extension":
                extension_request = request.file_containing_extension
                extended = pool.FindMessageTypeByName(extension_request.containing_type)
                extension = pool.FindExtensionByNumber(extended, extension_request.extension_number)
                return _described(pool.FindFileContainingSymbol(extension.full_name))
            case "all_extension_numbers_of_type":
                extended = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
                numbers = sorted(extension.number for extension in pool.FindAllExtensions(extended))
                extension_number_response = reflection_pb2.ExtensionNumberResponse(
                    base_type_name=extended.full_name, extension_number=numbers
                )
                return _Found(all_extension_numbers_response=extension_number_response)
            case _:
                return _wrong(GrpcStatus.INVALID_ARGUMENT, "The request is empty.")
    except KeyError:
        return _wrong(GrpcStatus.NOT_FOUND, "Unknown symbol or file.")


def _described(file: FileDescriptor) -> _Found:
    """Return a file descriptor and all its dependencies."""
    files: dict[str, bytes] = {}

    def collect(one: FileDescriptor) -> None:
        if one.name not in files:
            proto = descriptor_pb2.FileDescriptorProto()
            one.CopyToProto(proto)
            files[one.name] = proto.SerializeToString()
            for needed in one.dependencies:
                collect(needed)

    collect(file)
    return _Found(
        file_descriptor_response=reflection_pb2.FileDescriptorResponse(file_descriptor_proto=list(files.values()))
    )


def _wrong(status: GrpcStatus, message: str) -> _Found:
    return _Found(error_response=reflection_pb2.ErrorResponse(error_code=status, error_message=message))
