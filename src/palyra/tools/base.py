"""What a tool is: a typed async function, and all that is read off its signature."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, get_type_hints

import msgspec

from palyra.core import labels
from palyra.core.clock import Clock
from palyra.core.display import quote
from palyra.core.effect import Effect
from palyra.core.errors import Conflict
from palyra.core.ids import PrincipalId
from palyra.core.manifest import Manifest
from palyra.core.tool import JsonObject, Markers, Risk, Runtime, ToolSpec
from palyra.sandbox.base import Nowhere, Sandbox
from palyra.sandbox.egress import Egress
from palyra.sandbox.wasm import ModuleRunner, Modules
from palyra.sandbox.workspace import Workspace
from palyra.tools.credentials import NO_CREDENTIALS, Credentials
from palyra.tools.keeping import NOWHERE, Keeping
from palyra.tools.schema import Schema
from palyra.tools.sealed import NOTHING_SEALED, Sealed
from palyra.tools.shares import Pool, Shares
from palyra.tools.witness import Witness

P = ParamSpec("P")

NO_SANDBOX: Sandbox = Nowhere()
PUBLIC = Egress()


class OutcomeUnknown(Conflict):
    """The call was interrupted, and whether it took effect is not known."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may reach besides its arguments."""

    workspace: Workspace
    clock: Clock
    keeping: Keeping = NOWHERE
    """Keeps what the call leaves behind."""
    sandbox: Sandbox = NO_SANDBOX
    """Runs programs."""
    searches: Sandbox = NO_SANDBOX
    """Runs what finds out which files a search need not open. No witness: nothing that it says is part of a result."""
    modules: ModuleRunner = field(default_factory=Modules)
    """Runs WebAssembly modules."""
    egress: Egress = PUBLIC
    """Reaches the network."""
    credentials: Credentials = NO_CREDENTIALS
    """Proves at a host who asks."""
    witness: Witness = field(default_factory=Witness)
    """Sees what the call runs."""
    principal: PrincipalId | None = None
    """Whose run it is."""
    sealed: Sealed = NOTHING_SEALED
    """Puts sealed secrets back into the files that they came from."""
    shares: Shares = field(default_factory=Shares)
    """Bounds what the principal has under way at once."""


@dataclass(frozen=True, slots=True)
class Delegation:
    """A result that is yet to come: the run that called hands this text to a run of its own."""

    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """A result that brings further tools: from now on the run may call them."""

    text: str
    tools: tuple[str, ...] = ()


Result = str | Delegation | Found

Preview = Callable[[ToolContext, Any], Awaitable[Effect]]
"""Takes the context and an instance of the tool's arguments. It may read, and changes nothing."""
Ready = Callable[[ToolContext, Any], Awaitable[object]]
"""Takes the same, and raises what would keep the call from being carried out now."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that can be run."""

    spec: ToolSpec
    arguments: type[msgspec.Struct] | Schema
    """What its arguments must be; a schema if they are known at run time only. Those are handed on as `Given`."""
    run: Callable[[ToolContext, msgspec.Struct], Awaitable[Result]]
    """Takes an instance of `arguments`, `Given` for a schema."""
    timeout_ms: int | None = None
    """How long a call may take; None for what the run allows."""
    preview: Preview | None = None
    """Works out what a call would do, without doing it; None for a tool whose risk never depends on its arguments."""
    ready: Ready | None = None
    """Looks before anybody is asked whether a call can be carried out: a yes to one that cannot be is of no use."""
    label: str = labels.TOOL
    """Where its results come from."""
    described_by: str = labels.OWNER
    """Where its name, description and schema come from: they are text in every prompt that offers it."""
    runtime: Runtime = Runtime.INTERNAL
    """What carries it out."""
    markers: Markers = Markers.REFUSED
    """What it makes of markers of sealed values in its arguments."""
    manifest: Callable[[ToolContext], Manifest] | None = None
    """Returns what its calls in a run are bounded by; None for a tool that is no plugin's. Blocks."""
    pool: Pool | None = None
    """What its calls have in common with others, so that a principal may have only some under way."""
    is_for: Callable[[PrincipalId | None], bool] | None = None
    """Tells whether a principal may know of it and use it; None for a tool that is for everybody."""

    async def effect(self, context: ToolContext, given: msgspec.Struct) -> Effect:
        """Return what the call would do."""
        if self.preview is None:
            shown = msgspec.json.format(msgspec.json.encode(given), indent=2).decode()
            return Effect(risk=self.spec.risk, summary=self.spec.name, detail=quote(shown))
        return await self.preview(context, given)


def tool(
    *,
    name: str,
    risk: Risk,
    repeatable: bool = False,
    read_only: bool = False,
    timeout_ms: int | None = None,
    preview: Preview | None = None,
    ready: Ready | None = None,
    label: str = labels.TOOL,
    runtime: Runtime = Runtime.INTERNAL,
    markers: Markers = Markers.REFUSED,
    pool: Pool | None = None,
) -> Callable[[Callable[Concatenate[ToolContext, P], Awaitable[Result]]], Tool]:
    """Make a tool of `async def f(context, *, …)`.

    The keyword parameters become its arguments: required unless they have a default, described by
    `Annotated[…, msgspec.Meta(description=…)]`. The first paragraph of the docstring is what a model reads.
    """

    def make(function: Callable[Concatenate[ToolContext, P], Awaitable[Result]]) -> Tool:
        arguments = _arguments_of(function, name)

        async def run(context: ToolContext, given: msgspec.Struct) -> Result:
            # The struct was made from this very signature, which no type checker can know.
            return await function(context, **msgspec.structs.asdict(given))  # type: ignore[call-arg]

        spec = ToolSpec(
            name=name,
            description=" ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()),
            parameters=_schema_of(arguments),
            risk=risk,
            repeatable=repeatable,
            read_only=read_only,
        )
        return Tool(
            spec=spec,
            arguments=arguments,
            run=run,
            timeout_ms=timeout_ms,
            preview=preview,
            ready=ready,
            label=label,
            runtime=runtime,
            markers=markers,
            pool=pool,
        )

    return make


def _arguments_of(function: Callable[Concatenate[ToolContext, P], object], name: str) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    fields: list[tuple[str, object] | tuple[str, object, object]] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(f"{name}: {parameter.name} must be keyword-only")
        hint = hints[parameter.name]
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


def _schema_of(arguments: type[msgspec.Struct]) -> JsonObject:
    """Return the schema without what only costs tokens."""
    _, definitions = msgspec.json.schema_components([arguments])
    schema: JsonObject = definitions.pop(arguments.__name__)
    del schema["title"]
    if not schema["required"]:
        del schema["required"]
    if definitions:
        schema["$defs"] = definitions
    return schema
