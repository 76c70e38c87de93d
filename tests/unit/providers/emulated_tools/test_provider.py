"""Models that are made to call tools: what they are told, what they must write, and what is made of it."""

import json
import logging
from collections.abc import AsyncGenerator
from typing import cast

import msgspec
import pytest

from palyra.core.model.prompt import (
    GenerationOptions,
    Image,
    Message,
    ModelEvent,
    Prompt,
    Role,
    StopReason,
    TextDelta,
    ToolChoice,
    estimate_tokens,
)
from palyra.core.tool import JsonObject, Risk, ToolSpec
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.emulated_tools.prompt import describe_tools, simplify_schema
from palyra.providers.emulated_tools.provider import EmulatedToolsProvider
from palyra.tools.json_schema import ArgumentSchema
from tests.unit.providers.conversation import (
    ALL_TOOLS,
    a_call,
    a_prompt,
    assistant,
    calls_of,
    end_of,
    heard,
    result,
    text_of,
    user,
)
from tests.unit.providers.writing import USAGE, Writes


def with_options(prompt: Prompt, **options: object) -> Prompt:
    return msgspec.structs.replace(prompt, options=msgspec.convert(options, GenerationOptions))


def a_tool(
    name: str, *, risk: Risk = Risk.LOW, description: str = "Does something.", **properties: JsonObject
) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description=description, parameters=parameters, risk=risk)


async def test_an_answer_is_told_while_it_is_written() -> None:
    model = EmulatedToolsProvider(Writes('{"ans', 'wer": "Good', " mor\\", "nning, \\ud83d", '\\ude00"', "}"))
    events = await heard(model, a_prompt("hi"))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Good", " mor", "\nning, ", "😀"]
    assert end_of(events).stop is StopReason.END
    assert end_of(events).usage == USAGE


async def test_a_choice_of_a_tool_is_a_call() -> None:
    model = EmulatedToolsProvider(Writes('{"tool": "files.list", ', '"arguments": {"folder": "docs"}}'))
    prompt = a_prompt("what is in docs?")
    events = await heard(model, prompt)
    (call,) = calls_of(events)
    assert (call.tool, call.arguments, call.malformed) == ("files.list", {"folder": "docs"}, "")
    assert text_of(events) == ""
    assert end_of(events).stop is StopReason.CALLS
    again = calls_of(
        await heard(model, a_prompt("what is in docs?", assistant(calls=(a_call("files.list"),)), result("-")))
    )
    assert again[0].call_id != call.call_id


async def test_a_call_without_readable_arguments_is_proposed_as_malformed() -> None:
    (call,) = calls_of(
        await heard(EmulatedToolsProvider(Writes('{"tool": "files.list", "arguments": "docs"}')), a_prompt("hi"))
    )
    assert call.tool == "files.list"
    assert call.malformed


@pytest.mark.parametrize(
    "written",
    [
        "",
        "Hello!",
        '{"answer": "Hel',
        '{"answer": "Hello"',
        '{"answer": "Hello"} and more',
        '{"answer": "a\\x"}',
        '{"answer": "a\nb"}',
        '{"answer": "\\ud83d alone"}',
        '{"answer": "a", "answer": "b"}',
        '{"answer": "a", "tool": "files.list", "arguments": {}}',
        '{"tool": "files.list", "arguments": {"fol',
        '{"thought": "hm"}',
        "[]",
    ],
)
async def test_what_is_not_of_the_form_fails_the_turn(written: str) -> None:
    with pytest.raises(ProviderFailed) as caught:
        await heard(EmulatedToolsProvider(Writes(written)), a_prompt("hi"))
    assert caught.value.kind is FailureKind.MALFORMED
    assert caught.value.is_well
    assert "small of here" in caught.value.detail


async def test_an_answer_of_the_greatest_length_is_told_as_far_as_it_goes() -> None:
    events = await heard(
        EmulatedToolsProvider(Writes('{"answer": "Once upon a ti', stop=StopReason.LENGTH)), a_prompt("a story")
    )
    assert text_of(events) == "Once upon a ti"
    assert end_of(events).stop is StopReason.LENGTH


async def test_a_call_without_end_is_cut_off() -> None:
    model = EmulatedToolsProvider(Writes('{"tool": "a', *["x" * 100_000] * 50))
    with pytest.raises(ProviderFailed, match="it is too long") as caught:
        await heard(model, a_prompt("hi"))
    assert caught.value.kind is FailureKind.MALFORMED


