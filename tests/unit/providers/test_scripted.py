"""The scripted provider does what its file says, and the same again after a restart."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.model.prompt import ModelEvent, Prompt, StopReason, TextDelta
from palyra.core.spending.usage import Usage
from palyra.providers import scripted
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.scripted import (
    Script,
    ScriptCondition,
    ScriptedProvider,
    ScriptInvalid,
    ScriptRule,
    ScriptText,
    parse,
)
from tests.unit.providers.conversation import a_call, a_prompt, assistant, calls_of, end_of, heard, result, text_of

LOOK_THEN_TELL = {
    "rules": [
        {
            "when": {"contains": "files"},
            "turns": [
                [
                    {"do": "text", "text": "Let me look."},
                    {"do": "call", "tool": "files.list", "arguments": {"folder": "docs"}},
                ],
                [{"do": "text", "text": "You have {result}."}],
            ],
        }
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}


def load(script: object, *, source: str = "script.json") -> ScriptedProvider:
    text = script if isinstance(script, str) else json.dumps(script)
    return ScriptedProvider(parse(text.encode(), source=source))


def speaking(*actions: dict[str, object]) -> ScriptedProvider:
    return load({"default": actions})


async def test_the_default_speaks_when_no_rule_fits() -> None:
    events = await heard(load(LOOK_THEN_TELL), a_prompt("Hello {result}"))
    assert text_of(events) == "You said: Hello {result}"
    assert end_of(events).stop is StopReason.END


async def test_a_rule_plays_one_list_of_actions_for_each_turn() -> None:
    provider = load(LOOK_THEN_TELL)
    first = await heard(provider, a_prompt("my files"))
    assert text_of(first) == "Let me look."
    assert [(call.tool, call.arguments) for call in calls_of(first)] == [("files.list", {"folder": "docs"})]
    assert end_of(first).stop is StopReason.CALLS
    call = a_call("files.list")
    second = await heard(provider, a_prompt("my files", assistant(calls=(call,)), result("two")))
    assert text_of(second) == "You have two."


async def test_beyond_its_last_turn_a_rule_does_not_fit() -> None:
    told = a_prompt("my files", assistant("a"), assistant("b"))
    assert text_of(await heard(load(LOOK_THEN_TELL), told)) == "You said: my files"


@pytest.mark.parametrize(
    ("when", "fits", "does_not"),
    [
        ({"equals": "go"}, a_prompt("go"), a_prompt("go on")),
        ({"contains": "go"}, a_prompt("let it go now"), a_prompt("Go")),
        ({"matches": "^g.$"}, a_prompt("go"), a_prompt("gone")),
        ({"turn": 1}, a_prompt("x", assistant("y")), a_prompt("x")),
        ({"turn": 0}, a_prompt("x", assistant("y"), "z"), a_prompt("x", assistant("y"))),
        ({"input": 2}, a_prompt("x", assistant("y"), "z"), a_prompt("x")),
        ({"result": "two"}, a_prompt("x", assistant("y"), result("one two")), a_prompt("x", result("two"), "y")),
        ({"tools": False}, a_prompt("x", tools=()), a_prompt("x")),
        ({"contains": "x", "tools": True}, a_prompt("x"), a_prompt("x", tools=())),
    ],
)
async def test_a_rule_fits_when_all_its_conditions_hold(when: object, fits: Prompt, does_not: Prompt) -> None:
    rule = {"when": when, "actions": [{"do": "text", "text": "yes"}]}
    provider = load({"rules": [rule], "default": [{"do": "text", "text": "no"}]})
    assert text_of(await heard(provider, fits)) == "yes"
    assert text_of(await heard(provider, does_not)) == "no"


async def test_text_comes_in_chunks_of_the_wanted_size() -> None:
    events = await heard(speaking({"do": "text", "text": "abcdefg", "chunk": 3, "delay_ms": 1}), a_prompt("x"))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["abc", "def", "g"]


async def test_a_failure_comes_after_the_text_before_it() -> None:
    provider = speaking(
        {"do": "text", "text": "Well"},
        {"do": "fail", "kind": "rate_limit", "message": "Slow down.", "retry_after_ms": 2500},
    )
    stream = provider.stream(a_prompt("x"))
    assert await anext(stream) == TextDelta("Well")
    with pytest.raises(ProviderFailed, match=r"Slow down\.") as caught:
        await anext(stream)
    assert caught.value.kind is FailureKind.RATE_LIMIT
    assert caught.value.retry_after.total_seconds() == 2.5


async def test_malformed_arguments_are_passed_on_with_the_reason() -> None:
    provider = speaking({"do": "call", "tool": "files.read", "raw": '{"path": '})
    (call,) = calls_of(await heard(provider, a_prompt("x")))
    assert call.arguments == {}
    assert '{"path": ' in call.malformed


async def test_raw_arguments_that_can_be_read_are_read() -> None:
    provider = speaking({"do": "call", "tool": "files.read", "raw": '{"path": "a"}'})
    (call,) = calls_of(await heard(provider, a_prompt("x")))
    assert (call.arguments, call.malformed) == ({"path": "a"}, "")


async def test_the_input_is_filled_into_arguments_too() -> None:
    arguments = {"task": "do: {input}", "deep": [{"a": "{input}"}, 3]}
    provider = speaking({"do": "call", "tool": "agent.delegate", "arguments": arguments})
    (call,) = calls_of(await heard(provider, a_prompt("sing")))
    assert call.arguments == {"task": "do: sing", "deep": [{"a": "sing"}, 3]}


async def test_endless_text_lets_others_work_and_ends_when_closed() -> None:
    provider = speaking({"do": "endless", "text": "on and on "})
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    stream = cast("AsyncGenerator[ModelEvent, None]", provider.stream(a_prompt("x")))
    async with aclosing(stream):
        for _ in range(50):
            assert await anext(stream) == TextDelta("on and on ")
    beside.cancel()
    assert turns >= 50


async def test_a_delay_holds_back_what_follows() -> None:
    stream = speaking({"do": "delay", "ms": 30}, {"do": "text", "text": "late"}).stream(a_prompt("x"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.005)
    assert (
        text_of(await heard(speaking({"do": "delay", "ms": 1}, {"do": "text", "text": "late"}), a_prompt("x")))
        == "late"
    )


async def test_without_a_user_message_the_default_speaks() -> None:
    assert text_of(await heard(load(LOOK_THEN_TELL), a_prompt(assistant("Hello.")))) == "You said: "


async def test_stop_sets_reason_and_usage() -> None:
    stop = {"do": "stop", "reason": "length", "input_tokens": 7, "output_tokens": 9}
    end = end_of(await heard(speaking({"do": "text", "text": "x"}, stop), a_prompt("x")))
    assert end.stop is StopReason.LENGTH
    assert end.usage == Usage(input_tokens=7, output_tokens=9)


async def test_usage_is_estimated_otherwise() -> None:
    end = end_of(await heard(speaking({"do": "text", "text": "x" * 40}), a_prompt("y" * 80)))
    assert end.usage == Usage(input_tokens=20, output_tokens=10)


async def test_call_ids_differ_within_a_turn_and_from_place_to_place() -> None:
    provider = speaking({"do": "call", "tool": "a"}, {"do": "call", "tool": "a"})
    here = [call.call_id for call in calls_of(await heard(provider, a_prompt("x")))]
    there = [call.call_id for call in calls_of(await heard(provider, a_prompt("x", assistant("y"), "x")))]
    assert len({*here, *there}) == 4


async def test_an_explicit_call_id_is_kept() -> None:
    (call,) = calls_of(await heard(speaking({"do": "call", "tool": "a", "call_id": "mine"}), a_prompt("x")))
    assert call.call_id == "mine"


async def test_a_restart_changes_nothing() -> None:
    prompt = a_prompt("my files")
    before = await heard(load(LOOK_THEN_TELL), prompt)
    await heard(load(LOOK_THEN_TELL), a_prompt("something else"))
    assert await heard(load(LOOK_THEN_TELL), prompt) == before


@given(
    words=st.lists(st.text(max_size=8), min_size=1, max_size=6),
    rules=st.lists(
        st.builds(
            lambda part, turn, said: ScriptRule(
                when=ScriptCondition(contains=part, turn=turn), actions=(ScriptText(text=said, chunk=2),)
            ),
            st.text(max_size=2),
            st.none() | st.integers(0, 2),
            st.text(max_size=20),
        ),
        max_size=4,
    ),
)
def test_the_same_conversation_always_gives_the_same_turn(words: list[str], rules: list[ScriptRule]) -> None:
    script = Script(rules=tuple(rules))
    prompt = a_prompt(*(word if number % 2 == 0 else assistant(word) for number, word in enumerate(words)))
    once = asyncio.run(heard(ScriptedProvider(script), prompt))
    assert asyncio.run(heard(ScriptedProvider(script), prompt)) == once


async def test_a_script_may_be_toml() -> None:
    script = """
