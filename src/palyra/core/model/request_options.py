"""Request options: what a caller sets for one run, besides the message."""

from msgspec import Struct

from palyra.core.model.catalog import TaskClass
from palyra.core.model.prompt import GenerationOptions
from palyra.core.tool import JsonObject, ToolSpec

NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


class ClientTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool of the caller. A call of it ends the run: the caller executes it and sends the result in a new request."""

    name: str
    description: str = ""
    parameters: JsonObject = {}

    def spec(self) -> ToolSpec:
        """Return the tool as a model sees it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters or NO_PARAMETERS)


class RequestOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller sets for one run."""

    model: str = ""
    """The model that must answer, as `PROVIDER/MODEL`; routing chooses if none is named."""
    plain: bool = False
    """Use the model alone: no agent instructions, none of the daemon's tools."""
    task: TaskClass = TaskClass.INTERACTIVE
    system: str = ""
    """The caller's system prompt, in addition to the agent's instructions."""
    generation: GenerationOptions = GenerationOptions()
    tools: tuple[ClientTool, ...] = ()
    one_by_one: bool = False
    """The caller accepts only one call of its tools at a time."""


NO_REQUEST_OPTIONS = RequestOptions()