async def test_a_call_that_was_cut_off_is_none() -> None:
    cut = Writes('{"tool": "files.list", "arguments": {"folder": "', stop=StopReason.LENGTH)
    with pytest.raises(ProviderFailed, match="maximum length") as caught:
        await heard(EmulatedToolsProvider(cut), a_prompt("hi"))
    assert caught.value.kind is FailureKind.MALFORMED


async def test_the_model_must_write_a_call_of_an_offered_tool_or_an_answer() -> None:
    inner = Writes('{"answer": "ok"}')
    await heard(EmulatedToolsProvider(inner), a_prompt("hi"))
    (asked,) = inner.asked
    assert asked.tools == ()
    assert asked.options.schema is not None
    form = ArgumentSchema(asked.options.schema)
    form.read({"answer": "ok"})
    form.read({"tool": "files.list", "arguments": {"folder": "docs"}})
    for other in (
        {"tool": "files.burn", "arguments": {}},
        {"tool": "files.read", "arguments": {"folder": "docs"}},
        {"tool": "files.list"},
        {"answer": "ok", "tool": "files.list", "arguments": {}},
    ):
        with pytest.raises(msgspec.ValidationError):
            form.read(other)
    for tool in ALL_TOOLS:
        assert f"- {tool.name}(" in asked.system


async def test_a_call_that_is_required_leaves_no_way_to_answer() -> None:
    inner = Writes('{"tool": "time.now", "arguments": {}}')
    await heard(EmulatedToolsProvider(inner), with_options(a_prompt("hi"), choice=ToolChoice.REQUIRED))
    assert inner.asked[0].options.schema is not None
    assert not any("answer" in choice["properties"] for choice in inner.asked[0].options.schema["anyOf"])
    assert inner.asked[0].options.choice is ToolChoice.AUTO


async def test_the_schema_of_the_caller_is_the_schema_of_the_answer() -> None:
    inner = Writes('{"answer": {"city"', ': "Łódź"}}')
    wanted = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    events = await heard(EmulatedToolsProvider(inner), with_options(a_prompt("where?"), schema=wanted))
    assert json.loads(text_of(events)) == {"city": "Łódź"}
    assert inner.asked[0].options.schema is not None
    assert inner.asked[0].options.schema["anyOf"][-1]["properties"]["answer"] == wanted


@pytest.mark.parametrize("pieces", [('{"answer": "one two END three"}',), tuple('{"answer": "one two END three"}')])
async def test_the_answer_ends_at_the_words_of_the_caller(pieces: tuple[str, ...]) -> None:
    inner = Writes(*pieces)
    events = await heard(EmulatedToolsProvider(inner), with_options(a_prompt("count"), stop=("END", "never")))
    assert text_of(events) == "one two "
    assert inner.asked[0].options.stop == (), "the model must write its form to the end"
    inner = Writes(*pieces)
    assert (
        text_of(await heard(EmulatedToolsProvider(inner), with_options(a_prompt("count"), stop=("ENDLESS",))))
        == "one two END three"
    )


async def test_earlier_calls_are_shown_as_the_model_writes_them() -> None:
    inner = Writes('{"answer": "ok"}')
    calls = (a_call("files.list", {"folder": "a"}), a_call("files.list", {"folder": "b"}, call_id="c2"))
    picture = Image(digest="d", media_type="image/png", size=1)
    said = Message(role=Role.USER, text="look", images=(picture,))
    talk = (said, user("please"), assistant("Hello."), user("both"), assistant(calls=calls), result("x.txt"))
    await heard(EmulatedToolsProvider(inner), a_prompt(*talk))
    assert [(message.role.value, message.text) for message in inner.asked[0].messages] == [
        ("user", "look\n\nplease"),
        ("assistant", '{"answer":"Hello."}'),
        ("user", "both"),
        ("assistant", '{"tool":"files.list","arguments":{"folder":"a"}}'),
        ("user", "Result of files.list:\nx.txt"),
        ("assistant", '{"tool":"files.list","arguments":{"folder":"b"}}'),
        ("user", "Result of files.list:\nThere is no result."),
    ]
    assert inner.asked[0].messages[0].images == (picture,)


