"""Model providers over HTTP, for administrators: their status, their models, and a test.

Only the settings define providers. No key is accepted here, and none is returned.
"""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage
from palyra.core.model.provider_status import ProviderStatus, ToolProbe
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import Operation
from palyra.runs.services.intake import MessageIntake
from palyra.runs.services.providers import ProviderService


class ProviderTestRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be tested."""

    model: str | None = None
    """The model, as the provider calls it; the provider's default if none is named."""
    tools: ToolProbe | None = None
    """Offer it a tool: `call` requests a call of it, `answer` a hello without one. No tool if not set."""


class ProviderList(Struct, frozen=True, kw_only=True):
    """Every provider of the settings."""

    default: str
    """The default provider or model, as the settings name it."""
    fallback: tuple[str, ...]
    """The providers or models that answer when the default cannot."""
    providers: list[ProviderStatus]


class ProviderModelList(Struct, frozen=True, kw_only=True):
    """The models of a provider, as it lists them."""

    models: list[str]


class ProviderRoutes:
    """The operations that concern providers of models."""

    def __init__(self, providers: ProviderService, *, intake: MessageIntake) -> None:
        self._providers = providers
        self._intake = intake

    def operations(self) -> list[Operation]:
        every, one = "/admin/v1/providers", "/admin/v1/providers/{provider_name}"
        return [
            Operation("GET", every, self.index, "List providers of models.", need="admin", answer=ProviderList),
            Operation(
                "GET",
                f"{one}/models",
                self.models,
                "Ask a provider for its models.",
                need="admin",
                answer=ProviderModelList,
            ),
            Operation(
                "POST",
                f"{one}/test",
                self.test,
                "Ask a model one thing, as a run of its own.",
                need="admin",
                body=ProviderTestRequest,
                answer=AcceptedMessage,
                status=202,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        default, *fallback = self._providers.order()
        return json_response(
            ProviderList(default=default, fallback=tuple(fallback), providers=await self._providers.all())
        )

    async def models(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(ProviderModelList(models=await self._providers.models(_name(request))))

    async def test(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, ProviderTestRequest)
        name = f"{_name(request)}/{asked.model}" if asked.model else _name(request)
        return json_response(await self._intake.accept(self._providers.trial(principal, name, asked.tools)), status=202)


def _name(request: Request) -> str:
    return str(request.path_params["provider_name"])
