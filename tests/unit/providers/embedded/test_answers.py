"""The helper says what it is, and only names what exists."""

import re

import pytest

from palyra.providers.embedded.answers import calculate, meet, recall, say
from palyra.providers.embedded.intent_parser import recognise
from palyra.providers.embedded.intents import Calculate, Meet, Recall, Say, Topic, Use, Which
from tests.unit.providers.conversation import ALL_TOOLS, a_prompt, assistant

EXISTING_COMMANDS = {"approvals", "chat", "run", "up", "sessions", "runs", "journal", "doctor"}


@pytest.mark.parametrize("topic", Topic)
def test_every_topic_has_an_answer(topic: Topic) -> None:
    assert say(Say(topic), ALL_TOOLS)


@pytest.mark.parametrize("topic", Topic)
def test_only_commands_that_exist_are_named(topic: Topic) -> None:
    assert set(re.findall(r"\bpalyra ([a-z]+)", say(Say(topic), ALL_TOOLS))) <= EXISTING_COMMANDS


@pytest.mark.parametrize("topic", [Topic.GREETING, Topic.HELP, Topic.IDENTITY, Topic.UNKNOWN])
def test_it_does_not_pass_for_a_model(topic: Topic) -> None:
    answer = say(Say(topic), ALL_TOOLS)
    assert "built-in helper" in answer
    assert "fixed rules" in answer


def test_writing_is_offered_with_words_that_are_understood() -> None:
    answer = say(Say(Topic.WRITE), ALL_TOOLS)
    assert "after you have agreed" in answer
    offered = re.findall(r'"([^"]+)"', answer) + re.findall(r'"(write [^"]+)"', say(Say(Topic.GREETING), ALL_TOOLS))
    assert len(offered) == 4
    for words in offered:
        assert isinstance(use := recognise(words), Use)
        assert use.tool == "files.write"


def test_tools_are_listed_as_they_are_offered() -> None:
    assert "- files.read: " in say(Say(Topic.TOOLS), ALL_TOOLS)
    assert "No tools" in say(Say(Topic.TOOLS), ())


CONVERSATION = a_prompt(
    "my name is Ana", assistant("Hello Ana"), "I fly to Lisbon", assistant("Nice"), "thanks", assistant("Sure"), "?"
).messages


@pytest.mark.parametrize(
    ("intent", "part"),
    [
        (Recall(Which.FIRST), '"my name is Ana"'),
        (Recall(Which.LAST), '"thanks"'),
        (Recall(Which.COUNT), "4 messages"),
        (Recall(Which.ALL), '- "I fly to Lisbon"'),
        (Recall(Which.NAME), "Ana"),
        (Recall(Which.ANSWER), '"Sure"'),
        (Recall(Which.MENTION, "lisbon"), 'Yes, once. You wrote: "I fly to Lisbon"'),
        (Recall(Which.MENTION, "Madrid"), "No, I find nothing"),
    ],
)
def test_the_conversation_is_recalled(intent: Recall, part: str) -> None:
    assert part in recall(intent, CONVERSATION)


@pytest.mark.parametrize("which", Which)
def test_a_conversation_that_begins_has_nothing_to_recall(which: Which) -> None:
    answer = recall(Recall(which, "x"), a_prompt("x").messages)
    assert "first message" in answer or "not said anything" in answer


def test_what_is_quoted_can_not_steer_the_terminal() -> None:
    messages = a_prompt("\x1b]0;owned\x07 hi\n" + "x" * 999, "?").messages
    answer = recall(Recall(Which.FIRST), messages)
    assert "\x1b" not in answer
    assert len(answer) < 400


def test_many_messages_are_recalled_in_part() -> None:
    messages = a_prompt(*(f"message {n}" for n in range(30)), "?").messages
    answer = recall(Recall(Which.ALL), messages)
    assert "The last 10 of your 30 messages" in answer
    assert "message 19" not in answer


def test_a_sum_is_shown_with_its_value() -> None:
    assert calculate(Calculate("2**3")) == "2^3 = 8"
    assert calculate(Calculate("1/0")) == "Nothing can be divided by zero."


def test_a_name_is_greeted() -> None:
    assert meet(Meet("Ana")).startswith("Nice to meet you, Ana.")
