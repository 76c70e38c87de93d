"""Providers of models over HTTP, for whoever administers this Palyra: how they stand, what they offer, and a trial.

Which providers there are is said in the settings alone. No key goes in here, and none comes out.
"""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.message import Accepted
from palyra.core.provider import ProviderStanding, ToolProbe
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.wire import body, reply
from palyra.runs.intake import Intake
from palyra.runs.providers import Providers


class TrialRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be put to the proof."""

    model: str | None = None
    """The model, as the provider calls it; its own if none is named."""
    tools: ToolProbe | None = None
    """Offer it a tool: `call` asks for a call of it, `answer` for a hello without one. No tool if nothing is said."""


class ProvidersAnswer(Struct, frozen=True, kw_only=True):
    """Every provider of the settings."""

    default: str
    """Who answers if nothing else is said, as the settings name it."""
    fallback: tuple[str, ...]
    """Who answers when that one can not."""
    providers: list[ProviderStanding]


class ModelsAnswer(Struct, frozen=True, kw_only=True):
    """The models of a provider, as it lists them."""

    models: list[str]


class ProviderRoutes:
    """The operations that concern providers of models."""

    def __init__(self, providers: Providers, *, intake: Intake) -> None:
        self._providers = providers
        self._intake = intake

    def operations(self) -> list[Operation]:
        every, one = "/admin/v1/providers", "/admin/v1/providers/{provider_name}"
        return [
            Operation("GET", every, self.index, "List providers of models.", need="admin", answer=ProvidersAnswer),
            Operation(
                "GET", f"{one}/models", self.models, "Ask a provider for its models.", need="admin", answer=ModelsAnswer
            ),
            Operation(
                "POST",
                f"{one}/test",
                self.test,
                "Ask a model one thing, as a run of its own.",
                need="admin",
                body=TrialRequest,
                answer=Accepted,
                status=202,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        default, *fallback = self._providers.order()
        return reply(ProvidersAnswer(default=default, fallback=tuple(fallback), providers=await self._providers.all()))

    async def models(self, request: Request, principal: PrincipalId) -> Response:
        return reply(ModelsAnswer(models=await self._providers.models(_name(request))))

    async def test(self, request: Request, principal: PrincipalId) -> Response:
        asked = await body(request, TrialRequest)
        name = f"{_name(request)}/{asked.model}" if asked.model else _name(request)
        return reply(await self._intake.accept(self._providers.trial(principal, name, asked.tools)), status=202)


def _name(request: Request) -> str:
    return str(request.path_params["provider_name"])
