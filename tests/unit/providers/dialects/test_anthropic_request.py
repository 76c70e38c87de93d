"""What Claude is asked: the rules of its messages, what it thought before, and what is worth caching."""

import re
from typing import Any

import msgspec
import pytest

from palyra.core.model.prompt import GenerationOptions, Image, Message, Prompt, Reasoning, Role, ToolChoice
from palyra.core.tool import JsonObject, ToolSpec
from palyra.providers.dialects.anthropic import DIALECT
from tests.unit.providers.conversation import a_call, a_prompt, assistant, result, user
from tests.unit.providers.reading import sent, target_of

NEW, OLD, OLDEST = "claude-sonnet-4-6", "claude-sonnet-4-5-20250929", "claude-3-5-sonnet-20241022"
LATEST = "claude-opus-5-5"
CACHED = {"type": "ephemeral"}
SCHEMA: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}}
PNG = Image(digest="d1", media_type="image/png", size=3)


def asked(prompt: Prompt, model: str = NEW, *, reasoning: bool | None = None, max_output_tokens: int = 8192) -> Any:
    target = target_of(DIALECT, model, reasoning=reasoning, max_output_tokens=max_output_tokens)
    return sent(DIALECT, prompt, target)


def with_options(prompt: Prompt, **options: Any) -> Prompt:
    return msgspec.structs.replace(prompt, options=GenerationOptions(**options))


def thought(
    model: str = NEW, *, text: str = "Hm.", signature: str = "sig", after: tuple[int, int] = (0, 0)
) -> Reasoning:
    place = {"after": list(after)} if after != (0, 0) else {}
    return Reasoning(text=text, dialect="anthropic", data={"model": model, "signature": signature, **place})


def kinds(message: JsonObject) -> list[str]:
    return [block["type"] for block in message["content"]]


def marks(body: Any) -> int:
    blocks = [*body.get("system", []), *body.get("tools", [])]
    blocks += [block for message in body["messages"] for block in message["content"]]
    return sum("cache_control" in block for block in blocks)


def test_all_results_of_a_step_are_one_message_before_what_the_person_says() -> None:
    calls = (a_call("files.read", {"path": "a"}, call_id="c1"), a_call("files.list", call_id="c2"))
    body = asked(a_prompt("go", assistant("Look.", calls=calls), user("wait"), result("A"), result("B", call_id="c2")))
    first, second, third = body["messages"]
    assert (first["role"], second["role"], third["role"]) == ("user", "assistant", "user")
    assert kinds(second) == ["text", "tool_use", "tool_use"]
    assert second["content"][1] == {"type": "tool_use", "id": "c1", "name": "files_read", "input": {"path": "a"}}
    assert kinds(third) == ["tool_result", "tool_result", "text"]
    assert third["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "A"}],
    }


def test_two_messages_of_one_side_are_joined_and_empty_ones_left_out() -> None:
    body = asked(a_prompt("one", "two", assistant(""), assistant("  "), "three", result(" ", call_id="c9"), ""))
    (message,) = body["messages"]
    texts = [block["text"] for block in message["content"] if block["type"] == "text"]
    assert texts == ["one", "two", "three", "(an empty message)"]
    assert "content" not in message["content"][0]


