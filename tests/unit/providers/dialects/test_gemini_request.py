"""What Gemini is asked: roles, results, signatures, and what it takes together."""

import json
from typing import Any

import msgspec
import pytest

from palyra.core.model.prompt import GenerationOptions, Image, Message, Prompt, Reasoning, Role, ToolChoice
from palyra.core.tool import JsonObject, ToolSpec
from palyra.providers.dialects.gemini import DIALECT
from palyra.providers.dialects.gemini_request import UNSIGNED
from tests.unit.providers.conversation import a_call, a_prompt, assistant, result, user
from tests.unit.providers.reading import sent, target_of

NEW, OLD, OLDEST = "gemini-3.6-flash", "gemini-2.5-pro", "gemini-2.0-flash"
PNG = Image(digest="d1", media_type="image/png", size=3)
SCHEMA: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


def asked(prompt: Prompt, model: str = NEW) -> Any:
    return sent(DIALECT, prompt, target_of(DIALECT, model))


def with_options(prompt: Prompt, **options: Any) -> Prompt:
    return msgspec.structs.replace(prompt, options=GenerationOptions(**options))


def signed(model: str = NEW, **where: Any) -> Reasoning:
    return Reasoning(text="Hm.", dialect="gemini", data={"model": model, "signature": "sig", **where})


def thinking(message: Message, *reasoning: Reasoning) -> Message:
    return msgspec.structs.replace(message, reasoning=reasoning)


def test_a_conversation_is_told_by_who_says_what() -> None:
    prompt = msgspec.structs.replace(a_prompt("one", assistant("1"), "two"), system="Be good.")
    body = asked(prompt)
    assert body["systemInstruction"] == {"parts": [{"text": "Be good."}]}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "one"}]},
        {"role": "model", "parts": [{"text": "1"}]},
        {"role": "user", "parts": [{"text": "two"}]},
    ]


def test_results_are_one_content_in_the_order_of_the_calls() -> None:
    calls = (a_call("files.read", {"path": "a"}, call_id="c1"), a_call("files.list", call_id="c2"))
    prompt = a_prompt("go", assistant(calls=calls), result("B", call_id="c2"), result("A", call_id="c1"), user("and?"))
    _, called, results, last = asked(prompt, OLD)["contents"]
    assert called["parts"] == [
        {"functionCall": {"name": "files_read", "args": {"path": "a"}}},
        {"functionCall": {"name": "files_list", "args": {}}},
    ]
    assert results == {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "files_read", "response": {"output": "A"}}},
            {"functionResponse": {"name": "files_list", "response": {"output": "B"}}},
        ],
    }
    assert last == {"role": "user", "parts": [{"text": "and?"}]}


def test_a_result_that_nobody_called_for_is_a_text() -> None:
    assert asked(a_prompt("go", result("stray")))["contents"][1]["parts"] == [{"text": "stray"}]


def test_pictures_are_sent_with_what_they_belong_to() -> None:
    shot = Message(role=Role.TOOL, text="shot", call_id=a_call("x").call_id, images=(PNG,))
    asks = Message(role=Role.USER, text="What?", images=(PNG,))
    prompt = msgspec.structs.replace(a_prompt(asks, assistant(calls=(a_call("a.b"),)), shot), images={"d1": b"png"})
    picture = {"inlineData": {"mimeType": "image/png", "data": "cG5n"}}
    new, old = asked(prompt, NEW)["contents"], asked(prompt, OLD)["contents"]
    assert new[0]["parts"] == [picture, {"text": "What?"}]
    assert new[2]["parts"][0]["functionResponse"]["parts"] == [picture]
    assert old[2]["parts"][1:] == [picture]
    unseen = asked(msgspec.structs.replace(prompt, images={}))["contents"]
    assert "cannot be shown" in unseen[0]["parts"][0]["text"]


