"""What a tool is: a typed async function, and everything derived from its signature."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, get_type_hints

import msgspec

from palyra.core.clock import Clock
from palyra.core.errors import Conflict
from palyra.core.ids import PrincipalId
from palyra.core.policy import labels
from palyra.core.policy.effect import Effect
from palyra.core.policy.manifest import CapabilityManifest
from palyra.core.text.escaping import quote
from palyra.core.tool import CallRuntime, JsonObject, MarkerHandling, Risk, ToolSpec
from palyra.sandbox.base import MissingSandbox, Sandbox
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.network.egress import Egress
from palyra.sandbox.wasm.module import ModuleRunner
from palyra.sandbox.wasm.runner import WasmRunner
from palyra.tools.call_slots import CallPool, CallSlots
from palyra.tools.call_storage import NO_STORAGE, CallStorage
from palyra.tools.credentials import NO_CREDENTIALS, Credentials
from palyra.tools.execution_record import ExecutionRecorder
from palyra.tools.json_schema import ArgumentSchema
from palyra.tools.sealed_values import NO_SEALED_VALUES, SealedValues

P = ParamSpec("P")

NO_SANDBOX: Sandbox = MissingSandbox()
PUBLIC = Egress()


class CallOutcomeUnknown(Conflict):
    """The call was interrupted, and it is not known whether it took effect."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool can use besides its arguments."""

    workspace: Workspace
    clock: Clock
    storage: CallStorage = NO_STORAGE
    """Stores what the call leaves behind."""
    sandbox: Sandbox = NO_SANDBOX
    """Runs programs."""
    searches: Sandbox = NO_SANDBOX
    """Runs the prefilter that finds files a search need not open. Not recorded: no result contains its output."""
    modules: ModuleRunner = field(default_factory=WasmRunner)
    """Runs WebAssembly modules."""
    egress: Egress = PUBLIC
    """Sends requests to the network."""
    credentials: Credentials = NO_CREDENTIALS
    """Authenticates requests to a host."""
    witness: ExecutionRecorder = field(default_factory=ExecutionRecorder)
    """Records what the call runs."""
    principal: PrincipalId | None = None
    """Whose run it is."""
    sealed: SealedValues = NO_SEALED_VALUES
    """Puts sealed secrets back into the files that they came from."""
    shares: CallSlots = field(default_factory=CallSlots)
    """Limits the principal's calls that run at once."""


@dataclass(frozen=True, slots=True)
class Delegation:
    """A result that comes later: the calling run passes this text to a child run."""

    text: str


@dataclass(frozen=True, slots=True)
class DiscoveredTools:
    """A result with discovered tools: from now on the run may call them."""

    text: str
    tools: tuple[str, ...] = ()


Result = str | Delegation | DiscoveredTools

Preview = Callable[[ToolContext, Any], Awaitable[Effect]]
"""Takes the context and an instance of the tool's arguments. It may read, but changes nothing."""
Ready = Callable[[ToolContext, Any], Awaitable[object]]
"""Takes the same, and raises the error that would keep the call from being executed now."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that can be run."""

    spec: ToolSpec
    arguments: type[msgspec.Struct] | ArgumentSchema
    """The type of its arguments; a schema if they are known at run time only. Those are passed as `ValidArguments`."""
    run: Callable[[ToolContext, msgspec.Struct], Awaitable[Result]]
    """Takes an instance of `arguments`, `ValidArguments` for a schema."""
    timeout_ms: int | None = None
    """How long a call may take; None for the limit of the run."""
    preview: Preview | None = None
    """Works out the effect of a call, without executing it; None if the tool's risk never depends on its arguments."""
    ready: Ready | None = None
    """Checks before an approval request whether a call can be executed: approving one that cannot is of no use."""
    label: str = labels.TOOL
    """The label of its results."""
    described_by: str = labels.OWNER
    """The label of its name, description and schema: they are text in every prompt that offers it."""
    runtime: CallRuntime = CallRuntime.INTERNAL
    """What executes it."""
    markers: MarkerHandling = MarkerHandling.REFUSED
    """How it handles markers of sealed values in its arguments."""
    manifest: Callable[[ToolContext], CapabilityManifest] | None = None
    """Returns the bounds of its calls in a run; None for a tool that is not a plugin's. Blocks."""
    pool: CallPool | None = None
    """The pool that its calls share with others; it limits how many a principal may run at once."""
    is_for: Callable[[PrincipalId | None], bool] | None = None
    """Tells whether a principal may see and use it; None for a tool that every principal may use."""

    async def effect(self, context: ToolContext, record: msgspec.Struct) -> Effect:
        """Return the effect of the call."""
        if self.preview is None:
            displayed = msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
            return Effect(risk=self.spec.risk, summary=self.spec.name, detail=quote(displayed))
        return await self.preview(context, record)


def tool(  # noqa: PLR0913 (a declaration: every tool names what it sets)
    *,
    name: str,
    risk: Risk,
    repeatable: bool = False,
    read_only: bool = False,
    timeout_ms: int | None = None,
    preview: Preview | None = None,
    ready: Ready | None = None,
    label: str = labels.TOOL,
    runtime: CallRuntime = CallRuntime.INTERNAL,
    markers: MarkerHandling = MarkerHandling.REFUSED,
    pool: CallPool | None = None,
) -> Callable[[Callable[Concatenate[ToolContext, P], Awaitable[Result]]], Tool]:
    """Make a tool of `async def f(context, *, …)`.

    The keyword parameters become its arguments: required unless they have a default, described by
    `Annotated[…, msgspec.Meta(description=…)]`. The first paragraph of the docstring is what a model reads.
    """

    def make(function: Callable[Concatenate[ToolContext, P], Awaitable[Result]]) -> Tool:
        arguments = _arguments_of(function, name)

        async def run(context: ToolContext, record: msgspec.Struct) -> Result:
            # The struct was made from this exact signature, which no type checker can know.
            return await function(context, **msgspec.structs.asdict(record))  # type: ignore[call-arg]

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
    """Return the schema without the parts that only cost tokens."""
    _, definitions = msgspec.json.schema_components([arguments])
    schema: JsonObject = definitions.pop(arguments.__name__)
    del schema["title"]
    if not schema["required"]:
        del schema["required"]
    if definitions:
        schema["$defs"] = definitions
    return schema
