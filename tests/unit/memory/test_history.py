"""The window on a conversation, whatever the conversation looks like and however much of it is known already."""

import random
from dataclasses import replace

import pytest

from palyra.core.ids import CallId, RunId, SessionId
from palyra.core.model.prompt import Message, Role
from palyra.core.policy import labels
from palyra.core.projection.changes import StoredMessage
from palyra.core.tool import ToolCall
from palyra.memory import history
from palyra.memory.history import NOT_RUN, HistoryCache, HistoryWindow, NewMessages
from tests.support.builders import SESSION


class Talk:
    """A conversation to be built message by message."""

    def __init__(self) -> None:
        self.kept: list[StoredMessage] = []
        self._run = 0

    def user(self, text: str = "question", *, tokens: int = 10, steer: bool = False) -> "Talk":
        self._run += not steer
        return self._add(Message(role=Role.USER, text=text), tokens, (labels.OWNER,))

    def model(self, text: str = "answer", *calls: str, tokens: int = 10) -> "Talk":
        made = tuple(ToolCall(call_id=CallId(call), tool="t", arguments={}) for call in calls)
        return self._add(Message(role=Role.ASSISTANT, text=text, calls=made), tokens, (labels.OWNER,))

    def tool(self, call: str, text: str = "result", *, tokens: int = 10) -> "Talk":
        return self._add(Message(role=Role.TOOL, text=text, call_id=CallId(call)), tokens, (labels.TOOL,))

    def past(self, role: Role, text: str, *calls: str, answers: str | None = None, tokens: int = 10) -> "Talk":
        """Add what the caller of the next run brings along."""
        made = tuple(ToolCall(call_id=CallId(call), tool="t", arguments={}) for call in calls)
        call_id = CallId(answers) if answers is not None else None
        message = Message(role=role, text=text, calls=made, call_id=call_id, attached=True)
        return self._add(message, tokens, (labels.TOOL,))

    def begin(self) -> "Talk":
        """Begin a run with whatever comes next."""
        self._run += 1
        return self

    def _add(self, message: Message, tokens: int, marks: tuple[str, ...]) -> "Talk":
        self.kept.append(StoredMessage(len(self.kept) + 1, RunId(f"run {self._run}"), message, tokens, marks, 0))
        return self

    def fresh(self, start: int = 0, *, whole: bool = True) -> NewMessages:
        return NewMessages(0, len(self.kept), self.kept[start:], complete=whole)


def window(talk: Talk, *, tokens: int = 1_000) -> HistoryWindow:
    return HistoryCache().take_in(SESSION, talk.fresh(), maximum=tokens).window(tokens=tokens)


def texts(shown: HistoryWindow) -> list[str]:
    return [message.text for message in shown.messages]


def test_all_of_a_short_conversation_is_shown() -> None:
    talk = Talk().user("one").model("two").user("three")
    shown = window(talk)
    assert texts(shown) == ["one", "two", "three"]
    assert (shown.first_seq, shown.last_seq, shown.count, shown.dropped, shown.tokens) == (1, 3, 3, 0, 30)
    assert shown.labels == (labels.OWNER,)


def test_a_message_that_nobody_vouches_for_is_not_passed_over() -> None:
    talk = Talk().user("one").model("two")
    talk.kept[-1] = replace(talk.kept[-1], labels=())
    assert labels.least_trusted(window(talk).labels) == labels.UNKNOWN


def test_an_empty_conversation_has_an_empty_window() -> None:
    shown = window(Talk())
    assert (shown.messages, shown.first_seq, shown.last_seq, shown.count) == ((), None, None, 0)


def test_whole_runs_are_dropped_from_the_oldest_on() -> None:
    talk = Talk().user("one").model("two").user("three").model("four").user("five")
    assert texts(window(talk, tokens=30)) == ["three", "four", "five"]
    assert texts(window(talk, tokens=29)) == ["five"]
    assert window(talk, tokens=29).dropped == 4


def test_the_last_input_is_shown_however_long_it_is() -> None:
    assert texts(window(Talk().user("one").model("two").user("long", tokens=5_000))) == ["long"]


