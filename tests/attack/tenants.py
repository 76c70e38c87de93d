"""A tenant that looks for what belongs to the owner or to other tenants."""

import json
import sys
from pathlib import Path

import httpx

from tests.attack.case import attack
from tests.attack.fairness import Tenant, call, script
from tests.attack.ground import Ground
from tests.support.daemon import Daemon, Json, until

SERVER = Path(__file__).parent.parent / "support" / "mcp_server.py"
START_SECONDS = 60.0


def admin(daemon: Daemon, method: str, path: str, body: object = None) -> Json:
    headers = {"authorization": f"Bearer {daemon.token}"}
    answer = httpx.request(
        method, f"{daemon.address}/admin/v1{path}", headers=headers, json=body, timeout=60, verify=False
    )
    assert answer.is_success, answer.text
    return answer.json()


def with_server(daemon: Daemon, *, principals: tuple[str, ...] = ()) -> None:
    """Give the daemon an MCP server of the owner's, with its tools accepted."""
    daemon.stop()
    daemon.home.config.write_text(
        f"[mcp.servers.crown]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([str(SERVER)])}\n"
        f'sandbox = "off"\nprincipals = {json.dumps(principals)}\n'
    )
    daemon.start()

    def ready() -> Json:
        (found,) = admin(daemon, "GET", "/mcp/servers")["servers"]
        return found["tools"] if found["state"] == "ready" else None

    digests = {tool["tool"]: tool["digest"] for tool in until(ready, seconds=START_SECONDS)}
    admin(daemon, "POST", "/mcp/servers/crown/accept", {"tools": digests})


@attack("a tenant that asks everywhere for the names of the owner's MCP tools")
def names_of_tools(ground: Ground) -> None:
    tries = [call("mcp.crown.nothing"), call("tools.search", query="crown note"), call("crown.note", text="a")]
    daemon = ground.daemon(script(try_it=tries))
    with_server(daemon, principals=("user:ben",))
    ana, ben = Tenant(daemon, "ana"), Tenant(daemon, "ben")
    heard = []
    for tenant in (ana, ben):
        run = tenant.send("try it")
        until(lambda tenant=tenant, run=run: tenant.get(f"/runs/{run}")["run"]["ended_at"], seconds=60)  # type: ignore[misc]
        events = [entry["event"] for entry in tenant.get(f"/runs/{run}/tape")["entries"]]
        said = [event["text"] for event in events if event["kind"] == "tool_finished"]
        said += [tenant.post("/agents", {"name": "a", "tools": [name]}).text for name in ("mcp.crown.not", "crown")]
        said += [json.dumps(event) for event in events if event["kind"] == "context_assembled"]
        said += [httpx.get(f"{daemon.address}/admin/v1/mcp/servers", headers=tenant.headers, verify=False).text]
        heard.append("\n".join(said))
    assert "mcp.crown.note" in heard[1], "nothing is shown: not even the tenant that may use the server saw its tools"
    assert "mcp.crown.note" not in heard[0], heard[0]
    made = ana.post("/agents", {"name": "b", "tools": ["mcp.crown.note"]})
    assert made.status_code in (400, 422), "a tenant can name a tool that is not shared with it"