model = "toy"
window_tokens = 500
[[rules]]
when = { equals = "hi" }
actions = [{ do = "text", text = "ho" }]
"""
    provider = load(script, source="script.toml")
    assert (provider.name, provider.model, provider.capabilities.window_tokens) == ("scripted", "toy", 500)
    assert text_of(await heard(provider, a_prompt("hi"))) == "ho"


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ('{"rules": [}', r"byte \d+"),
        ({"rulez": []}, "rulez"),
        ({"default": [{"do": "txt", "text": "x"}]}, r"\$\.default\[0\]"),
        ({"default": [{"do": "text"}]}, r"text.*\$\.default\[0\]"),
        ({"default": [{"do": "text", "text": "x", "speed": 1}]}, r"speed.*\$\.default\[0\]"),
        ({"default": [{"do": "fail", "kind": "boredom"}]}, r"boredom.*\$\.default\[0\]\.kind"),
        ({"default": [{"do": "stop"}, {"do": "text", "text": "x"}]}, r"nothing can come after.*\$\.default\[0\]"),
        ({"rules": [{"when": {}}]}, r"`actions` or `turns`.*\$\.rules\[0\]"),
        ({"rules": [{"actions": [], "turns": []}]}, r"`actions` or `turns`.*\$\.rules\[0\]"),
        ({"rules": [{"when": {"matches": "("}, "actions": []}]}, r"\$\.rules\[0\]\.when\.matches"),
        ({"rules": [{"turns": [[], [{"do": "text", "text": 1}]]}]}, r"\$\.rules\[0\]\.turns\[1\]\[0\]"),
        ({"default": [{"do": "call", "tool": "a", "arguments": {"x": 1}, "raw": "{}"}]}, r"`arguments` or `raw`"),
        ({"default": [{"do": "call", "tool": "a", "call_id": "i"}] * 2}, r"'i' was already used.*\$\.default\[1\]"),
        ({"window_tokens": 0}, r"\$\.window_tokens"),
    ],
)
def test_a_bad_script_is_refused_with_file_and_place(script: object, place: str) -> None:
    with pytest.raises(ScriptInvalid, match=place) as caught:
        load(script)
    assert "script.json" in caught.value.detail


def test_a_bad_toml_script_names_the_line() -> None:
    with pytest.raises(ScriptInvalid, match=r"script\.toml.*line 2"):
        load('model = "x"\nrules = ]', source="script.toml")


def test_a_script_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"model": "toy"}')
    assert ScriptedProvider.load(tmp_path / "s.json").model == "toy"


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScriptInvalid, match=r"gone\.json.*No such file"):
        ScriptedProvider.load(tmp_path / "gone.json")


def test_the_example_in_the_documentation_works() -> None:
    text = scripted.__doc__ or ""
    example = text[text.index("    {\n") : text.index("\nBeside")]
    load(example)
