"""The command line beside a daemon that runs: messages in, answers and exit codes out."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from time import sleep

import pytest

from palyra.cli.run_view.narration import RunEnded
from palyra.cli.run_view.watch import JsonAudience, watch
from palyra.core.events import InputMode, ModelText
from palyra.core.session import SessionRef
from palyra.gateway.client.client import Client
from palyra.gateway.client.tape_stream import ReceivedEntry
from palyra.gateway.client.target import find_target
from tests.support.command import command, environ
from tests.support.daemon import Daemon, until
from tests.support.needs import BUBBLEWRAP, needs
from tests.support.sqlite_file import opened

SCRIPT = {
    "rules": [
        {"when": {"contains": "endless"}, "actions": [{"do": "endless", "text": "on ", "delay_ms": 20}]},
        {"when": {"contains": "fail"}, "actions": [{"do": "fail", "kind": "auth", "message": "The model fails."}]},
        {
            "when": {"contains": "evil"},
            "actions": [{"do": "text", "text": "\u001b]0;owned\u0007 \u009b31m \u202ered\u0008"}],
        },
        {
            "when": {"contains": "files"},
            "turns": [
                [{"do": "text", "text": "Let me look."}, {"do": "call", "tool": "files.list"}],
                [{"do": "text", "text": "I looked."}],
            ],
        },
    ],
    "default": [{"do": "text", "text": "You said: {input}", "chunk": 5}],
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all tests of this module."""
    folder = tmp_path_factory.mktemp("cli")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    daemon = Daemon(folder / "home", model_provider="scripted", model_script=script)
    yield daemon.start()
    daemon.close()


def test_a_piped_message_gets_its_answer_and_nothing_else(daemon: Daemon) -> None:
    done = command(daemon.home.path, "chat", stdin="Grüße aus der Röhre\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: Grüße aus der Röhre\n", "")
    assert daemon.alive


def test_a_later_chat_goes_on_where_it_was(daemon: Daemon) -> None:
    command(daemon.home.path, "chat", "--key", "again", stdin="one")
    command(daemon.home.path, "chat", "--key", "again", stdin="two")
    found = command(daemon.home.path, "sessions", "show", "again", "--json")
    assert [said["text"] for said in json.loads(found.stdout)["messages"]] == [
        "one",
        "You said: one",
        "two",
        "You said: two",
    ]


def test_a_new_chat_does_not(daemon: Daemon) -> None:
    command(daemon.home.path, "chat", "--key", "anew", stdin="one")
    command(daemon.home.path, "chat", "--key", "anew", "--new", stdin="two")
    found = command(daemon.home.path, "sessions", "show", "anew", "--json")
    assert [said["text"] for said in json.loads(found.stdout)["messages"]] == ["two", "You said: two"]


def test_what_is_no_text_is_not_sent(daemon: Daemon) -> None:
    before = len(daemon.runs())
    done = command(daemon.home.path, "chat", stdin=b"\xff\xfe")
    assert (done.returncode, done.stdout) == (2, "")
    assert "[input_not_utf8]" in done.stderr
    assert command(daemon.home.path, "chat", stdin="\n").returncode == 2
    assert len(daemon.runs()) == before


def test_steps_and_remarks_go_to_stderr(daemon: Daemon) -> None:
    done = command(daemon.home.path, "run", "-m", "files")
    assert (done.returncode, done.stdout) == (0, "I looked.\n")
    assert done.stderr == "Let me look.\n· files.list … ok\n"


def test_a_run_that_fails_says_why(daemon: Daemon) -> None:
    done = command(daemon.home.path, "chat", stdin="fail")
    assert (done.returncode, done.stdout) == (1, "")
    assert "The model fails." in done.stderr


def test_a_run_that_somebody_cancels_is_cancelled(daemon: Daemon) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "palyra", "run", "-m", "endless", "--key", "cancelled"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(daemon.home.path),
    ) as process:
        run_id = until(lambda: _active(daemon))
        done = command(daemon.home.path, "runs", "cancel", "last", "--reason", "enough of this")
        assert run_id in done.stdout
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (4, b"")
    assert b"enough of this" in err


