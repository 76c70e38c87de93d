"""Models by name: `palyra` and `palyra/AGENT` are agents, everything else is a model of a provider."""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.model.catalog import ModelNotFound, split_model_name
from palyra.gateway.http.messages import json_response
from palyra.gateway.http.openai.errors import ParameterUnsupported
from palyra.gateway.http.openai.services import V1Services
from palyra.providers.model_pool import full_name

AGENT = "palyra"
NAME_CHARS = 100


class AnswerTarget(Struct, frozen=True, kw_only=True):
    """The agent or model that is to answer."""

    agent: str | None = None
    """The id of an agent; without it, the agent of the session."""
    model: str = ""
    """A model, `PROVIDER/MODEL`, that answers without an agent; without it, an agent answers."""

    @property
    def plain(self) -> bool:
        """Whether it is a model without an agent."""
        return bool(self.model)


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One model."""

    id: str
    created: int
    owned_by: str
    object: str = "model"


class ModelList(Struct, frozen=True, kw_only=True):
    """All models that can be requested."""

    data: list[ModelEntry]
    object: str = "list"


class ModelResolver:
    """Resolves model names."""

    def __init__(self, parts: V1Services) -> None:
        self._roster = parts.roster
        self._agents = parts.agents
        self._settings = parts.settings

    async def target(self, principal: PrincipalId, name: str) -> AnswerTarget:
        """Return the agent or model of a name, or raise `ModelNotFound`."""
        if name == AGENT:
            return AnswerTarget()
        family, _, agent = name.partition("/")
        if family == AGENT:
            for one in await self._agents.list(principal):
                if agent in (one.name, one.agent_id):
                    return AnswerTarget(agent=one.agent_id)
            raise _not_found(name)
        return AnswerTarget(model=self.model(name))

    def model(self, name: str) -> str:
        """Return the full name of a model. The name of a provider will do, or of a model that only one provider has."""
        names = self._roster.names()
        if name in names:
            return name
        provider, model = split_model_name(name)
        table = self._settings().providers.get(provider)
        if table is not None and (model or table.model or table.path):
            # Providers have more models than the settings name; the provider itself rejects unknown ones.
            return full_name(self._roster.named(name))
        if model is None and (own := [one for one in names if split_model_name(one)[0] == name]):
            return own[0]
        alike = [one for one in names if split_model_name(one)[1] == name]
        if len(alike) > 1:
            raise ParameterUnsupported(
                "model", f"Several providers have a model {name[:NAME_CHARS]!r}. Use one of: {', '.join(alike)}."
            )
        if not alike:
            raise _not_found(name)
        return alike[0]

    async def every(self, principal: PrincipalId) -> list[tuple[str, str]]:
        """Return all agents and models with their owners: agents first."""
        agents = await self._agents.list(principal)
        models = self._roster.names()
        if (own := self._settings().embeddings) is not None and own not in models:
            models.append(own)
        return [
            (AGENT, AGENT),
            *((f"{AGENT}/{agent.name}", AGENT) for agent in agents),
            *((model, split_model_name(model)[0]) for model in models),
        ]


class ModelsEndpoint:
    """Serves the list of models."""

    def __init__(self, parts: V1Services) -> None:
        self._models = ModelResolver(parts)
        self._since = int(parts.clock.now().timestamp())

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List agents and models."""
        result = await self._models.every(principal)
        return json_response(
            ModelList(data=[ModelEntry(id=name, created=self._since, owned_by=owner) for name, owner in result])
        )

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show one agent or model."""
        requested = request.path_params["model_name"]
        for name, owner in await self._models.every(principal):
            if name == requested:
                return json_response(ModelEntry(id=name, created=self._since, owned_by=owner))
        raise ModelNotFound


def _not_found(name: str) -> ModelNotFound:
    displayed = name if len(name) <= NAME_CHARS else name[:NAME_CHARS] + "…"
    return ModelNotFound(
        f"Unknown model or agent {displayed!r}. `palyra` is the default agent; GET /v1/models lists all."
    )
