"""Model providers over HTTP, for administrators: their status, their models, and a test.

Only the settings define providers. No key is accepted here, and none is returned.
"""

from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.records.providers import ProviderModelPage, ProviderPage, ProviderTestRequest
from palyra.runs.services.intake import MessageIntake
from palyra.runs.services.providers import ProviderService


class ProviderRoutes(Routes):
    """The operations that concern providers of models."""

    def __init__(self, providers: ProviderService, *, intake: MessageIntake) -> None:
        self._providers = providers
        self._intake = intake

    @operation("listProviders", "GET /admin/v1/providers", need="admin")
    async def index(self) -> ProviderPage:
        """List model providers."""
        default, *fallback = self._providers.order()
        return ProviderPage(default=default, fallback=tuple(fallback), providers=await self._providers.all())

    @operation("listProviderModels", "GET /admin/v1/providers/{provider_name}/models", need="admin")
    async def models(self, provider_name: str) -> ProviderModelPage:
        """List the models of a provider."""
        return ProviderModelPage(models=await self._providers.models(provider_name))

    @operation("testProvider", "POST /admin/v1/providers/{provider_name}/test", need="admin", status=202)
    async def test(self, principal: PrincipalId, provider_name: str, body: ProviderTestRequest) -> AcceptedMessage:
        """Send a model a test message, as a run of its own."""
        name = f"{provider_name}/{body.model}" if body.model else provider_name
        return await self._intake.accept(self._providers.trial(principal, name, body.tools))