def test_ctrl_c_cancels_the_run_and_waits_for_its_end(daemon: Daemon) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "palyra", "run", "-m", "endless", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(daemon.home.path),
    ) as process:
        assert process.stdout is not None
        while b"model_text" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert json.loads(out.splitlines()[-1])["event"]["kind"] == "run_cancelled"


class Impatient(JsonAudience):
    """Presses Ctrl-C twice before anything could be done about the first."""

    def on_entry(self, line: ReceivedEntry) -> RunEnded | None:
        if isinstance(line.event, ModelText):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return super().on_entry(line)


def test_who_leaves_at_once_by_a_second_ctrl_c_leaves_no_run_behind(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client(lambda: find_target(daemon.home))
    accepted = client.send("endless", SessionRef(), mode=InputMode.QUEUE, key="twice")
    with pytest.raises(KeyboardInterrupt):
        watch(client, accepted.run_id, after_seq=accepted.after_seq, audience=Impatient())
    until(lambda: client.run(accepted.run_id).status == "cancelled")
    assert f"`palyra runs show {accepted.run_id}`" in capsys.readouterr().err


def test_the_model_can_not_command_the_terminal(daemon: Daemon) -> None:
    done = command(daemon.home.path, "run", "-m", "evil")
    assert done.stdout == "⟨ESC⟩]0;owned⟨BEL⟩ ⟨U+009B⟩31m ⟨U+202E⟩red⟨BS⟩\n"
    for args in (("runs", "tape"), ("runs", "tape", "--json"), ("run", "-m", "evil", "--json"), ("sessions", "show")):
        shown = command(daemon.home.path, *args).stdout
        assert not {"\x1b", "\x07", "\x08", "\x9b", "\u202e"} & set(shown)


def test_entries_come_as_json_with_no_gap(daemon: Daemon) -> None:
    done = command(daemon.home.path, "run", "-m", "hello", "--json")
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert [entry["run_seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[-1]["event"]["kind"] == "run_completed"
    tape = command(daemon.home.path, "runs", "tape", entries[0]["run_id"], "--json")
    assert tape.stdout == done.stdout


def test_the_same_key_sends_once(daemon: Daemon) -> None:
    first, second = (command(daemon.home.path, "run", "-m", "hi", "--idempotency-key", "k") for _ in range(2))
    assert first.stdout == second.stdout == "You said: hi\n"
    assert "already sent" in second.stderr
    assert command(daemon.home.path, "run", "-m", "other", "--idempotency-key", "k").returncode == 1


def test_a_detached_run_can_be_attached_to(daemon: Daemon) -> None:
    run_id = command(daemon.home.path, "run", "-m", "hello", "--detach").stdout.strip()
    done = command(daemon.home.path, "runs", "attach", run_id)
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: hello\n", "> hello\n")


def test_a_session_that_must_exist_is_not_made(daemon: Daemon) -> None:
    done = command(daemon.home.path, "run", "-m", "hello", "--key", "nowhere", "--require-existing")
    assert done.returncode == 1
    assert "[session_not_found]" in done.stderr


def test_a_session_goes_through_its_life(daemon: Daemon) -> None:
    home = daemon.home.path
    command(home, "run", "-m", "the xylophone is green", "--key", "life")
    assert "life" in command(home, "sessions").stdout
    assert "Music" in command(home, "sessions", "rename", "life", "Music").stdout
    assert "xylophone" in command(home, "sessions", "search", "xylophone").stdout
    assert "# Music" in command(home, "sessions", "export", "life").stdout
    assert json.loads(command(home, "sessions", "export", "life", "--format", "json").stdout)["tape"]
    assert command(home, "sessions", "reset", "life").returncode == 0
    assert command(home, "sessions", "archive", "life").returncode == 0
    assert "Music" in command(home, "sessions", "list", "--archived").stdout
    assert command(home, "run", "-m", "hi", "--key", "life").returncode == 1
    assert command(home, "sessions", "unarchive", "life").returncode == 0
    assert command(home, "sessions", "cleanup", "life").returncode == 0
    assert command(home, "sessions", "show", "life").returncode == 1


def test_the_journal_holds_beside_the_daemon(daemon: Daemon) -> None:
    done = command(daemon.home.path, "journal", "verify", "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)


@needs(BUBBLEWRAP)  # without a sandbox it warns
def test_the_doctor_finds_nothing(daemon: Daemon) -> None:
    script = {"PALYRA_MODEL_PROVIDER": "embedded"}
    done = subprocess.run(
        [sys.executable, "-m", "palyra", "doctor"], capture_output=True, env=environ(daemon.home.path) | script
    )
    assert (done.returncode, done.stdout.decode()[-19:]) == (0, "No problems found.\n")


def test_a_second_daemon_on_the_same_home_is_refused(daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "palyra.cli.daemon.serve"],
        capture_output=True,
        timeout=60,
        env=environ(daemon.home.path),
    )
    assert done.returncode == 1
    assert b"[daemon_running]" in done.stderr
    assert str(daemon.pid).encode() in done.stderr
    assert command(daemon.home.path, "up").stdout.startswith("The daemon is already running")


def test_a_reader_that_leaves_early_is_no_error(daemon: Daemon) -> None:
    assert command(daemon.home.path, "run", "-m", "Hello.").returncode == 0
    done = subprocess.run(
        f"{sys.executable} -m palyra runs tape | head -1",
        shell=True,
        capture_output=True,
        env=environ(daemon.home.path),
    )
    assert done.stderr == b""


def _active(daemon: Daemon) -> str | None:
    sleep(0.05)
    found = [run for run in daemon.runs() if run["input"] == "endless" and run["status"] == "in_progress"]
    return found[0]["run_id"] if found else None


def test_sessions_are_named_the_same_way_by_every_command(daemon: Daemon) -> None:
    home = daemon.home.path
    for key in ("red", "blue"):
        assert command(home, "run", "-m", f"in {key}", "--key", key).returncode == 0
    red, blue = (_titled(daemon, key) for key in ("red", "blue"))
    for name in (red, red[-6:], red[-6:].lower(), "red"):
        done = command(home, "run", "-m", f"again by {name}", "--session", name)
        assert (done.returncode, done.stdout) == (0, f"You said: again by {name}\n")
        assert _session_of_last(daemon) == red
    done = command(home, "run", "-m", "to the last", "--session", "last")
    assert (done.returncode, _session_of_last(daemon)) == (0, red)
    assert command(home, "chat", "--session", blue[-6:], stdin="hello blue").returncode == 0
    assert _session_of_last(daemon) == blue
    assert command(home, "chat", "--session", "last", stdin="still blue").returncode == 0
    assert _session_of_last(daemon) == blue


def test_the_last_session_is_an_open_one_and_the_last_to_unarchive_the_one_that_was_archived_last(
    daemon: Daemon,
) -> None:
    home = daemon.home.path
    for key in ("first", "second", "third"):
        command(home, "run", "-m", f"in {key}", "--key", key)
    first, second, third = (_titled(daemon, key) for key in ("first", "second", "third"))
    assert command(home, "sessions", "archive", third).returncode == 0
    assert command(home, "sessions", "archive", first).returncode == 0
    # Whatever happens to another archived one does not make it the last that was archived.
    assert command(home, "sessions", "rename", third[-6:], "renamed").returncode == 0
    assert command(home, "run", "-m", "on", "--session", "last").returncode == 0
    assert _session_of_last(daemon) == second
    done = command(home, "run", "-m", "on", "--session", first[-6:])
    assert (done.returncode, "[session_archived]" in done.stderr) == (1, True)
    for session in (first, third):
        done = command(home, "sessions", "unarchive", "last")
        assert (done.returncode, done.stdout.split()[0]) == (0, session)


def test_last_names_nothing_where_there_is_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    daemon = Daemon(tmp_path_factory.mktemp("empty") / "home").start()
    try:
        for args, code in (
            (("run", "-m", "x", "--session", "last"), "session_missing"),
            (("sessions", "unarchive", "last"), "archived_session_missing"),
            (("runs", "cancel", "last"), "run_missing"),
            (("approvals", "show", "last"), "approval_missing"),
            (("approvals", "allow", "last"), "approval_missing"),
            (("approvals", "reissue", "last"), "approval_missing"),
            (("journal", "export", "--session", "last"), "journal_empty"),
            (("run", "-m", "x", "--session", "ABCDEF"), "id_not_found"),
            (("runs", "show", "ABCDEF"), "id_not_found"),
            (("journal", "export", "--session", "ABCDEF"), "id_not_found"),
            (("journal", "attestations", "ABCDEF"), "id_not_found"),
        ):
            done = command(daemon.home.path, *args)
            assert (done.returncode, f"[{code}]" in done.stderr) == (1, True), (args, done.stderr)
        assert command(daemon.home.path, "sessions").stdout == "No sessions yet. Start one with `palyra chat`.\n"
    finally:
        daemon.close()


def test_an_export_names_its_session_by_the_end_of_its_id(daemon: Daemon) -> None:
    home = daemon.home.path
    command(home, "run", "-m", "to be exported", "--key", "exported")
    session = _session(daemon, "exported")
    whole, by_end, last = (
        command(home, "journal", "export", "--session", name).stdout for name in (session, session[-6:], "last")
    )
    assert session in whole
    # Each export says when it was made.
    assert len({text.split("\n", 1)[1].rpartition('{"')[0] for text in (whole, by_end, last)}) == 1


def test_a_session_of_the_future_is_not_the_last_one_and_the_doctor_tells_of_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    daemon = Daemon(tmp_path_factory.mktemp("clock") / "home").start()
    home = daemon.home.path
    try:
        for key in ("ahead", "now"):
            assert command(home, "run", "-m", f"in {key}", "--key", key).returncode == 0
        ahead, now = (_session(daemon, key) for key in ("ahead", "now"))
        daemon.stop()
        years = 9 * 365 * 24 * 3_600_000
        with opened(daemon.home.journal) as journal:
            where = f"WHERE session_id = '{ahead}'"
            journal.execute(f"UPDATE sessions SET updated_ms = updated_ms + {years} {where}")
            journal.execute(f"UPDATE runs SET accepted_ms = accepted_ms + {years}, ended_ms = ended_ms + 1 {where}")
        daemon.start()
        assert _session_of_last(daemon) == now
        assert command(home, "run", "-m", "on", "--session", "last").returncode == 0
        assert _session_of_last(daemon) == now
        shown = command(home, "runs", "list", "--session", ahead).stdout
        assert "the clock was set back" in shown
        assert "which is in the future" in " ".join(command(home, "doctor").stdout.split())
    finally:
        daemon.close()


def _session(daemon: Daemon, key: str) -> str:
    listed = json.loads(command(daemon.home.path, "sessions", "--json").stdout)["sessions"]
    return str(next(one["session_id"] for one in listed if one["key"] == key))


def _titled(daemon: Daemon, key: str) -> str:
    """Wait until a session has its title, which is given a while after its first run and counts as a change of it."""

    def look() -> str | None:
        listed = json.loads(command(daemon.home.path, "sessions", "--json").stdout)["sessions"]
        return next((str(one["session_id"]) for one in listed if one["key"] == key and one["title"]), None)

    return str(until(look))


def _session_of_last(daemon: Daemon) -> str:
    return str(json.loads(command(daemon.home.path, "runs", "show", "--json").stdout)["run"]["session_id"])
