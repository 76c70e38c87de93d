"""What is sent in Chat Completions, and what the odd pieces of its answers mean."""

import re
from typing import Any

import pytest

from palyra.core.model.catalog import ModelCard
from palyra.core.model.prompt import GenerationOptions, Image, Message, Prompt, Reasoning, Role, StopReason, ToolChoice
from palyra.core.tool import JsonObject, ToolSpec
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialect import ModelTarget
from palyra.providers.dialects.openai import DIALECT
from palyra.providers.dialects.openai_models import UNKNOWN
from palyra.providers.dialects.openai_request import is_strict
from tests.unit.providers.conversation import a_call, a_prompt, assistant, result, user
from tests.unit.providers.reading import calls_of, end_of, kept, read, sent, target_of, text_of, thought_of

TARGET = target_of(DIALECT, "gpt-4o")
PROMPT = a_prompt("hello")
READ = ToolSpec(name="files.read", description="Read a file.", parameters={"type": "object", "properties": {}})


def piece(delta: JsonObject, finish: str | None = None, **more: Any) -> JsonObject:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def call(index: int | None = None, id: str | None = None, **function: Any) -> JsonObject:
    fields = {"index": index, "id": id, "function": function}
    return piece({"tool_calls": [{name: value for name, value in fields.items() if value is not None}]})


END = piece({}, "stop")


def test_a_conversation_is_sent_with_what_stays_the_same_first() -> None:
    prompt = Prompt(
        system="Be brief.",
        tools=(READ,),
        messages=(
            user("look"),
            assistant("I look.", calls=(a_call("files.read", {"path": "a"}),)),
            result("nothing"),
            user("thanks"),
        ),
    )

    body = sent(DIALECT, prompt, TARGET)

    assert list(body)[:3] == ["model", "tools", "messages"]
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "files_read",
                "description": "Read a file.",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "files_read", "arguments": '{"path":"a"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
        {"role": "user", "content": "thanks"},
    ]
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_a_longer_conversation_begins_with_the_same_bytes() -> None:
    short = a_prompt("one", assistant("two"))
    long = a_prompt("one", assistant("two"), "three", assistant("four"))

    before, said, _ = DIALECT.request(short, TARGET).body.partition(b'{"role":"assistant","content":"two"}')

    assert said
    assert DIALECT.request(long, TARGET).body.startswith(before + said + b",")


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("gpt-4o", "max_tokens"),
        ("o3-mini", "max_completion_tokens"),
        ("gpt-5", "max_completion_tokens"),
        ("openai/gpt-5.1", "max_completion_tokens"),
        ("qwen3:4b", "max_tokens"),
    ],
)
def test_the_length_is_asked_for_as_the_model_knows_it(model: str, field: str) -> None:
    body = sent(DIALECT, PROMPT, target_of(DIALECT, model, max_output_tokens=100))

    assert {name: body[name] for name in body if name.startswith("max_")} == {field: 100}


def test_options_are_sent_and_what_is_not_asked_is_not() -> None:
    options = GenerationOptions(
        max_output_tokens=50,
        temperature=0.0,
        top_p=0.5,
        stop=("END",),
        choice=ToolChoice.REQUIRED,
        schema={"type": "object"},
    )
    prompt = Prompt(system="", tools=(READ,), messages=(user("hi"),), options=options)

    body = sent(DIALECT, prompt, TARGET)

    assert (body["max_tokens"], body["temperature"], body["top_p"], body["stop"]) == (50, 0.0, 0.5, ["END"])
    assert body["tool_choice"] == "required"
    shape = {"name": "answer", "schema": {"type": "object"}, "strict": False}
    assert body["response_format"] == {"type": "json_schema", "json_schema": shape}
    plain = sent(DIALECT, PROMPT, TARGET)
    assert not {"temperature", "top_p", "stop", "tool_choice", "response_format"} & plain.keys()


def test_a_schema_is_held_to_where_it_names_all_that_it_has() -> None:
    whole = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }

    assert is_strict(whole)
    assert not is_strict({**whole, "required": []})
    assert not is_strict({"type": "array", "items": {"type": "object", "properties": {}}})
    # A default is a value, whatever it looks like.
    assert is_strict({"type": "string", "default": {"type": "object"}})
    deep: JsonObject = {"type": "string"}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    assert not is_strict(deep)


def test_pictures_go_with_their_message_and_those_of_tools_after_all_results() -> None:
    picture = Image(digest="d", media_type="image/png", size=3)
    prompt = Prompt(
        system="",
        tools=(),
        messages=(
            Message(role=Role.USER, text="see", images=(picture,)),
            assistant(calls=(a_call("look", call_id="c1"), a_call("look", call_id="c2"))),
            Message(role=Role.TOOL, text="one", call_id=None, images=(picture,)),
            result("two", call_id="c2"),
        ),
        images={"d": b"png"},
    )
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}

    messages = sent(DIALECT, prompt, TARGET)["messages"]

    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert messages[0]["content"] == [{"type": "text", "text": "see"}, url]
    assert messages[4]["content"][1:] == [url]


