"""Model providers over HTTP, for administrators: their status, their models, and a test.

Only the settings define providers. No key is accepted here, and none is returned.
"""

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import Operation
from palyra.gateway.records.providers import ProviderModelPage, ProviderPage, ProviderTestRequest
from palyra.runs.services.intake import MessageIntake
from palyra.runs.services.providers import ProviderService


class ProviderRoutes:
    """The operations that concern providers of models."""

    def __init__(self, providers: ProviderService, *, intake: MessageIntake) -> None:
        self._providers = providers
        self._intake = intake

    def operations(self) -> list[Operation]:
        every, one = "/admin/v1/providers", "/admin/v1/providers/{provider_name}"
        return [
            Operation(
                "listProviders", "GET", every, self.index, "List model providers.", need="admin", answer=ProviderPage
            ),
            Operation(
                "listProviderModels",
                "GET",
                f"{one}/models",
                self.models,
                "List the models of a provider.",
                need="admin",
                answer=ProviderModelPage,
            ),
            Operation(
                "testProvider",
                "POST",
                f"{one}/test",
                self.test,
                "Send a model a test message, as a run of its own.",
                need="admin",
                body=ProviderTestRequest,
                answer=AcceptedMessage,
                status=202,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        default, *fallback = self._providers.order()
        return json_response(
            ProviderPage(default=default, fallback=tuple(fallback), providers=await self._providers.all())
        )

    async def models(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(ProviderModelPage(models=await self._providers.models(_name(request))))

    async def test(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, ProviderTestRequest)
        name = f"{_name(request)}/{requested_request.model}" if requested_request.model else _name(request)
        return json_response(
            await self._intake.accept(self._providers.trial(principal, name, requested_request.tools)), status=202
        )


def _name(request: Request) -> str:
    return str(request.path_params["provider_name"])