def test_results_stand_behind_their_calls_in_the_order_of_the_calls() -> None:
    talk = Talk().user().model("look", "a", "b").tool("b", "of b").user("meanwhile", steer=True).tool("a", "of a")
    assert texts(window(talk)) == ["question", "look", "of a", "of b", "meanwhile"]


def test_a_call_without_a_result_gets_a_stand_in() -> None:
    talk = Talk().user().model("look", "a", "b").tool("b", "of b").user("next")
    shown = window(talk)
    assert texts(shown) == ["question", "look", NOT_RUN, "of b", "next"]
    assert [message.call_id for message in shown.messages] == [None, None, "a", "b", None]


def test_a_run_that_is_too_long_by_itself_loses_its_oldest_steps() -> None:
    talk = Talk().user()
    for step in range(5):
        talk.model(f"step {step}", f"c{step}").tool(f"c{step}", f"result {step}", tokens=100)
    talk.user("and this", steer=True)
    shown = window(talk, tokens=250)
    assert texts(shown) == ["question", "step 3", "result 3", "step 4", "result 4", "and this"]
    assert (shown.count, shown.dropped, shown.tokens) == (6, 6, 240)


def test_the_last_step_stays_whole_even_if_it_does_not_fit() -> None:
    talk = Talk().user().model("old", "a").tool("a").model("look", "b", "c").tool("c", tokens=500).tool("b", tokens=500)
    assert texts(window(talk, tokens=100)) == ["question", "look", "result", "result"]


def test_results_that_come_with_the_next_run_stand_behind_their_calls() -> None:
    talk = Talk().user("one").model("look", "a", "b").tool("a", "of a").begin().tool("b", "of b").model("two")
    assert texts(window(talk)) == ["one", "look", "of a", "of b", "two"]
    talk.user("three")
    assert texts(window(talk, tokens=59)) == ["three"], "and both runs are dropped together"
    known = HistoryCache()
    known.take_in(SESSION, NewMessages(0, 3, talk.kept[:3], complete=True), maximum=1_000)
    later = known.take_in(SESSION, NewMessages(0, 6, talk.kept[3:], complete=False), maximum=1_000)
    assert texts(later.window(tokens=1_000)) == ["one", "look", "of a", "of b", "two", "three"]


def test_of_a_long_past_that_comes_along_the_latest_is_shown() -> None:
    talk = Talk().begin()
    for number in range(5):
        talk.past(Role.USER, f"said {number}").past(Role.ASSISTANT, f"answered {number}")
    talk.user("now", steer=True)
    assert texts(window(talk, tokens=50)) == ["said 3", "answered 3", "said 4", "answered 4", "now"]
    assert texts(window(talk, tokens=40)) == ["said 4", "answered 4", "now"], "it begins with what a person said"
    assert texts(window(talk, tokens=5)) == ["now"]


def test_results_that_end_a_past_are_shown_however_long_they_are() -> None:
    talk = Talk().begin().past(Role.USER, "long ago").past(Role.ASSISTANT, "well")
    talk.past(Role.USER, "look").past(Role.ASSISTANT, "let me see", "a").past(
        Role.TOOL, "much", answers="a", tokens=500
    )
    assert texts(window(talk, tokens=100)) == ["look", "let me see", "much"]
    assert texts(window(talk, tokens=541)) == ["long ago", "well", "look", "let me see", "much"]
    _assert_paired(window(talk, tokens=1))


def test_what_is_new_joins_what_is_known() -> None:
    talk = Talk().user("one").model("look", "a")
    known = HistoryCache()
    assert texts(known.take_in(SESSION, talk.fresh(), maximum=1_000).window(tokens=1_000)) == ["one", "look", NOT_RUN]
    assert known.position(SESSION, maximum=100) == (0, 2)
    talk.tool("a", "of a").model("two").user("three")
    assert texts(known.take_in(SESSION, talk.fresh(2, whole=False), maximum=1_000).window(tokens=1_000)) == [
        "one",
        "look",
        "of a",
        "two",
        "three",
    ]
    assert known.position(SESSION, maximum=100) == (0, 5)


