"""Labels of files that real programs write in the real sandbox, and the person who trusts them."""

from tests.attack.ground import approvals, play, results
from tests.attack.labels import PAGE, WRITES, call, playing, runs, tier
from tests.e2e.conftest import NewDaemon
from tests.support.command import palyra
from tests.support.daemon import Daemon


def obeyed(daemon: Daemon, key: str) -> tuple[list[str], list[str]]:
    """Have a session read the file and run a command; return the labels of what it read, and of what was asked."""
    tape = play(daemon, "obey", session={"key": key})
    (request,) = approvals(tape)
    return results(tape)[0]["labels"], request["labels"]


def test_what_a_command_writes_after_a_page_is_the_webs_until_the_person_trusts_it(new_daemon: NewDaemon) -> None:
    script = playing(
        page=[PAGE, runs(f"{WRITES}; mkdir new; mv page.txt new/")],
        move=[runs("mv new safe")],
        obey=[call("files.read", path="safe/page.txt"), runs("touch obeyed")],
        read=[call("files.read", path="welcome.md")],
    )
    daemon = new_daemon(script, sandbox_tier=tier(), approvals_inbox=True)
    daemon.start()
    play(daemon, "page", session={"key": "first"})
    play(daemon, "move", session={"key": "second"})
    read, asked = obeyed(daemon, "third")
    assert (read[-1], asked[-1]) == ("web", "web")
    (own,) = results(play(daemon, "read", session={"key": "fourth"}))
    assert own["labels"] == ["owner"]

    assert palyra(daemon, "files", "trust", ".").startswith(".: removed the labels of ")
    assert obeyed(daemon, "fifth") == (["owner"], ["owner"])
    assert palyra(daemon, "files", "trust", ".") == ".: removed the labels of 0 entries.\n"
