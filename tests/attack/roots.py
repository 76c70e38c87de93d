"""Workspace roots that a tenant replaces by links."""

import os

from tests.attack.case import attack
from tests.attack.ground import Ground, play, proposing, results

MARK = "OUTSIDE-MARK"


@attack("a root that is a link to a folder outside, read by files.read")
def link_to_outside(ground: Ground) -> None:
    outside = ground.folder / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(MARK)
    daemon = ground.daemon(proposing(("files.read", {"path": "secret.txt"})))
    root = daemon.home.workspace / "sub"
    root.mkdir()
    agent = daemon.get("/agents")["agents"][0]
    changed = {"name": agent["name"], "workspace_roots": [str(root)]}
    answer = daemon.ask("PUT", f"/agents/{agent['agent_id']}", body=changed)
    assert answer.status_code == 200, answer.text
    root.rmdir()
    os.symlink(outside, root)
    tape = play(daemon, "read it")
    assert not any(MARK in result["text"] for result in results(tape)), "the file outside was read"