@pytest.mark.parametrize("choice", [ToolChoice.AUTO, ToolChoice.NONE])
async def test_without_tools_the_model_answers_in_its_own_words(choice: ToolChoice) -> None:
    inner = Writes("Hel", "lo.")
    talk = (user("hi"), assistant("Hello."), user("docs?"), assistant(calls=(a_call("files.list"),)), result("x.txt"))
    prompt = a_prompt(*talk, tools=() if choice is ToolChoice.AUTO else ALL_TOOLS)
    events = await heard(EmulatedToolsProvider(inner), with_options(prompt, choice=choice))
    assert text_of(events) == "Hello."
    (asked,) = inner.asked
    assert asked.options.schema is None
    assert asked.system == ""
    assert [message.text for message in asked.messages] == [
        "hi",
        "Hello.",
        "docs?\n\nResult of files.list with {}:\nx.txt",
    ]


async def test_who_stops_listening_closes_the_model() -> None:
    inner = Writes('{"answer": "a', "b", 'c"}')
    stream = cast("AsyncGenerator[ModelEvent]", EmulatedToolsProvider(inner).stream(a_prompt("hi")))
    async for _ in stream:
        break
    await stream.aclose()
    assert inner.closed == 1


async def test_the_built_in_tools_fit_a_small_window_with_their_descriptions() -> None:
    inner = Writes('{"answer": "ok"}', window_tokens=4096)
    await heard(EmulatedToolsProvider(inner), a_prompt("hi"))
    assert estimate_tokens(inner.asked[0].system) <= 1024
    assert "List a workspace folder with sizes" in inner.asked[0].system


async def test_tools_without_room_are_left_out_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    tools = (
        *(a_tool(f"danger.{number}", risk=Risk.HIGH, path={"type": "string"}) for number in range(40)),
        a_tool("files.read", path={"type": "string"}),
        a_tool("used.before", risk=Risk.CRITICAL),
    )
    inner = Writes('{"answer": "ok"}', window_tokens=1024)
    model = EmulatedToolsProvider(inner)
    talk = ("hi", assistant(calls=(a_call("used.before"),)), result("done"))
    with caplog.at_level(logging.WARNING):
        await heard(model, a_prompt(*talk, tools=tools))
        await heard(model, a_prompt(*talk, tools=tools))
    (asked, _) = inner.asked
    assert asked.options.schema is not None
    kept = {choice["properties"]["tool"]["const"] for choice in asked.options.schema["anyOf"][:-1]}
    assert {"files.read", "used.before"} < kept
    assert len(kept) < len(tools)
    assert estimate_tokens(asked.system) <= 256
    (said,) = caplog.messages
    assert f"does not get {len(tools) - len(kept)} tools" in said


def test_descriptions_get_shorter_before_tools_are_left_out() -> None:
    words = "Does one thing of many, and does it well, as all the others do with what they are made for"
    tools = tuple(a_tool(f"tool.{number}", description=words) for number in range(10))
    assert words in describe_tools(tools, tokens=400).text
    shorter = describe_tools(tools, tokens=330)
    assert shorter.tools == tools
    assert words not in shorter.text
    assert "Does one thing of many" in shorter.text
    shortest = describe_tools(tools, tokens=150)
    assert shortest.tools == tools
    assert "Does" not in shortest.text
    assert len(describe_tools(tools, tokens=112).left_out) in range(1, 10)


def test_what_a_tool_takes_is_told_in_a_few_words() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "mode": {"enum": ["fast", "slow"]},
            "depth": {"type": "integer", "minimum": 1},
        },
        "required": ["path"],
    }
    tool = ToolSpec(name="disk.scan", description="Scans a disk. It takes long.", parameters=parameters)
    assert (
        '- disk.scan(path, mode?: "fast"|"slow", depth?: integer): Scans a disk'
        in describe_tools((tool,), tokens=500).text
    )


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"type": "string", "pattern": "(?<!a)b", "format": "uri", "maxLength": 5}, {"type": "string"}),
        ({"$ref": "#/$defs/part"}, {}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"oneOf": [{"type": "integer", "minimum": 3}, {"const": "all"}]},
            {"anyOf": [{"type": "integer"}, {"enum": ["all"]}]},
        ),
        (
            {"type": "array", "items": {"type": "number"}, "maxItems": 10_000},
            {"type": "array", "items": {"type": "number"}},
        ),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object"}),
        ({"type": "nonsense"}, {}),
        (True, {}),
    ],
)
def test_a_schema_is_held_to_as_far_as_every_server_understands_it(schema: object, left: JsonObject) -> None:
    wrapped = simplify_schema({"type": "object", "properties": {"part": schema}, "required": ["part"]})
    assert wrapped["properties"]["part"] == left
    assert wrapped["required"] == ["part"]
