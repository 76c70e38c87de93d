"""How a message looks in Markdown. Whole sessions are exported in `tests/integration/test_sessions.py`."""

from palyra.core.clock import to_ms
from palyra.core.ids import CallId
from palyra.core.model.prompt import Message, Role
from palyra.core.projection.changes import StoredMessage
from palyra.core.tool import ToolCall
from palyra.runs.services.session_export import _section
from tests.support.builders import AT, RUN


def section(message: Message) -> str:
    return _section(StoredMessage(1, RUN, message, 1, (), to_ms(AT)))


def test_each_message_has_a_heading_with_who_and_when() -> None:
    assert section(Message(role=Role.USER, text="Hello.")) == "\n## You, 2026-01-02 03:04:05 UTC\n\nHello.\n"
    assert section(Message(role=Role.ASSISTANT, text="Hi.")) == "\n## Palyra, 2026-01-02 03:04:05 UTC\n\nHi.\n"


def test_calls_are_listed_with_their_arguments() -> None:
    calls = (
        ToolCall(call_id=CallId("c1"), tool="files.read", arguments={"path": "a.txt"}),
        ToolCall(call_id=CallId("c2"), tool="time.now", arguments={}),
    )
    lines = section(Message(role=Role.ASSISTANT, text="Let me look.", calls=calls)).splitlines()
    assert lines[-2:] == ['- calls `files.read` with `{"path":"a.txt"}`', "- calls `time.now` with `{}`"]


def test_a_result_stands_in_a_fence_that_nothing_in_it_closes() -> None:
    plain = section(Message(role=Role.TOOL, text="a\nb", call_id=CallId("c1")))
    assert plain.endswith("\n\n```\na\nb\n```\n")
    tricky = section(Message(role=Role.TOOL, text="```\ncode\n`````\n", call_id=CallId("c1")))
    assert "\n``````\n```\ncode\n`````\n\n``````\n" in tricky
