"""How a caller wants a message to be answered, where it says more than the message does."""

from msgspec import Struct

from palyra.core.model import TaskClass
from palyra.core.prompt import Options
from palyra.core.tool import JsonObject, ToolSpec

NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


class ClientTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the caller has. A call of it ends the run: the caller carries it out, and comes with the result."""

    name: str
    description: str = ""
    parameters: JsonObject = {}

    def spec(self) -> ToolSpec:
        """Return the tool as a model sees it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters or NO_PARAMETERS)


class Brief(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked for."""

    model: str = ""
    """The model that must answer, as `PROVIDER/MODEL`; the routing chooses if none is named."""
    plain: bool = False
    """The model alone: no agent's instructions, none of the daemon's tools."""
    task: TaskClass = TaskClass.INTERACTIVE
    system: str = ""
    """What the caller says to the model beside the agent's instructions."""
    options: Options = Options()
    tools: tuple[ClientTool, ...] = ()
    one_by_one: bool = False
    """The caller takes one call of its tools at a time."""


NO_BRIEF = Brief()