def test_a_signature_goes_back_on_the_call_that_it_came_on() -> None:
    calls = (a_call("a.b", call_id="c1"), a_call("a.b", call_id="c2"))
    message = thinking(assistant("So.", calls=calls), signed(call=0))
    parts = asked(a_prompt("go", message, result("r"), result("s", call_id="c2")))["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, "sig", None]
    assert "functionCall" in parts[1]


def test_a_signature_goes_back_on_its_text_and_on_its_thought() -> None:
    message = thinking(assistant("So be it."), signed(thought=True), signed(text=3))
    parts = asked(a_prompt("go", message, "on"))["contents"][1]["parts"]
    assert parts == [
        {"text": "Hm.", "thought": True, "thoughtSignature": "sig"},
        {"text": "So ", "thoughtSignature": "sig"},
        {"text": "be it."},
    ]


@pytest.mark.parametrize(
    "foreign",
    [signed(OLD, call=0), Reasoning(text="x", dialect="anthropic", data={"signature": "s"}), signed(call="x")],
)
def test_a_call_that_this_model_has_not_signed_says_so(foreign: Reasoning) -> None:
    calls = (a_call("a.b", call_id="c1"), a_call("a.b", call_id="c2"))
    prompt = a_prompt("go", thinking(assistant(calls=calls), foreign), result("r"), result("s", call_id="c2"))
    assert [part.get("thoughtSignature") for part in asked(prompt)["contents"][1]["parts"]] == [UNSIGNED, None]
    # Before 3 nothing must be signed.
    assert "thoughtSignature" not in asked(prompt, OLDEST)["contents"][1]["parts"][0]


def test_tools_are_declared_with_schemas_that_it_takes() -> None:
    plain = ToolSpec(name="now", description="The time.", parameters={"type": "object", "properties": {}})
    rich = ToolSpec(
        name="a.b",
        description="d",
        parameters={"$ref": "#/$defs/in", "$defs": {"in": {"type": "object", "properties": {"q": {"type": "string"}}}}},
    )
    (tools,) = asked(a_prompt("go", tools=(plain, rich)))["tools"]
    first, second = tools["functionDeclarations"]
    assert first == {"name": "now", "description": "The time."}
    assert second["parametersJsonSchema"] == {"type": "object", "properties": {"q": {"type": "string"}}}


def test_the_choice_of_tools_is_passed_on() -> None:
    assert "toolConfig" not in asked(a_prompt("go"))
    for choice, mode in ((ToolChoice.NONE, "NONE"), (ToolChoice.REQUIRED, "ANY")):
        body = asked(with_options(a_prompt("go"), choice=choice))
        assert body["toolConfig"] == {"functionCallingConfig": {"mode": mode}}


def test_options_go_where_they_belong() -> None:
    prompt = with_options(a_prompt("go"), max_output_tokens=50, temperature=0.5, top_p=0.9, stop=("END",))
    assert asked(prompt, OLDEST)["generationConfig"] == {
        "maxOutputTokens": 50,
        "temperature": 0.5,
        "topP": 0.9,
        "stopSequences": ["END"],
    }
    assert asked(prompt, OLD)["generationConfig"]["thinkingConfig"] == {"includeThoughts": True}


def test_a_schema_for_the_answer_is_sent_or_told_as_the_model_takes_it() -> None:
    prompt = msgspec.structs.replace(with_options(a_prompt("go"), schema=SCHEMA), system="Be good.")
    reduced = {"type": "object", "properties": {"n": {"type": "integer"}}}
    new = asked(prompt)
    assert new["generationConfig"]["responseMimeType"] == "application/json"
    assert new["generationConfig"]["responseJsonSchema"] == reduced
    old = asked(prompt, OLD)
    assert "responseMimeType" not in old["generationConfig"]
    (told,) = old["systemInstruction"]["parts"]
    assert told["text"].startswith("Be good.\n\n")
    assert json.dumps(reduced, separators=(",", ":")) in told["text"]
    free = asked(with_options(a_prompt("go", tools=()), schema=SCHEMA), OLD)
    assert free["generationConfig"]["responseJsonSchema"] == reduced
    none = asked(with_options(a_prompt("go"), schema=SCHEMA, choice=ToolChoice.NONE), OLD)
    assert "tools" not in none
    assert none["generationConfig"]["responseJsonSchema"] == reduced


def test_gemma_is_instructed_by_who_asks() -> None:
    body = asked(msgspec.structs.replace(a_prompt("hi", tools=()), system="Be good."), "gemma-3-27b-it")
    assert "systemInstruction" not in body
    assert body["contents"][0] == {"role": "user", "parts": [{"text": "Be good."}]}


def test_nothing_is_sent_that_is_empty() -> None:
    parts = [part for content in asked(a_prompt("", assistant(" "), "x"))["contents"] for part in content["parts"]]
    assert parts == [{"text": "(an empty message)"}, {"text": "x"}]


def test_a_call_follows_what_a_person_said() -> None:
    called = assistant("Let me see.", calls=(a_call("time.now"),))
    first = asked(a_prompt(called, result("12:00")))["contents"]
    assert [content["role"] for content in first] == ["user", "model", "user"]

    twice = asked(a_prompt("Hello.", assistant("Hi."), called, result("12:00")))["contents"]
    assert [content["role"] for content in twice] == ["user", "model", "user"]
    assert [next(iter(part)) for part in twice[1]["parts"]] == ["text", "text", "functionCall"]
