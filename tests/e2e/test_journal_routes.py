"""The journal from the outside: counted, proved, exported over HTTP by whoever has the scope, and by nobody else."""

import json
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from palyra.journal.proof.export_proof import verify_file
from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.sqlite_file import opened

Json = Any
ROUTES = (("GET", "stats"), ("GET", "anchors"), ("POST", "verify"), ("GET", "export"))


def ask(daemon: Daemon, method: str, path: str, *, token: str | None = None, **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {token or daemon.token}"}
    return httpx.request(method, f"{daemon.address}/admin/v1/{path}", headers=headers, timeout=60, **more, verify=False)


def journal(daemon: Daemon, method: str, path: str, **more: Any) -> httpx.Response:
    return ask(daemon, method, f"journal/{path}", **more)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.fixture
def daemon(new_daemon: NewDaemon) -> Daemon:
    """A daemon that has something to tell, and an anchor for each of two stops."""
    daemon = new_daemon()
    for text in ("one", "two"):
        daemon.start()
        daemon.finished(daemon.send(text, session={"key": text})["run_id"])
        daemon.stop()
    return daemon.start()


def test_an_operator_sees_how_much_there_is_and_that_it_holds(daemon: Daemon) -> None:
    found = journal(daemon, "GET", "stats").json()
    assert (found["sessions"], found["runs"], found["engine"]) == (2, {"done": 2}, daemon.get("/status")["engine"])
    assert found["bytes"] > 0

    verdict = journal(daemon, "POST", "verify", json={}).json()
    assert (verdict["ok"], verdict["problem_count"], verdict["problems"]) == (True, 0, [])
    assert (verdict["sessions"], verdict["entries"]) == (2, found["entries"])
    assert verdict["anchors"] == found["anchors"] >= 2


def test_anchors_come_latest_first_and_prove_later_that_nothing_was_rolled_back(daemon: Daemon) -> None:
    everything = journal(daemon, "GET", "anchors").json()
    assert everything["next_cursor"] is None
    numbers = [anchor["number"] for anchor in everything["anchors"]]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) >= 2

    page = journal(daemon, "GET", "anchors?limit=1").json()
    paged = page["anchors"]
    while page["next_cursor"] is not None:
        page = journal(daemon, "GET", f"anchors?limit=1&cursor={page['next_cursor']}").json()
        paged += page["anchors"]
    assert paged == everything["anchors"]

    kept = everything["anchors"][0]
    assert journal(daemon, "POST", "verify", json={"anchor": kept}).json()["ok"]
    verdict = journal(daemon, "POST", "verify", json={"anchor": {**kept, "number": 99, "body": "{}"}}).json()
    assert not verdict["ok"]
    assert verdict["problems"][0]["what"] == "the saved anchor was not signed by this journal's key"


def test_a_tampered_entry_is_named_while_the_daemon_runs(daemon: Daemon) -> None:
    session_id = daemon.sessions()[0]["session_id"]
    tamper(daemon, session_id, tape_seq=2)

    verdict = journal(daemon, "POST", "verify", json={}).json()

    assert not verdict["ok"]
    assert verdict["problem_count"] == 1
    what = "this entry was altered, inserted or moved"
    assert verdict["problems"] == [{"session_id": session_id, "tape_seq": 2, "what": what}]
    # It looks and changes nothing: the daemon goes on, and says the same again.
    assert daemon.finished(daemon.send("three")["run_id"])["status"] == "done"
    assert journal(daemon, "POST", "verify", json={}).json()["problem_count"] == 1


def test_an_export_is_downloaded_and_proves_itself(daemon: Daemon, tmp_path: Path) -> None:
    answer = journal(daemon, "GET", "export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert "attachment" in answer.headers["content-disposition"]
    whole = proved(answer.content, tmp_path)
    assert whole.sessions == 2

    session_id = daemon.sessions()[0]["session_id"]
    assert proved(journal(daemon, "GET", f"export?session_id={session_id}").content, tmp_path).sessions == 1

    last = journal(daemon, "GET", "anchors?limit=1").json()["anchors"][0]["number"]
    run = daemon.send("three", session={"key": "one"})
    daemon.finished(run["run_id"])
    fresh = proved(journal(daemon, "GET", f"export?since={last}").content, tmp_path)
    assert fresh.sessions == 1
    assert 0 < fresh.entries < whole.entries

    head = journal(daemon, "HEAD", "export")
    assert (head.status_code, head.content) == (200, b"")
    # A download that was given up makes room for the next.
    with httpx.stream(
        "GET",
        f"{daemon.address}/admin/v1/journal/export",
        headers={"authorization": f"Bearer {daemon.token}"},
        verify=False,
    ) as response:
        assert response.status_code == 200
    daemon.surely(lambda: journal(daemon, "GET", "export").raise_for_status())


def test_what_can_not_be_had_is_refused_with_a_code(daemon: Daemon) -> None:
    strange = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert code(journal(daemon, "GET", f"export?session_id={strange}")) == (404, "session_not_found")
    assert code(journal(daemon, "GET", "export?since=4711")) == (404, "anchor_not_found")
    assert code(journal(daemon, "GET", "export?since=soon")) == (400, "request_invalid")
    assert code(journal(daemon, "GET", "anchors?cursor=last")) == (400, "request_invalid")
    assert code(journal(daemon, "POST", "verify", json={"anchor": 7})) == (400, "request_invalid")
    assert code(journal(daemon, "POST", "verify", json={"depth": 7})) == (400, "request_invalid")


def test_only_an_operator_gets_in(daemon: Daemon) -> None:
    asked = {"principal": "user:ben", "name": "ben"}
    ben = ask(daemon, "POST", "tokens", json=asked).json()["secret"]
    for method, path in ROUTES:
        body: Json = {"json": {}} if method == "POST" else {}
        assert code(journal(daemon, method, path, token=ben, **body)) == (403, "token_scope_missing")
        assert code(journal(daemon, method, path, token="nonsense", **body)) == (401, "unauthenticated")


def tamper(daemon: Daemon, session_id: str, *, tape_seq: int) -> None:
    """Change what an entry says behind the daemon's back."""
    sql = "UPDATE tape SET content = REPLACE(content, '2', '3') WHERE session_id = '{}' AND tape_seq = {}"
    if daemon.database_url is not None:
        with psycopg.connect(daemon.database_url) as database:
            database.execute(sql.format(session_id, tape_seq).encode())
        return
    with opened(daemon.home.journal) as file:
        file.execute(sql.format(session_id, tape_seq))


def proved(export: bytes, folder: Path) -> Json:
    """Prove an export without its journal, and return its footer's counts."""
    file = folder / "journal.ndjson"
    file.write_bytes(export)
    report = verify_file(file).report
    assert report.ok, report.problems
    assert json.loads(export.splitlines()[-1])["line"] == "footer"
    return report
