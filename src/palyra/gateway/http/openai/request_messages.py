"""A conversation that a client sends: the attached history, and the message to answer now."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from palyra.core.ids import CallId
from palyra.core.message import clean_text
from palyra.core.model.prompt import Image, Message, Role
from palyra.core.tool import ToolCall
from palyra.gateway.http.openai.errors import ParameterUnsupported
from palyra.providers.tool_calls import read_arguments

MAX_ID_CHARS = 200
MAX_SYSTEM_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class RunInput:
    """The input that a run is started with."""

    text: str
    images: tuple[Image, ...]
    history: tuple[Message, ...]


@dataclass(slots=True)
class MessageBuilder:
    """Builds the messages of a conversation, in order.

    Calls are identified by id. A client may use an id twice; the second gets a number added here, and a result answers
    the latest call of its id.
    """

    messages: list[Message] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    _calls: dict[str, CallId] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def add_user(self, text: str, images: tuple[Image, ...] = ()) -> None:
        """Add a user message."""
        self.messages.append(Message(role=Role.USER, text=text, images=images))

    def answer(self, text: str, calls: tuple[ToolCall, ...] = ()) -> None:
        """Add a message of the model, with its tool calls."""
        self.messages.append(Message(role=Role.ASSISTANT, text=text, calls=calls))

    def add_call(self, call: ToolCall) -> None:
        """Add a call to the model's last message, or as a message without text."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role is not Role.ASSISTANT:
            self.answer("", (call,))
        else:
            self.messages[-1] = replace(last, calls=(*last.calls, call))

    def call(self, call_id: str, tool: str, arguments: str, *, param: str) -> ToolCall:
        """Return a call of the model."""
        unique, number = call_id, 2
        while unique in self._seen:
            unique, number = f"{call_id}~{number}", number + 1
        self._seen.add(unique)
        self._calls[call_id] = _id(unique, param)
        document, malformed = read_arguments(arguments)
        return ToolCall(
            call_id=self._calls[call_id], tool=clean_text(tool, what="tool"), arguments=document, malformed=malformed
        )

    def result(self, call_id: str, text: str, *, param: str, is_known: bool = True) -> None:
        """Add the result of a call. If the call need not be `known` here, an earlier run has handed it over."""
        if call_id in self._calls:
            requested_call_id = self._calls.pop(call_id)
        elif is_known:
            raise ParameterUnsupported(param, "This result does not answer a call in the messages before it.")
        else:
            requested_call_id = _id(call_id, param)
        self.messages.append(Message(role=Role.TOOL, text=text, call_id=requested_call_id))

    def instructions(self) -> str:
        """Return the system instructions."""
        text = "\n\n".join(part for part in self.system if part.strip())
        if len(text.encode()) > MAX_SYSTEM_BYTES:
            raise ParameterUnsupported("messages", "The instructions are longer than 256 KiB. Shorten them.")
        return text

    def build(self, *, param: str) -> RunInput:
        """Return the whole conversation: the last message is to be answered, the others are attached history."""
        if not self.messages:
            raise ParameterUnsupported(param, "There is no message to answer.")
        return self._input(self.messages, param)

    def end(self, *, param: str) -> RunInput:
        """Return what is new in a conversation stored here: the last message, and results since the last answer.

        Earlier messages of the request are ignored.
        """
        spoken = [index for index, message in enumerate(self.messages) if message.role is Role.ASSISTANT]
        since = self.messages[spoken[-1] + 1 if spoken else 0 :]
        results = [message for message in since if message.role is Role.TOOL]
        last = [message for message in since if message.role is Role.USER][-1:]
        if not since:
            raise ParameterUnsupported(param, "The last message must be yours, or the result of a tool.")
        return self._input([*results, *last], param)

    def _input(self, messages: list[Message], param: str) -> RunInput:
        last = messages[-1]
        if last.role is Role.ASSISTANT:
            raise ParameterUnsupported(param, "The last message must be yours, or the result of a tool.")
        if last.role is Role.TOOL:
            return RunInput("", (), tuple(messages))
        if not last.text.strip() and not last.images:
            raise ParameterUnsupported(param, "The last message is empty. Write some text.")
        return RunInput(last.text, last.images, tuple(messages[:-1]))


def _id(call_id: str, param: str) -> CallId:
    if not 1 <= len(call_id) <= MAX_ID_CHARS:
        raise ParameterUnsupported(param, f"The id of a call must have 1 to {MAX_ID_CHARS} characters.")
    return CallId(clean_text(call_id, what="id of a call"))
