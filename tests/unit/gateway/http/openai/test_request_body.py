"""Requests: whatever stands in one, it is understood or refused by the name of what is wrong."""

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from palyra.core.errors import Invalid
from palyra.core.model.prompt import ToolChoice
from palyra.core.model.request_options import NO_REQUEST_OPTIONS, ClientTool
from palyra.gateway.error_status import RequestTooLarge
from palyra.gateway.http.openai import chat_request, responses_request, tools
from palyra.gateway.http.openai.errors import ParameterUnsupported
from palyra.gateway.http.openai.images import MAX_PICTURES, RequestImages
from palyra.gateway.http.openai.models import AnswerTarget
from palyra.gateway.http.openai.request_body import MAX_VALUES, parse, read_json
from palyra.gateway.http.openai.request_messages import MessageBuilder, RunInput
from palyra.gateway.http.openai.request_options import RequestParameters, request_options
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.support.builders import ANA

PLAIN, AGENT = AnswerTarget(model="acme/large"), AnswerTarget()
WEATHER = {"type": "function", "function": {"name": "weather"}}


def chat(
    body: dict[str, Any], *, target: AnswerTarget = AGENT, named: bool = False
) -> tuple[RunInput, RequestParameters, Any]:
    """Understand a request for a chat completion, all the way."""
    asked = parse(body, chat_request.ChatRequest, chat_request.RULES)
    talk = chat_request.conversation_of(asked.messages, RequestImages(), named=named)
    return _understood(talk, chat_request.parameters_of(asked, system=talk.instructions()), target, named=named)


def response(
    body: dict[str, Any], *, target: AnswerTarget = AGENT, named: bool = False
) -> tuple[RunInput, RequestParameters, Any]:
    """Understand a request for a response."""
    asked = parse(responses_request.with_item_types(body), responses_request.ResponseRequest, responses_request.RULES)
    talk = responses_request.conversation_of(asked, RequestImages(), named=named)
    return _understood(talk, responses_request.parameters_of(asked, system=talk.instructions()), target, named=named)


def _understood(
    talk: MessageBuilder, wanted: RequestParameters, target: AnswerTarget, *, named: bool
) -> tuple[RunInput, RequestParameters, Any]:
    said = talk.end(param="m") if named else talk.build(param="m")
    return said, wanted, request_options(wanted, target, toolbox=BUILTIN_ONLY, who=ANA)


def a_chat(**more: Any) -> dict[str, Any]:
    return {"model": "palyra", "messages": [{"role": "user", "content": "Hello."}], **more}


def test_a_plain_message_asks_for_nothing_else() -> None:
    said, _, brief = chat(a_chat())
    assert (said.text, brief is NO_REQUEST_OPTIONS) == ("Hello.", True)
    said, _, brief = response({"model": "palyra", "input": "Hello."})
    assert (said.text, brief is NO_REQUEST_OPTIONS) == ("Hello.", True)


@pytest.mark.parametrize("name", sorted(chat_request.RULES))
def test_what_changes_nothing_may_come_and_what_can_not_be_honoured_is_named(name: str) -> None:
    rule = chat_request.RULES[name]
    for value in (None, *(rule.values if rule is not None else ("anything",))):
        chat(a_chat(**{name: value}))
    if rule is not None:
        with pytest.raises(ParameterUnsupported) as refused:
            chat(a_chat(**{name: "something else"}))
        assert refused.value.param == name


def test_a_parameter_that_nobody_knows_is_named() -> None:
    with pytest.raises(ParameterUnsupported, match="Unknown parameter 'top_k'"):
        chat(a_chat(top_k=5))


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        ({"stop": [""]}, "stop"),
        ({"tools": [{"type": "function", "function": {"name": "files.read"}}]}, "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_does_not_fit_is_named(more: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterUnsupported) as refused:
        chat(a_chat(**more))
    assert refused.value.param == param


def test_the_parameters_come_to_the_same_in_both_kinds_of_request() -> None:
    schema = {"type": "object", "properties": {}}
    more = {"temperature": 0, "top_p": 0, "parallel_tool_calls": False}
    _, first, _ = chat(
        a_chat(
            **more,
            max_completion_tokens=7,
            tools=[WEATHER],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
    )
    _, second, _ = response(
        {
            **more,
            "model": "palyra",
            "input": "Hello.",
            "max_output_tokens": 7,
            "tools": [{"type": "function", "name": "weather"}],
            "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}},
        }
    )
    assert first == second
    assert (first.schema, first.tokens, first.parallel) == (schema, 7, False)


def test_items_of_a_response_are_the_same_conversation() -> None:
    said, _, _ = response(
        {
            "model": "palyra",
            "input": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "input_text", "text": "How is it?"}]},
                {"type": "reasoning", "id": "r", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
                {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "rain"},
            ],
        }
    )
    assert [(message.role.value, message.text, len(message.calls)) for message in said.history] == [
        ("user", "How is it?", 0),
        ("assistant", "Wait.", 1),
        ("tool", "rain", 0),
    ]


# -- tools


OWN = (ClientTool(name="weather"), ClientTool(name="paint"))


