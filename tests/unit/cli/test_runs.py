"""`palyra runs` and `palyra run` against a door."""

import json

import pytest

from palyra.core.events import TapeEvent
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from tests.support import builders as b
from tests.support.builders import RUN
from tests.unit.cli.door import Answer, Cli, Door, Stream
from tests.unit.cli.wire import a_run, accepted, entry, tape_entry, the_run

pytestmark = pytest.mark.usefixtures("inhabited")

STORY: list[TapeEvent] = [b.an_accepted(), b.a_start(), *b.a_turn(1, text="Well."), b.a_completion()]


def entries(*events: TapeEvent) -> list[pb.TapeEntry]:
    return [tape_entry(seq, event) for seq, event in enumerate(events, 1)]


@pytest.fixture
def accepting(door: Door) -> Door:
    door.tells("RouteMessage", accepted())
    return door


@pytest.mark.parametrize("args", [("runs",), ("runs", "list")])
def test_the_list_is_a_table(cli: Cli, door: Door, args: tuple[str, ...]) -> None:
    door.says("GET", "/runs", {"runs": [a_run()], "next_cursor": None})
    row = cli(*args).out.splitlines()[1]
    assert row.split()[:2] == [RUN, "done"]
    assert row.endswith("2.5 s  Hello.")


def test_a_run_is_shown(cli: Cli, door: Door) -> None:
    door.says("GET", "/runs", {"runs": [a_run(status="failed", reason="no model")]})
    used = {"turns": 2, "micros": 12_300, "unpriced": 1}
    door.says("GET", "/usage/why", {"currency": "USD", "causes": [], "total": used})
    shown = cli("runs", "show").out
    assert "failed" in shown
    assert "no model" in shown
    assert "3 in, 4 out" in shown
    assert "0.0123 USD; 1 turn without a price" in shown


def test_a_tape_is_printed(cli: Cli, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": a_run()})
    page = f'{{"entries":[{entry(8, b.a_text(text="Hi"))}],"next_after_seq":null}}'
    door.says("GET", f"/runs/{RUN}/tape", Answer(page.encode()))
    assert cli("runs", "tape", RUN, "--after-seq", "7").out.split()[-2:] == ["model_text", "'Hi'"]
    assert door.asked("GET", f"/runs/{RUN}/tape")[0].query["after_seq"] == "7"


def test_a_tape_as_json_is_one_line_for_each_entry(cli: Cli, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": a_run()})
    stored = entry(8, b.a_text(text="Hi"))
    door.says("GET", f"/runs/{RUN}/tape", Answer(f'{{"entries":[{stored},{stored}]}}'.encode()))
    assert cli("runs", "tape", RUN, "--json").out == f"{stored}\n{stored}\n"


def test_json_can_not_command_the_terminal(cli: Cli, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": a_run()})
    stored = entry(8, b.a_text(text="\x9b31m"))
    door.says("GET", f"/runs/{RUN}/tape", Answer(f'{{"entries":[{stored}]}}'.encode()))
    shown = cli("runs", "tape", RUN, "--json").out
    assert "\x9b" not in shown
    assert json.loads(shown) == json.loads(stored)


def test_attaching_shows_message_and_answer(cli: Cli, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": a_run()})
    door.streams("AttachRun", entries(*STORY))
    result = cli("runs", "attach", RUN)
    assert (result.code, result.out, result.err) == (0, "Well.\n", "> Hello.\n")


def test_attaching_behind_the_end_of_a_run_tells_how_it_ended(cli: Cli, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": a_run(status="cancelled")})
    door.tells("AttachRun", Stream([]))
    assert cli("runs", "attach", RUN, "--after-seq", "6").code == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "cancelled"}, "cancelled."),
        ({"status": "in_progress", "ended_at": None}, "cancelling."),
        ({"status": "done"}, "already ended (done)."),
    ],
)
def test_a_run_is_cancelled(cli: Cli, door: Door, *, changes: dict[str, object], said: str) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": a_run()})
    door.tells("AbortRun", pb.AbortRunResponse(run=the_run(**changes)))
    assert cli("runs", "cancel", RUN, "--reason", "enough").out == f"{RUN}: {said}\n"
    assert door.seen[-1].body == pb.AbortRunRequest(run_id=RUN, reason="enough")


def test_one_message_gets_its_answer(cli: Cli, accepting: Door) -> None:
    accepting.streams("AttachRun", entries(*STORY))
    result = cli("run", "-m", "Hello.", "--key", "work", "--mode", "interrupt", "--idempotency-key", "k1")
    assert (result.code, result.out) == (0, "Well.\n")
    sent = accepting.called("RouteMessage")[0].message
    assert (sent.text, sent.mode, sent.idempotency_key) == ("Hello.", pb.MODE_INTERRUPT, "k1")
    assert sent.session.key == "work"


@pytest.mark.parametrize(("end", "code"), [(b.a_failure(), 1), (b.a_cancellation(), 4), (b.a_completion(), 0)])
def test_the_exit_code_says_how_the_run_ended(cli: Cli, accepting: Door, *, end: TapeEvent, code: int) -> None:
    accepting.streams("AttachRun", entries(b.an_accepted(), b.a_start(), end))
    assert cli("run", "-m", "Hello.").code == code


def test_json_is_every_entry_as_it_is_recorded(cli: Cli, accepting: Door) -> None:
    accepting.streams("AttachRun", entries(*STORY))
    shown = [json.loads(line) for line in cli("run", "-m", "Hello.", "--json").out.splitlines()]
    assert [entry["tape_seq"] for entry in shown] == [1, 2, 3, 4, 5, 6, 7]


def test_detached_it_prints_the_run_and_does_not_wait(cli: Cli, accepting: Door) -> None:
    result = cli("run", "-m", "Hello.", "--detach")
    assert result.out == f"{RUN}\n"
    assert f"palyra runs attach {RUN}" in result.err
    assert json.loads(cli("run", "-m", "Hello.", "--detach", "--json").out)["run_id"] == RUN


def test_a_message_that_waits_says_so(cli: Cli, door: Door) -> None:
    door.tells("RouteMessage", accepted(queued=True, waiting_for="the active run waits for shell"))
    door.streams("AttachRun", entries(*STORY))
    assert "is queued (the active run waits for shell)" in cli("run", "-m", "Hello.").err


@pytest.mark.parametrize("text", ["", " \n", "a\0b"])
def test_what_may_not_be_sent_is_not_sent(cli: Cli, door: Door, text: str) -> None:
    assert cli("run", "-m", text).code == 2
    assert door.seen == []