def test_pictures_stand_before_the_text() -> None:
    message = Message(role=Role.USER, text="What is this?", images=(PNG,))
    shot = Message(role=Role.TOOL, text="a shot", call_id=a_call("x").call_id, images=(PNG,))
    prompt = a_prompt(message, assistant(calls=(a_call("files.read"),)), shot)
    body = asked(msgspec.structs.replace(prompt, images={"d1": b"png"}))
    image, text = body["messages"][0]["content"]
    assert image["source"] == {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    assert text["text"] == "What is this?"
    assert kinds(body["messages"][2]["content"][0]) == ["image", "text"]


@pytest.mark.parametrize(
    ("image", "images", "model"),
    [
        (PNG, {}, NEW),
        (Image(digest="d1", media_type="image/tiff", size=3), {"d1": b"tif"}, NEW),
        (PNG, {"d1": b"png"}, "blind-model"),
    ],
)
def test_a_picture_that_can_not_be_shown_is_spoken_of(image: Image, images: dict[str, bytes], model: str) -> None:
    prompt = a_prompt(Message(role=Role.USER, text="", images=(image,)))
    (block,) = asked(msgspec.structs.replace(prompt, images=images), model)["messages"][0]["content"]
    assert "cannot be shown" in block["text"]


def test_the_stable_beginning_and_the_last_two_inputs_are_marked_for_the_cache() -> None:
    prompt = msgspec.structs.replace(a_prompt("one", assistant("1"), "two", assistant("2"), "three"), system="Be good.")
    body = asked(prompt)
    assert body["system"] == [{"type": "text", "text": "Be good.", "cache_control": CACHED}]
    assert [message["content"][-1].get("cache_control") for message in body["messages"]] == [
        None,
        None,
        CACHED,
        None,
        CACHED,
    ]
    assert marks(body) == 3


def test_without_a_system_prompt_the_tools_are_marked() -> None:
    body = asked(a_prompt("hi"))
    assert body["tools"][-1]["cache_control"] == CACHED
    assert marks(body) == 2


def test_the_beginning_of_a_prompt_stays_the_same_when_the_conversation_goes_on() -> None:
    before, after = asked(a_prompt("one")), asked(a_prompt("one", assistant("1"), "two"))
    assert before["tools"] == after["tools"]
    assert before["messages"][0] == after["messages"][0]


def test_tool_names_and_ids_are_made_to_fit() -> None:
    tool = ToolSpec(name="docs: find it", description="d", parameters={"anyOf": [], "properties": {"q": {}}})
    call = a_call("docs: find it", call_id="functions.Bash:0")
    body = asked(a_prompt("go", assistant(calls=(call,)), result("r", call_id="functions.Bash:0"), tools=(tool,)))
    (declared,) = body["tools"]
    use, answer = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
    assert declared["input_schema"] == {"type": "object", "properties": {"q": {}}}
    assert use["name"] == declared["name"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", use["name"])
    assert use["id"] == answer["tool_use_id"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", use["id"])


def test_what_was_called_is_declared_when_no_tool_is_offered_any_more() -> None:
    body = asked(a_prompt("go", assistant(calls=(a_call("files.read"),)), result("r"), tools=()))
    assert [tool["name"] for tool in body["tools"]] == ["files_read"]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in asked(a_prompt("go", tools=()))


@pytest.mark.parametrize(
    ("choice", "sent_choice"), [(ToolChoice.AUTO, "auto"), (ToolChoice.NONE, "none"), (ToolChoice.REQUIRED, "any")]
)
def test_the_choice_of_tools_is_passed_on(choice: ToolChoice, sent_choice: str) -> None:
    body = asked(with_options(a_prompt("go"), choice=choice))
    assert body["tool_choice"]["type"] == sent_choice
    # Who must call a tool may not think.
    assert ("thinking" in body) == (choice is not ToolChoice.REQUIRED)


def test_newer_models_think_as_they_see_fit_and_older_ones_within_a_budget() -> None:
    prompt = a_prompt("go")
    assert asked(prompt, NEW)["thinking"] == {"type": "adaptive"}
    assert asked(prompt, LATEST)["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert asked(prompt, OLD, reasoning=True)["thinking"] == {"type": "enabled", "budget_tokens": 4096}
    assert "thinking" not in asked(prompt, OLD, reasoning=True, max_output_tokens=1500)
    assert "thinking" not in asked(prompt, OLD)
    assert "thinking" not in asked(prompt, NEW, reasoning=False)


def test_who_only_speaks_like_claude_is_asked_as_the_oldest_were() -> None:
    prompt = with_options(a_prompt("go"), temperature=0.3)
    assert asked(prompt, "kimi-k2")["temperature"] == 0.3
    assert asked(prompt, "kimi-k2", reasoning=True)["thinking"] == {"type": "enabled", "budget_tokens": 4096}
    assert "output_config" not in asked(with_options(a_prompt("go"), schema=SCHEMA), "glm-4.6")


def test_a_conversation_begins_with_the_person() -> None:
    assert [message["role"] for message in asked(a_prompt(assistant("Hi!"), "hello"))["messages"]] == [
        "user",
        "assistant",
        "user",
    ]


def test_thoughts_go_back_where_they_were() -> None:
    first, second = thought(), thought(text="And now?", signature="two", after=(5, 1))
    calls = (a_call("files.list", call_id="c1"), a_call("files.list", call_id="c2"))
    message = msgspec.structs.replace(assistant("Well. Done.", calls=calls), reasoning=(first, second))
    blocks = asked(a_prompt("go", message, result("r"), result("s", call_id="c2")))["messages"][1]["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "thinking", "text", "tool_use"]
    assert blocks[0] == {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
    assert blocks[3]["signature"] == "two"
    assert (blocks[1]["text"], blocks[4]["text"]) == ("Well.", " Done.")


def test_a_thought_that_was_hidden_goes_back_as_it_came() -> None:
    hidden = Reasoning(dialect="anthropic", data={"model": NEW, "redacted": "EmwK"})
    message = msgspec.structs.replace(assistant("x"), reasoning=(hidden,))
    blocks = asked(a_prompt("go", message, "on"))["messages"][1]["content"]
    assert blocks[0] == {"type": "redacted_thinking", "data": "EmwK"}


@pytest.mark.parametrize(
    "foreign",
    [
        thought(OLD),
        Reasoning(text="Hm.", dialect="gemini", data={"model": NEW, "signature": "s"}),
        Reasoning(text="Hm."),
        Reasoning(text="Hm.", dialect="anthropic", data={"model": NEW}),
        Reasoning(text="Hm.", dialect="anthropic", data={"model": NEW, "signature": 7, "after": "x"}),
    ],
)
def test_nobody_is_shown_what_another_thought(foreign: Reasoning) -> None:
    message = msgspec.structs.replace(assistant("x"), reasoning=(foreign,))
    assert kinds(asked(a_prompt("go", message, "on"))["messages"][1]) == ["text"]


def test_with_a_budget_a_step_of_another_model_keeps_this_one_from_thinking() -> None:
    step = assistant(calls=(a_call("files.list"),))
    own = msgspec.structs.replace(step, reasoning=(thought(OLD),))
    assert "thinking" not in asked(a_prompt("go", step, result("r")), OLD, reasoning=True)
    assert "thinking" in asked(a_prompt("go", own, result("r")), OLD, reasoning=True)
    assert "thinking" in asked(a_prompt("go", step, result("r"), assistant("ok"), "next"), OLD, reasoning=True)


def test_what_later_models_refuse_is_not_sent_to_them() -> None:
    prompt = with_options(a_prompt("go"), temperature=1.7, top_p=0.5, stop=("END", " "))
    older = asked(prompt, OLD)
    assert (older["temperature"], older["stop_sequences"]) == (1.0, ["END"])
    assert "top_p" not in older
    assert not {"temperature", "top_p"} & asked(prompt, LATEST, reasoning=False).keys()
    assert not {"temperature", "top_p"} & asked(prompt, NEW).keys()
    assert asked(prompt, NEW, reasoning=False)["temperature"] == 1.0
    assert asked(with_options(a_prompt("go"), top_p=0.5), OLD)["top_p"] == 0.5


def test_the_answer_is_as_long_as_both_sides_allow() -> None:
    assert asked(with_options(a_prompt("go"), max_output_tokens=100))["max_tokens"] == 100
    assert asked(with_options(a_prompt("go"), max_output_tokens=100_000))["max_tokens"] == 8192


def test_an_answer_that_keeps_to_a_schema_is_asked_for_as_the_model_takes_it() -> None:
    prompt = with_options(a_prompt("go"), schema=SCHEMA)
    closed = SCHEMA | {"additionalProperties": False}
    assert asked(prompt, OLD)["output_config"] == {"format": {"type": "json_schema", "schema": closed}}
    oldest = asked(prompt, OLDEST)
    assert "output_config" not in oldest
    assert oldest["tools"][-1]["input_schema"] == SCHEMA
    assert oldest["tool_choice"] == {"type": "any"}
    alone = asked(with_options(a_prompt("go", tools=()), schema=SCHEMA), OLDEST)
    assert alone["tool_choice"] == {"type": "tool", "name": alone["tools"][0]["name"]}


def test_an_answer_that_may_be_any_object_comes_by_a_tool() -> None:
    body = asked(with_options(a_prompt("go", tools=()), schema={"type": "object"}), LATEST)
    assert "output_config" not in body
    assert "thinking" not in body
    assert body["tool_choice"] == {"type": "tool", "name": body["tools"][0]["name"]}


def test_the_tool_for_the_answer_has_a_name_of_its_own() -> None:
    taken = ToolSpec(name="answer_in_json", description="d", parameters={})
    body = asked(with_options(a_prompt("go", tools=(taken,)), schema=SCHEMA), OLDEST)
    assert len({tool["name"] for tool in body["tools"]}) == 2