def test_a_model_may_be_made_to_call_a_tool() -> None:
    assert tools.offer(OWN, choice="required", named=None, plain=True).choice is ToolChoice.REQUIRED
    assert tools.offer(OWN, choice="none", named=None, plain=True).choice is ToolChoice.NONE
    only = tools.offer(OWN, choice="auto", named="paint", plain=True)
    assert (only.tools, only.choice) == (OWN[1:], ToolChoice.REQUIRED)
    with pytest.raises(ParameterUnsupported):
        tools.offer(OWN, choice="auto", named="sing", plain=True)


def test_an_agent_is_free_to_choose() -> None:
    assert tools.offer(OWN, choice="auto", named=None, plain=False).tools == OWN
    assert tools.offer(OWN, choice="none", named=None, plain=False).tools == ()
    for choice, named in (("required", None), ("auto", "paint")):
        with pytest.raises(ParameterUnsupported):
            tools.offer(OWN, choice=choice, named=named, plain=False)


def test_a_name_that_means_something_else_is_refused() -> None:
    tools.check(OWN, claimed=lambda: ["files.read"])
    with pytest.raises(ParameterUnsupported, match="paint"):
        tools.check(OWN, claimed=lambda: ["paint"])


# -- pictures


def a_url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0...", "image/jpeg"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\n\n\n\nWEBPVP8 ", "image/webp"),
    ],
)
def test_a_picture_is_what_its_content_says(content: bytes, media_type: str) -> None:
    pictures = RequestImages()
    image = pictures.read(a_url(content, "gif"), param="m")
    assert (image.media_type, image.size, pictures.found) == (media_type, len(content), {image.digest: content})


@pytest.mark.parametrize(
    "url",
    [
        "",
        "data:text/plain;base64,aGVsbG8=",
        "file:///etc/passwd",
        "ftp://example.org/a.png",
        a_url(b"<svg/>", "svg+xml"),
        a_url(b"\x89PNG\r\n\x1a\n" + bytes(5 * 1024 * 1024)),
        "data:image/png;base64,%%%",
    ],
)
def test_what_is_no_picture_is_refused(url: str) -> None:
    with pytest.raises(ParameterUnsupported):
        RequestImages().read(url, param="m")


def test_there_is_an_end_to_pictures() -> None:
    pictures = RequestImages()
    for number in range(MAX_PICTURES):
        pictures.read(a_url(b"GIF89a" + bytes([number])), param="m")
    pictures.read(a_url(b"GIF89a\0"), param="m")
    with pytest.raises(ParameterUnsupported):
        pictures.read(a_url(b"GIF89a\xff"), param="m")


# -- whatever comes


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_TEXTS = st.text(max_size=20)
_PARTS = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, _TEXTS)
    | st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, _TEXTS)
    | _JSON,
    max_size=3,
)
_CALLS = st.lists(
    st.builds(
        lambda call_id, name, arguments: {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        st.sampled_from("abc"),
        _TEXTS,
        _TEXTS | st.just('{"a": 1}'),
    ),
    max_size=3,
)
_CHAT = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
        optional={"content": _TEXTS | _PARTS | _JSON, "tool_calls": _CALLS, "tool_call_id": st.sampled_from("abc")},
    ),
    max_size=6,
)
_ITEMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "other"]),
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": _TEXTS | _PARTS,
            "call_id": st.sampled_from("abc"),
            "name": _TEXTS,
            "arguments": _TEXTS,
            "output": _TEXTS | _JSON,
        },
    )
    | _JSON,
    max_size=6,
)
_MORE = st.dictionaries(
    st.sampled_from([*chat_request.ChatRequest.__struct_fields__, *responses_request.ResponseRequest.__struct_fields__])
    | st.sampled_from(sorted(chat_request.RULES)),
    _JSON,
    max_size=3,
)


@given(messages=_CHAT, more=_MORE, plain=st.booleans(), named=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_chat_request_is_understood_or_refused(
    messages: list[Any], more: dict[str, Any], plain: bool, named: bool
) -> None:
    try:
        said, _, _ = chat({"model": "x", "messages": messages, **more}, target=PLAIN if plain else AGENT, named=named)
    except Invalid:
        return
    assert said.text.strip() or said.images or said.history


@given(items=_ITEMS | _TEXTS, more=_MORE, plain=st.booleans(), named=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_request_for_a_response_is_understood_or_refused(
    items: Any, more: dict[str, Any], plain: bool, named: bool
) -> None:
    try:
        said, _, _ = response({"model": "x", "input": items, **more}, target=PLAIN if plain else AGENT, named=named)
    except Invalid:
        return
    assert said.text.strip() or said.images or said.history


def a_post(body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


@pytest.mark.parametrize("value", [b"{}", b"[]", b"0", b'""', b"[[]]"])
async def test_a_body_of_more_values_than_memory_should_hold_is_refused_unread(value: bytes) -> None:
    bomb = b'{"input":[' + b",".join([value] * (MAX_VALUES + 1)) + b"]}"
    with pytest.raises(RequestTooLarge, match="more than 2,000,000 values"):
        await read_json(a_post(bomb))


async def test_a_large_body_of_few_values_is_read() -> None:
    picture = "A" * (2 * MAX_VALUES)
    assert await read_json(a_post(b'{"input":["%s"]}' % picture.encode())) == {"input": [picture]}
