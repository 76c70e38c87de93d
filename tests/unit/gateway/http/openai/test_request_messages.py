"""Conversations as callers bring them."""

import pytest

from palyra.core.model.prompt import Role
from palyra.gateway.http.openai.errors import ParameterUnsupported
from palyra.gateway.http.openai.request_messages import MessageBuilder, RunInput


def a_talk() -> MessageBuilder:
    talk = MessageBuilder()
    talk.add_user("How is it?")
    talk.answer("Wait.", (talk.call("c", "weather", '{"city": "Bern"}', param="m"),))
    talk.result("c", "rain", param="m")
    return talk


def roles(asked: RunInput) -> list[tuple[Role, str]]:
    return [(message.role, message.text) for message in asked.history]


def test_the_last_message_is_asked_and_the_others_come_along() -> None:
    talk = a_talk()
    talk.answer("It rains.")
    talk.add_user("And tomorrow?")
    asked = talk.build(param="m")
    assert asked.text == "And tomorrow?"
    assert roles(asked)[-1] == (Role.ASSISTANT, "It rains.")
    assert len(asked.history) == 4


def test_where_results_come_last_there_is_nothing_else_to_say() -> None:
    asked = a_talk().build(param="m")
    assert (asked.text, len(asked.history)) == ("", 3)


def test_of_a_conversation_that_is_kept_here_only_what_is_new_counts() -> None:
    talk = a_talk()
    assert roles(talk.end(param="m")) == [(Role.TOOL, "rain")]
    talk.add_user("Well?")
    asked = talk.end(param="m")
    assert (asked.text, roles(asked)) == ("Well?", [(Role.TOOL, "rain")])
    talk.answer("It rains.")
    talk.add_user("One.")
    talk.add_user("Two.")
    asked = talk.end(param="m")
    assert (asked.text, asked.history) == ("Two.", ())


def test_a_result_answers_the_latest_call_of_its_id() -> None:
    talk = a_talk()
    talk.answer("", (talk.call("c", "weather", "{}", param="m"),))
    talk.result("c", "sun", param="m")
    first, second = (message for message in talk.messages if message.role is Role.ASSISTANT)
    results = [message.call_id for message in talk.messages if message.role is Role.TOOL]
    assert results == [first.calls[0].call_id, second.calls[0].call_id]
    assert len(set(results)) == 2


def test_arguments_that_are_no_json_are_kept_as_what_they_are() -> None:
    call = MessageBuilder().call("c", "weather", "{half", param="m")
    assert call.arguments == {}
    assert call.malformed


def test_calls_that_come_by_themselves_belong_to_what_was_said_last() -> None:
    talk = MessageBuilder()
    talk.add_user("How is it?")
    for number in range(2):
        talk.add_call(talk.call(f"c{number}", "weather", "{}", param="m"))
    (_, answered) = talk.messages
    assert [call.call_id for call in answered.calls] == ["c0", "c1"]


@pytest.mark.parametrize("call_id", ["strange", "", "c"])
def test_a_result_of_no_call_is_refused(call_id: str) -> None:
    talk = a_talk()
    with pytest.raises(ParameterUnsupported):
        talk.result(call_id, "rain", param="m")


def test_a_call_from_before_need_not_be_known_where_the_conversation_is_kept_here() -> None:
    talk = MessageBuilder()
    talk.result("c", "rain", param="m", is_known=False)
    assert talk.end(param="m").history[0].call_id == "c"
    with pytest.raises(ParameterUnsupported):
        talk.result("x" * 201, "rain", param="m", is_known=False)


def test_what_can_not_be_answered_is_refused() -> None:
    for talk in (MessageBuilder(), a_talk()):
        talk.answer("I have the last word.")
        for take in (talk.build, talk.end):
            with pytest.raises(ParameterUnsupported):
                take(param="m")
    empty = MessageBuilder()
    with pytest.raises(ParameterUnsupported):
        empty.build(param="m")
    empty.add_user("  ")
    with pytest.raises(ParameterUnsupported):
        empty.build(param="m")


def test_instructions_are_put_together_and_bounded() -> None:
    talk = MessageBuilder(system=["Be brief.", " ", "Be kind."])
    assert talk.instructions() == "Be brief.\n\nBe kind."
    talk.system.append("x" * 300_000)
    with pytest.raises(ParameterUnsupported):
        talk.instructions()
