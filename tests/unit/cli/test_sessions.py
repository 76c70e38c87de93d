"""`palyra sessions` against a door."""

import json
from pathlib import Path

import pytest

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.home import Home
from tests.support.builders import SESSION
from tests.unit.cli.door import GRPC, Answer, Cli, Door
from tests.unit.cli.wire import a_message, a_session, listed, resolved, the_session

pytestmark = pytest.mark.usefixtures("inhabited")


@pytest.mark.parametrize("args", [("sessions",), ("sessions", "list")])
def test_the_list_is_a_table(cli: Cli, door: Door, args: tuple[str, ...]) -> None:
    door.tells("ListSessions", listed(the_session(key="cli")))
    head, row = cli(*args).out.splitlines()
    assert head.split() == ["SESSION", "LAST", "USED", "KEY", "TITLE"]
    assert row.split()[0] == SESSION
    assert row.endswith("cli  Hello")


def test_the_list_may_be_of_those_put_away(cli: Cli, door: Door) -> None:
    door.tells("ListSessions", listed())
    assert cli("sessions", "list", "--archived").out == "No archived sessions.\n"
    assert door.called("ListSessions")[0].archived


def test_the_list_as_json_is_what_the_daemon_said(cli: Cli, door: Door) -> None:
    door.tells("ListSessions", listed(the_session(), next_cursor="7"))
    shown = json.loads(cli("sessions", "--json").out)
    assert (shown["sessions"][0]["session_id"], shown["next_cursor"]) == (SESSION, "7")


def test_a_title_can_not_command_the_terminal(cli: Cli, door: Door) -> None:
    door.tells("ListSessions", listed(the_session(title="\x1b]0;owned\x07")))
    assert "\x1b" not in cli("sessions").out


def test_a_session_is_shown_with_its_last_words(cli: Cli, door: Door) -> None:
    door.tells("ListSessions", listed(the_session()))
    said = [a_message("assistant", "Hi.", seq=5), a_message("tool", "a\nb"), a_message("assistant", ""), a_message()]
    door.says("GET", f"/sessions/{SESSION}/messages", {"messages": said})
    shown = cli("sessions", "show").out
    assert shown.index("Hello.") < shown.index("· a b") < shown.index("Hi.")


@pytest.mark.parametrize(
    ("name", "method", "path"),
    [
        (SESSION, "GET", f"/sessions/{SESSION}"),
        (SESSION.lower(), "GET", f"/sessions/{SESSION}"),
        ("work", GRPC, "ResolveSession"),
        ("last", GRPC, "ListSessions"),
    ],
)
def test_a_session_is_named_by_id_key_or_as_the_last(
    cli: Cli, door: Door, *, name: str, method: str, path: str
) -> None:
    door.says("GET", f"/sessions/{SESSION}", {"session": a_session()})
    door.tells("ResolveSession", resolved())
    door.tells("ListSessions", listed(the_session()))
    door.says("POST", f"/sessions/{SESSION}/reset", {"session": a_session()})
    assert cli("sessions", "reset", name).out == f"{SESSION} (Hello): reset.\n"
    assert (door.seen[0].method, door.seen[0].path) == (method, path)


def test_a_key_that_names_nothing_makes_nothing(cli: Cli, door: Door) -> None:
    door.tells("ResolveSession", resolved())
    door.says("POST", f"/sessions/{SESSION}/archive", {"session": a_session()})
    cli("sessions", "archive", "work")
    assert door.seen[0].body.session == pb.SessionRef(key="work", require_existing=True)


@pytest.mark.parametrize("verb", ["archive", "unarchive", "reset", "cleanup"])
def test_a_session_is_changed(cli: Cli, door: Door, verb: str) -> None:
    door.says("GET", f"/sessions/{SESSION}", {"session": a_session()})
    door.says("POST", f"/sessions/{SESSION}/{verb}", {"session": a_session(title="Changed")})
    door.tells("CleanupSession", pb.CleanupSessionResponse(session=the_session(title="Changed")))
    assert cli("sessions", verb, SESSION).code == 0
    assert json.loads(cli("sessions", verb, SESSION, "--json").out)["session"]["title"] == "Changed"


def test_a_session_is_renamed(cli: Cli, door: Door) -> None:
    door.says("GET", f"/sessions/{SESSION}", {"session": a_session()})
    door.says("PATCH", f"/sessions/{SESSION}", {"session": a_session(title="New")})
    assert cli("sessions", "rename", SESSION, "New").out == f"{SESSION} (New): renamed.\n"


def test_no_session_at_all_is_told(cli: Cli, door: Door) -> None:
    door.tells("ListSessions", listed())
    result = cli("sessions", "show")
    assert (result.code, "[session_missing]" in result.err) == (1, True)


def test_a_search_shows_where(cli: Cli, door: Door) -> None:
    hit = {"session_id": SESSION, "tape_seq": 7, "title": None, "text": "two\nwords"}
    door.says("GET", "/sessions/search", {"hits": [hit]})
    assert cli("sessions", "search", "two", "words").out.splitlines()[1].split()[1:] == ["7", "two", "words"]
    assert door.seen[0].query["q"] == "two words"


def test_a_search_without_hits_says_so(cli: Cli, door: Door) -> None:
    door.says("GET", "/sessions/search", {"hits": []})
    assert cli("sessions", "search", "x").out == "No matches.\n"


def test_an_export_is_written_to_a_file_as_it_is(cli: Cli, door: Door, inhabited: Home, tmp_path: Path) -> None:
    document = b"# Hello\n\x1b[31m"
    door.says("GET", f"/sessions/{SESSION}", {"session": a_session()})
    door.says("GET", f"/sessions/{SESSION}/export", Answer(document, kind="text/markdown"))
    target = tmp_path / "export.md"
    assert cli("sessions", "export", SESSION, "-o", str(target)).code == 0
    assert target.read_bytes() == document
    assert door.asked("GET", f"/sessions/{SESSION}/export")[0].query["format"] == "markdown"
