"""Tool calls whose arguments come in pieces, and that are proposed when they are whole."""

from collections.abc import Iterator, Sequence

from palyra.core.prompt import CallProposed, Prompt
from palyra.core.tool import ToolSpec
from palyra.providers.base import FailureKind
from palyra.providers.calls import read_arguments
from palyra.providers.dialect import Target
from palyra.providers.failure import failure
from palyra.providers.names import Names
from palyra.providers.tool_schema import restored

MOST_CHARS = 4 * 1024 * 1024
"""What the arguments of a turn may come to."""
MOST_CALLS = 256


class Draft:
    """One call."""

    __slots__ = ("call_id", "name", "pieces")

    def __init__(self, call_id: str = "", name: str = "") -> None:
        self.call_id = call_id
        """As the provider gives it; empty if it gives none, and then `Remote` does."""
        self.name = name
        """As the provider knows the tool."""
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        """The arguments so far."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


class Drafts:
    """The calls of one turn, in the order in which they began."""

    def __init__(self, target: Target, names: Names, tools: Sequence[ToolSpec]) -> None:
        """`tools` are those that the prompt offers."""
        self._target = target
        self._names = names
        self._tools = tools
        self._chars = 0
        self.all: list[Draft] = []

    def begin(self, call_id: str = "", name: str = "") -> Draft:
        """Begin a call."""
        if len(self.all) >= MOST_CALLS:
            raise failure(self._target, FailureKind.MALFORMED, why=f"more than {MOST_CALLS} calls in one turn")
        draft = Draft(call_id, name)
        self.all.append(draft)
        return draft

    def add(self, draft: Draft, text: str) -> None:
        """Add to the arguments of a call."""
        self._chars += len(text)
        if self._chars > MOST_CHARS:
            raise failure(self._target, FailureKind.MALFORMED, why="arguments without end")
        draft.pieces.append(text)

    def settle(self, draft: Draft, text: str) -> None:
        """Take the arguments of a call as they are said in the end, whatever came before."""
        self._chars -= len(draft.text)
        draft.pieces.clear()
        self.add(draft, text)

    def proposed(self) -> Iterator[CallProposed]:
        """Propose the calls, and forget them."""
        drafts, self.all = self.all, []
        for draft in drafts:
            arguments, malformed = read_arguments(draft.text)
            name = self._names.back(draft.name)
            called = next((tool for tool in self._tools if tool.name == name), None)
            if called is not None:
                arguments = restored(called.parameters, arguments)
            yield CallProposed(call_id=draft.call_id, tool=name, arguments=arguments, malformed=malformed)


def names_of(prompt: Prompt) -> Names:
    """Return the names of all tools that a prompt offers or speaks of."""
    spoken_of = (call.tool for message in prompt.messages for call in message.calls)
    return Names((tool.name for tool in prompt.tools), spoken_of)
