"""Several questions in a chat: an answer is for the one that was read last, and for no other."""

from tests.e2e.conftest import NewDaemon
from tests.e2e.test_cli_terminal import ENTER, PROMPT, plain, terminal
from tests.support.daemon import until

SECONDS = 60.0
SCRIPT = {
    "rules": [
        {
            "when": {"contains": "write", "tools": True},
            "turns": [
                [
                    {"do": "call", "tool": "files.write", "arguments": {"path": name, "text": "x\n"}}
                    for name in ("deploy.sh", "notes.txt")
                ],
                [{"do": "text", "text": "{result}"}],
            ],
        },
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}


def test_the_next_question_is_put_when_the_one_before_is_answered(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with terminal(daemon.home.path, "chat") as chat:
        chat.wait_for(PROMPT, seconds=SECONDS)
        chat.type("write" + ENTER)
        chat.wait_for("? write deploy.sh", seconds=SECONDS)
        chat.wait_for("another approval request follows", seconds=SECONDS)
        assert "? write notes.txt" not in plain(chat.raw)
        chat.type("no" + ENTER)
        chat.wait_for("? write notes.txt", seconds=SECONDS)
        chat.wait_for("Code:", seconds=SECONDS)
        chat.type("yes" + ENTER)
        until(lambda: (daemon.home.workspace / "notes.txt").exists())
    assert not (daemon.home.workspace / "deploy.sh").exists()