def test_a_model_that_does_not_see_is_told_of_the_picture() -> None:
    picture = Image(digest="d", media_type="image/png", size=3)
    prompt = Prompt(
        system="", tools=(), messages=(Message(role=Role.USER, text="see", images=(picture,)),), images={"d": b"png"}
    )

    [message] = sent(DIALECT, prompt, target_of(DIALECT, "llama"))["messages"]

    assert message["content"][1] == {"type": "text", "text": "[an image (image/png) that cannot be shown]"}


def test_thoughts_go_back_with_the_calls_that_they_led_to() -> None:
    target = target_of(DIALECT, "deepseek-reasoner")
    events = read(
        DIALECT,
        PROMPT,
        target,
        [
            piece({"reasoning_content": "Look "}),
            piece({"reasoning_content": "first."}),
            call(0, "c9", name="x", arguments="{}"),
            END,
        ],
    )
    thoughts = kept(events)
    with_call = Message(role=Role.ASSISTANT, text="", calls=(a_call("x"),), reasoning=thoughts)
    without = Message(role=Role.ASSISTANT, text="Done.", reasoning=thoughts)
    prompt = a_prompt("one", with_call, result("ok"), without, "two", tools=())

    mine, others = (sent(DIALECT, prompt, each)["messages"] for each in (target, target_of(DIALECT, "deepseek-chat")))

    assert mine[1]["reasoning_content"] == "Look first."
    assert "reasoning_content" not in mine[3]
    assert "reasoning_content" not in others[1]


def test_an_empty_thought_goes_back_too_and_counts_once() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        [
            piece({"content": None, "reasoning_content": ""}),
            piece({"content": "a", "reasoning_content": ""}),
            piece({"content": "b", "reasoning_content": ""}),
            END,
        ],
    )
    said = Message(role=Role.ASSISTANT, text="ab", calls=(a_call("x"),), reasoning=kept(events))

    assert text_of(events) == "ab"
    assert len(kept(events)) == 1
    assert sent(DIALECT, a_prompt("one", said), TARGET)["messages"][1]["reasoning_content"] == ""


def test_detailed_thoughts_go_back_as_they_came() -> None:
    details = [{"type": "reasoning.encrypted", "data": "abc", "id": "r1", "index": 0}]
    thought = Reasoning(dialect="openai", data={"field": "reasoning_details", "details": details, "by": "maker/gpt-4o"})
    said = Message(role=Role.ASSISTANT, text="Yes.", reasoning=(thought,))

    assert sent(DIALECT, a_prompt(said), TARGET)["messages"][0]["reasoning_details"] == details


def test_thoughts_in_typed_parts_are_told_from_the_answer() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    events = read(DIALECT, PROMPT, TARGET, [piece({"content": [thinking]}), piece({"content": "Yes."}), END])

    assert (thought_of(events), text_of(events)) == ("Hm.", "Yes.")


@pytest.mark.parametrize("thinking", [None, 5, True, "Hm.", {"text": "Hm."}, [5, {"text": 5}, {}]])
def test_typed_parts_that_hold_no_thoughts_say_nothing(thinking: object) -> None:
    part = {"type": "thinking", "thinking": thinking}
    events = read(DIALECT, PROMPT, TARGET, [piece({"content": [part]}), piece({"content": "Yes."}), END])

    assert (thought_of(events), text_of(events)) == ("", "Yes.")


@pytest.mark.parametrize("cut", range(1, 12))
@pytest.mark.parametrize(
    ("content", "thought", "text"),
    [
        ("<think>\nTwo < 3.</thin> ok</think>\n\nFour.", "\nTwo < 3.</thin> ok", "Four."),
        ("\n <think>Hm.</think>", "Hm.", ""),
        ("<think>never ends</thi", "never ends</thi", ""),
        ("I say <think>aloud</think>.", "", "I say <think>aloud</think>."),
        ("<thinking> is a tag.", "", "<thinking> is a tag."),
        ("  <", "", "  <"),
        ("  plain", "", "  plain"),
        ("<think></think>a<think>b</think>", "", "a<think>b</think>"),
    ],
)
def test_thoughts_in_tags_are_told_from_the_answer(content: str, thought: str, text: str, cut: int) -> None:
    pieces = [piece({"content": content[at : at + cut]}) for at in range(0, len(content), cut)]

    events = read(DIALECT, PROMPT, TARGET, [*pieces, END])

    assert (thought_of(events), text_of(events)) == (thought, text)