def test_what_was_read_whole_replaces_what_is_known() -> None:
    known = HistoryCache()
    known.take_in(SESSION, Talk().user("before").fresh(), maximum=1_000).window(tokens=1_000)
    after = Talk().user("after").fresh()
    assert texts(known.take_in(SESSION, after, maximum=1_000).window(tokens=1_000)) == ["after"]


def test_only_so_many_conversations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_SESSIONS", 2)
    known = HistoryCache()
    first, second, third = SessionId("1"), SessionId("2"), SessionId("3")
    for session_id in (first, second, first, third):
        known.take_in(session_id, Talk().user().fresh(), maximum=100).window(tokens=100)
    assert known.position(second, maximum=100) is None, "the one that was not looked at for longest is forgotten"
    assert known.position(first, maximum=100) is not None
    assert known.position(third, maximum=100) is not None


# -- any conversation


def a_talk(dice: random.Random) -> Talk:
    talk, number = Talk(), 0
    for _ in range(dice.randint(1, 4)):
        talk.user(f"input {len(talk.kept)}", tokens=dice.randint(1, 30))
        for _ in range(dice.randint(0, 4)):
            calls = [f"call {number + place}" for place in range(dice.randint(0, 3))]
            number += len(calls)
            talk.model(f"says {len(talk.kept)}", *calls, tokens=dice.randint(1, 30))
            for call in dice.sample(calls, dice.randint(0, len(calls))):
                if dice.random() < 0.2:
                    talk.user(f"input {len(talk.kept)}", tokens=dice.randint(1, 30), steer=True)
                talk.tool(call, f"result of {call}", tokens=dice.randint(1, 200))
    return talk


def shown_of(talk: Talk, dice: random.Random, *, tokens: int) -> HistoryWindow:
    """Return the last window on a conversation that was read in pieces, with a look at the window after each."""
    known, start = HistoryCache(), 0
    while True:
        end = min(len(talk.kept), start + dice.randint(1, 6))
        shown = known.take_in(
            SESSION, NewMessages(0, end, talk.kept[start:end], complete=start == 0), maximum=tokens
        ).window(tokens=tokens)
        if end == len(talk.kept):
            return shown
        start = end


def test_of_any_conversation_the_window_shows_a_sensible_end() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        talk, tokens = a_talk(dice), dice.choice((20, 100, 300, 2_000))
        shown = shown_of(talk, dice, tokens=tokens)
        run = [item for item in talk.kept if item.run_id == talk.kept[-1].run_id]
        begins = [place for place, item in enumerate(run) if item.message.role is Role.ASSISTANT]
        needed = [
            item for place, item in enumerate(run) if item.message.role is Role.USER or place >= max(begins or [0])
        ]
        assert shown.messages[0].role is Role.USER
        assert all(item.message in shown.messages for item in needed), "what was said in this run, and its last step"
        assert shown.tokens <= max(tokens, sum(item.tokens for item in needed))
        assert shown.count + shown.dropped == len(talk.kept)
        _assert_paired(shown)


def _assert_paired(shown: HistoryWindow) -> None:
    expected: list[str | None] = []
    for message in shown.messages:
        if message.role is Role.TOOL:
            assert message.call_id == expected.pop(0)
        else:
            assert not expected
            expected = [call.call_id for call in message.calls]
    assert not expected


def test_a_model_with_a_small_window_does_not_make_a_wide_one_forget() -> None:
    talk = Talk().user("one", tokens=40).user("two", tokens=40).user("three", tokens=40)
    known = HistoryCache().take_in(SESSION, talk.fresh(), maximum=1_000)
    assert texts(known.window(tokens=50)) == ["three"]
    assert known.window(tokens=50).dropped == 2
    assert texts(known.window(tokens=1_000)) == ["one", "two", "three"]


def test_what_was_forgotten_for_a_window_is_read_again_for_a_wider_one() -> None:
    talk = Talk().user("one", tokens=40).user("two", tokens=40)
    known = HistoryCache()
    known.take_in(SESSION, talk.fresh(), maximum=50)
    assert known.position(SESSION, maximum=50) == (0, 2)
    assert known.position(SESSION, maximum=100) is None
