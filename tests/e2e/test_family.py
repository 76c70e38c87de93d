"""Questions of the runs that work for another one are put to whoever looks at that one."""

import httpx
import pytest

from tests.e2e.conftest import NewDaemon
from tests.e2e.test_cli_terminal import ENTER, PROMPT, terminal
from tests.support.daemon import until

WRITE = {"do": "call", "tool": "files.write", "arguments": {"path": "deploy.sh", "text": "#!/bin/sh\n"}}
SAY = [{"do": "text", "text": "{result}"}]
ON = {"do": "call", "tool": "agent.delegate", "arguments": {"task": "write it"}}
DEEPER = {"do": "call", "tool": "agent.delegate", "arguments": {"task": "hand it on"}}
SCRIPT = {
    "rules": [
        {"when": {"contains": "deeper", "tools": True}, "turns": [[DEEPER], SAY]},
        {"when": {"contains": "hand it on", "tools": True}, "turns": [[ON], SAY]},
        {"when": {"contains": "write", "tools": True}, "turns": [[WRITE], SAY]},
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}
SECONDS = 60.0


@pytest.mark.parametrize("message", ["hand it on", "deeper"])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_question_of_high_risk_is_put_to_whoever_chats(new_sqlite_daemon: NewDaemon, message: str, term: str) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with terminal(daemon.home.path, "chat", term=term) as chat:
        chat.wait_for(PROMPT, seconds=SECONDS)
        chat.type(message + (ENTER if term == "xterm" else "\n"))
        chat.wait_for("needs approval:", seconds=SECONDS)
        chat.wait_for("(high risk)", seconds=SECONDS)
        chat.wait_for("Code:", seconds=SECONDS)
        chat.type("yes" + (ENTER if term == "xterm" else "\n"))
        until(lambda: (daemon.home.workspace / "deploy.sh").exists())
        chat.wait_for("was written", seconds=SECONDS)


def test_a_question_of_high_risk_is_put_to_whoever_waits_for_one_run(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with terminal(daemon.home.path, "run", "-m", "hand it on") as run:
        run.wait_for("needs approval:", seconds=SECONDS)
        run.wait_for("yes, no", seconds=SECONDS)
        run.type("no\n")
        assert run.end(seconds=SECONDS) == 0
    assert not (daemon.home.workspace / "deploy.sh").exists()


@pytest.mark.parametrize("message", ["hand it on", "deeper"])
def test_a_question_is_told_to_a_client_of_v1(new_sqlite_daemon: NewDaemon, message: str) -> None:
    daemon = new_sqlite_daemon(SCRIPT, approvals_inbox=True).start()
    answer = httpx.post(
        f"{daemon.address}/v1/chat/completions",
        headers={"authorization": f"Bearer {daemon.token}"},
        json={"model": "palyra", "messages": [{"role": "user", "content": message}]},
        timeout=SECONDS,
        verify=False,
    )
    told = answer.json()["choices"][0]["message"]["content"]
    assert "deploy.sh" in told
    assert "`palyra approvals allow " in told
