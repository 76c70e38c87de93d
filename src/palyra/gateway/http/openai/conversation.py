"""A conversation as a caller brings it: what was said before, and what is to be answered now."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from palyra.core.ids import CallId
from palyra.core.message import clean_text
from palyra.core.prompt import Image, Message, Role
from palyra.core.tool import ToolCall
from palyra.gateway.http.openai.errors import ParameterRefused
from palyra.providers.calls import read_arguments

MOST_ID_CHARS = 200
MOST_SYSTEM_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is begun with."""

    text: str
    images: tuple[Image, ...]
    given: tuple[Message, ...]


@dataclass(slots=True)
class Conversation:
    """Messages in their order, put together piece by piece.

    Calls are known by their ids. A caller may use one twice; here the second is told apart by a number, and a result
    answers the latest call of its id.
    """

    messages: list[Message] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    _calls: dict[str, CallId] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def say(self, text: str, images: tuple[Image, ...] = ()) -> None:
        """Add what the person said."""
        self.messages.append(Message(role=Role.USER, text=text, images=images))

    def answer(self, text: str, calls: tuple[ToolCall, ...] = ()) -> None:
        """Add what the model said, and which tools it called."""
        self.messages.append(Message(role=Role.ASSISTANT, text=text, calls=calls))

    def add_call(self, call: ToolCall) -> None:
        """Add a call to what the model said last, or as something that it did without a word."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role is not Role.ASSISTANT:
            self.answer("", (call,))
        else:
            self.messages[-1] = replace(last, calls=(*last.calls, call))

    def call(self, call_id: str, tool: str, arguments: str, *, param: str) -> ToolCall:
        """Return a call of the model's."""
        unique, number = call_id, 2
        while unique in self._seen:
            unique, number = f"{call_id}~{number}", number + 1
        self._seen.add(unique)
        self._calls[call_id] = _id(unique, param)
        found, malformed = read_arguments(arguments)
        return ToolCall(
            call_id=self._calls[call_id], tool=clean_text(tool, what="tool"), arguments=found, malformed=malformed
        )

    def result(self, call_id: str, text: str, *, param: str, known: bool = True) -> None:
        """Add what a call gave back. If its call need not be `known` here, an earlier run has handed it over."""
        if call_id in self._calls:
            wanted = self._calls.pop(call_id)
        elif known:
            raise ParameterRefused(param, "This result answers no call of the messages before it.")
        else:
            wanted = _id(call_id, param)
        self.messages.append(Message(role=Role.TOOL, text=text, call_id=wanted))

    def instructions(self) -> str:
        """Return what the caller tells the model about its work."""
        said = "\n\n".join(part for part in self.system if part.strip())
        if len(said.encode()) > MOST_SYSTEM_BYTES:
            raise ParameterRefused("messages", "The instructions have more than 256 KiB. Shorten them.")
        return said

    def whole(self, *, param: str) -> Asked:
        """Return all of it: the last message is to be answered, the others come along."""
        if not self.messages:
            raise ParameterRefused(param, "There is no message to be answered.")
        return self._asked(self.messages, param)

    def end(self, *, param: str) -> Asked:
        """Return what is new in a conversation that is kept here: the last message, and results since the last answer.

        What the caller says was said before counts for nothing.
        """
        spoken = [place for place, message in enumerate(self.messages) if message.role is Role.ASSISTANT]
        since = self.messages[spoken[-1] + 1 if spoken else 0 :]
        results = [message for message in since if message.role is Role.TOOL]
        last = [message for message in since if message.role is Role.USER][-1:]
        if not since:
            raise ParameterRefused(param, "The last message must be yours, or the result of a tool.")
        return self._asked([*results, *last], param)

    def _asked(self, messages: list[Message], param: str) -> Asked:
        last = messages[-1]
        if last.role is Role.ASSISTANT:
            raise ParameterRefused(param, "The last message must be yours, or the result of a tool.")
        if last.role is Role.TOOL:
            return Asked("", (), tuple(messages))
        if not last.text.strip() and not last.images:
            raise ParameterRefused(param, "The last message is empty. Say something.")
        return Asked(last.text, last.images, tuple(messages[:-1]))


def _id(call_id: str, param: str) -> CallId:
    if not 1 <= len(call_id) <= MOST_ID_CHARS:
        raise ParameterRefused(param, f"The id of a call has 1 to {MOST_ID_CHARS} characters.")
    return CallId(clean_text(call_id, what="id of a call"))