def test_mistral_is_asked_as_it_wants_to_be() -> None:
    at_home = target_of(DIALECT, "devstral-small-latest")
    target = ModelTarget(
        provider="mistral",
        model=at_home.model,
        card=at_home.card,
        max_output_tokens=100,
        base_url="https://api.mistral.ai/v1",
    )
    prompt = a_prompt("go", assistant(calls=(a_call("x", call_id="01JD2V0000"),)), result("ok", call_id="01JD2V0000"))

    body = sent(DIALECT, prompt, target)

    assert "stream_options" not in body
    _, called, answered = body["messages"]
    assert called["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", answered["tool_call_id"])
    assert "stream_options" in sent(DIALECT, prompt, at_home)


@pytest.mark.parametrize(
    "pieces",
    [
        [call(0, "a", name="x", arguments='{"n":'), call(0, arguments="1}"), call(1, "b", name="y", arguments="{}")],
        [call(0, "a", name="x", arguments='{"n":1}'), call(0, "b", name="y", arguments="{}")],
        [call(None, "a", name="x", arguments='{"n":1}'), call(None, "b", name="y", arguments="{}")],
        [call(None, name="x", arguments='{"n":'), call(arguments="1}"), call(None, name="y", arguments="{}")],
        [call(0, "", name="x", arguments='{"n":1}'), call(0, "", name="y", arguments="{}")],
        [call(0, "a", name="x", arguments='{"n":'), call(0, "a", name="x", arguments="1}"), call(1, "b", name="y")],
        [call(0, "a", name="x"), call(1, "b", name="y"), call(0, arguments='{"n"'), call(0, arguments=":1}")],
        [call(0, "a", name="x", arguments={"n": 1}), call(1, "b", name="y", arguments={})],
    ],
    ids=["usual", "one index", "no index", "nothing but names", "empty ids", "repeated", "mixed", "objects"],
)
def test_two_calls_are_two_however_they_are_written(pieces: list[JsonObject]) -> None:
    events = read(DIALECT, PROMPT, TARGET, [*pieces, piece({}, "tool_calls")])

    assert [(each.tool, each.arguments) for each in calls_of(events)] == [("x", {"n": 1}), ("y", {})]
    assert end_of(events).stop is StopReason.CALLS


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("stop", StopReason.END),
        ("length", StopReason.LENGTH),
        ("content_filter", StopReason.REFUSED),
        ("eos", StopReason.END),
        ("tool_calls", StopReason.END),
    ],
)
def test_the_reason_to_stop_is_told(finish: str, stop: StopReason) -> None:
    assert end_of(read(DIALECT, PROMPT, TARGET, [piece({"content": "x"}), piece({}, finish)])).stop is stop


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "Provider returned error", "code": 502}, FailureKind.UNAVAILABLE),
        ({"message": "Slow down", "code": 429}, FailureKind.RATE_LIMIT),
        ({"message": "Rate limit reached for requests", "type": "requests"}, FailureKind.RATE_LIMIT),
        ({"message": "You exceeded your current quota", "code": "insufficient_quota"}, FailureKind.QUOTA),
        ("the request exceeds the available context size", FailureKind.CONTEXT_TOO_LONG),
        ({"message": "bad", "type": "server_error"}, FailureKind.UNAVAILABLE),
    ],
)
def test_an_error_within_an_answer_is_of_its_kind(error: object, kind: FailureKind) -> None:
    with pytest.raises(ProviderFailed) as caught:
        read(DIALECT, PROMPT, TARGET, [piece({"content": "x"}), {"error": error}])

    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("model", "window", "vision"),
    [
        ("gpt-4o-mini", 128_000, True),
        ("openai/gpt-4.1-nano", 1_047_576, True),
        ("gpt-4", 8192, False),
        ("o3", 200_000, True),
        ("o3-mini-2025-01-31", 200_000, False),
        ("gpt-5-chat-latest", 128_000, True),
        ("anthropic/claude-sonnet-4", 200_000, True),
    ],
)
def test_well_known_models_are_known(model: str, window: int, vision: bool) -> None:
    card = DIALECT.model_card(model)

    assert (card.window_tokens, card.vision, card.tools) == (window, vision, "native")


def test_what_is_not_known_is_guessed_with_care() -> None:
    card = DIALECT.model_card("somebodys-own-7b")

    assert card == UNKNOWN
    assert None not in [getattr(card, field) for field in ModelCard.__struct_fields__]


def test_a_target_is_named_in_what_fails() -> None:
    target = ModelTarget(provider="acme", model="m1", card=UNKNOWN, max_output_tokens=10)

    failed = DIALECT.refused(404, {}, b'{"error": {"message": "no such model"}}', target)

    assert (failed.kind, "acme" in failed.detail, "m1" in failed.detail) == (FailureKind.PERMISSION, True, True)
