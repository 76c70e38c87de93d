"""Models by their names: `palyra` and `palyra/AGENT` are agents, everything else is a model of a provider."""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.model import split
from palyra.gateway.http.openai.errors import ModelNotFound, ParameterRefused
from palyra.gateway.http.openai.parts import Parts
from palyra.gateway.http.wire import reply
from palyra.providers.roster import full_name

AGENT = "palyra"
NAME_CHARS = 100


class Target(Struct, frozen=True, kw_only=True):
    """Who is to answer."""

    agent: str | None = None
    """An agent by its id; whoever answers in the session if there is none."""
    model: str = ""
    """A model, `PROVIDER/MODEL`, that answers alone; an agent does if there is none."""

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
    """All that can be asked."""

    data: list[ModelEntry]
    object: str = "list"


class Models:
    """Finds who is meant by a name."""

    def __init__(self, parts: Parts) -> None:
        self._roster = parts.roster
        self._agents = parts.agents
        self._settings = parts.settings

    async def target(self, principal: PrincipalId, name: str) -> Target:
        """Return who is meant, or raise `ModelNotFound`."""
        if name == AGENT:
            return Target()
        family, _, agent = name.partition("/")
        if family == AGENT:
            for one in await self._agents.list(principal):
                if agent in (one.name, one.agent_id):
                    return Target(agent=one.agent_id)
            raise _not_found(name)
        return Target(model=self.model(name))

    def model(self, name: str) -> str:
        """Return the whole name of a model. That of a provider will do, or of a model that only one provider has."""
        known = self._roster.names()
        if name in known:
            return name
        provider, model = split(name)
        table = self._settings().providers.get(provider)
        if table is not None and (model or table.model or table.path):
            # Providers have more models than the settings name; one that it has not, it says itself.
            return full_name(self._roster.named(name))
        if model is None and (own := [one for one in known if split(one)[0] == name]):
            return own[0]
        alike = [one for one in known if split(one)[1] == name]
        if len(alike) > 1:
            raise ParameterRefused(
                "model", f"Several providers have a model {name[:NAME_CHARS]!r}. Ask for one of: {', '.join(alike)}."
            )
        if not alike:
            raise _not_found(name)
        return alike[0]

    async def every(self, principal: PrincipalId) -> list[tuple[str, str]]:
        """Return what can be asked for, each with who has it: agents first."""
        agents = await self._agents.list(principal)
        models = self._roster.names()
        if (own := self._settings().embeddings) is not None and own not in models:
            models.append(own)
        return [
            (AGENT, AGENT),
            *((f"{AGENT}/{agent.name}", AGENT) for agent in agents),
            *((model, split(model)[0]) for model in models),
        ]


class ModelsDoor:
    """Says what can be asked."""

    def __init__(self, parts: Parts) -> None:
        self._models = Models(parts)
        self._since = int(parts.clock.now().timestamp())

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List agents and models."""
        found = await self._models.every(principal)
        return reply(
            ModelList(data=[ModelEntry(id=name, created=self._since, owned_by=owner) for name, owner in found])
        )

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show one of them."""
        wanted = request.path_params["model_name"]
        for name, owner in await self._models.every(principal):
            if name == wanted:
                return reply(ModelEntry(id=name, created=self._since, owned_by=owner))
        raise ModelNotFound


def _not_found(name: str) -> ModelNotFound:
    shown = name if len(name) <= NAME_CHARS else name[:NAME_CHARS] + "…"
    return ModelNotFound(
        f"There is no model or agent {shown!r}. `palyra` is the default agent; GET /v1/models lists all that there are."
    )
