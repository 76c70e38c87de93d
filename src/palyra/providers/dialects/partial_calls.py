"""Tool calls whose arguments come in pieces, and that are proposed when they are complete."""

from collections.abc import Iterator, Sequence

from palyra.core.model.prompt import CallProposed, Prompt
from palyra.core.tool import ToolSpec
from palyra.providers.base import FailureKind
from palyra.providers.dialect import ModelTarget
from palyra.providers.dialects.tool_names import ToolNames
from palyra.providers.dialects.tool_schema import restored
from palyra.providers.failures import failure
from palyra.providers.tool_calls import read_arguments

MAX_CHARS = 4 * 1024 * 1024
"""The maximum size of the arguments of a turn."""
MAX_CALLS = 256


class PartialCall:
    """One call."""

    __slots__ = ("call_id", "name", "pieces")

    def __init__(self, call_id: str = "", name: str = "") -> None:
        self.call_id = call_id
        """The provider's id; empty if there is none, and then `RemoteProvider` sets one."""
        self.name = name
        """The tool's name as the provider knows it."""
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        """The arguments so far."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


class PartialCalls:
    """The calls of one turn, in the order in which they began."""

    def __init__(self, target: ModelTarget, names: ToolNames, tools: Sequence[ToolSpec]) -> None:
        """`tools` are those that the prompt offers."""
        self._target = target
        self._names = names
        self._tools = tools
        self._chars = 0
        self.all: list[PartialCall] = []

    def begin(self, call_id: str = "", name: str = "") -> PartialCall:
        """Begin a call."""
        if len(self.all) >= MAX_CALLS:
            raise failure(self._target, FailureKind.MALFORMED, why=f"more than {MAX_CALLS} calls in one turn")
        draft = PartialCall(call_id, name)
        self.all.append(draft)
        return draft

    def add(self, draft: PartialCall, text: str) -> None:
        """Add to the arguments of a call."""
        self._chars += len(text)
        if self._chars > MAX_CHARS:
            raise failure(self._target, FailureKind.MALFORMED, why="the arguments are too long")
        draft.pieces.append(text)

    def settle(self, draft: PartialCall, text: str) -> None:
        """Set the final arguments of a call, whatever came before."""
        self._chars -= len(draft.text)
        draft.pieces.clear()
        self.add(draft, text)

    def proposed(self) -> Iterator[CallProposed]:
        """Yield the calls as proposals, and clear them."""
        drafts, self.all = self.all, []
        for draft in drafts:
            arguments, malformed = read_arguments(draft.text)
            name = self._names.back(draft.name)
            called = next((tool for tool in self._tools if tool.name == name), None)
            if called is not None:
                arguments = restored(called.parameters, arguments)
            yield CallProposed(call_id=draft.call_id, tool=name, arguments=arguments, malformed=malformed)


def names_of(prompt: Prompt) -> ToolNames:
    """Return the names of all tools that a prompt offers or mentions."""
    spoken_of = (call.tool for message in prompt.messages for call in message.calls)
    return ToolNames((tool.name for tool in prompt.tools), spoken_of)
