"""Web pages that reach the daemon through a browser, and tenants that look at what is not theirs."""

import json
import os
from typing import Any

import httpx

from tests.attack.case import attack
from tests.attack.ground import Ground
from tests.support.daemon import Daemon
from tests.support.http2_client import Wire, framed
from tests.support.stalling_clients import addresses, grpc_address

Json = Any

REBOUND = (
    "evil.example",
    "evil.example:{port}",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "0.0.0.0:{port}",
    "[::]",
)
"""Hosts that a page can give the daemon's address, and such as look like its own."""
FOREIGN = (
    {"origin": "https://evil.example"},
    {"origin": "http://localhost:{other}"},
    {"origin": "http://127.0.0.1:{other}"},
    {"origin": "null"},
    {"origin": "https://127.0.0.1:{port}"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)
"""What a browser says of requests that a page of another origin sends."""


def _owner(daemon: Daemon) -> dict[str, str]:
    return {"authorization": f"Bearer {daemon.token}"}


def _routes(daemon: Daemon) -> list[tuple[str, str]]:
    document: Json = httpx.get(f"{daemon.address}/openapi.json", verify=False).json()
    known = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    return [("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json"), *known]


@attack("DNS rebinding: requests with the owner's token that name another host, on every route")
def rebinding(ground: Ground) -> None:
    daemon = ground.daemon()
    port = addresses(daemon)[0][1]
    with httpx.Client(base_url=daemon.address, headers=_owner(daemon), verify=False) as client:
        for method, path in _routes(daemon):
            for host in ground.random.sample(REBOUND, min(len(REBOUND), ground.rounds)):
                answer = client.request(method, path, headers={"host": host.format(port=port)})
                assert answer.status_code == 421, f"{method} {path} served {host}: {answer.text[:200]}"
    with Wire(grpc_address(daemon)) as wire:
        for host in REBOUND:
            headers = {**_owner(daemon), ":authority": host.format(port=port)}
            refused = wire.answer(wire.call("/palyra.v1.GatewayService/ListSessions", framed(b""), headers=headers))
            assert refused.code == "request_host_not_allowed", f"gRPC served {host}"


@attack("a page of another origin that posts to loopback, with and without a preflight")
def foreign_page(ground: Ground) -> None:
    daemon = ground.daemon()
    port = addresses(daemon)[0][1]
    with httpx.Client(base_url=daemon.address, headers=_owner(daemon), verify=False) as client:
        for said in FOREIGN:
            headers = {name: value.format(port=port, other=port + 1) for name, value in said.items()}
            for method, path in (("POST", "/console/v1/runs"), ("POST", "/v1/chat/completions"), ("GET", "/healthz")):
                answer = client.request(method, path, headers=headers, json={"text": "attack"})
                assert answer.status_code == 403, f"{method} {path} with {headers}: {answer.status_code}"
            asked = client.options("/console/v1/runs", headers={**headers, "access-control-request-method": "POST"})
            assert asked.status_code == 403
            assert not any(name.startswith("access-control") for name in asked.headers)
    assert daemon.runs() == [], "a page started a run"


@attack("a tenant that looks for the home, the process and the work of others in everything it may ask")
def curious_tenant(ground: Ground) -> None:
    daemon = ground.daemon()
    daemon.finished(daemon.send("the owner's own words")["run_id"])
    asked = {"principal": "user:mallory", "name": "mallory"}
    made: Json = httpx.post(
        f"{daemon.address}/admin/v1/tokens", headers=_owner(daemon), json=asked, verify=False
    ).json()
    headers = {"authorization": f"Bearer {made['secret']}"}
    hidden = [str(daemon.home.path), os.path.realpath(daemon.home.path), f'"pid":{daemon.pid}', "user:owner"]
    with httpx.Client(base_url=daemon.address, headers=headers, timeout=60, verify=False) as client:
        for method, path in _routes(daemon):
            if path.endswith("/events"):
                continue  # it goes on for ever
            for body in (None, {"name": "x", "workspace_roots": ["/etc"]}, {"name": "x", "value": "x", "text": "x"}):
                sent = {} if body is None else {"content": json.dumps(body)}
                answer = client.request(method, path, **sent)  # type: ignore[arg-type]
                found = [text for text in hidden if text in answer.text]
                assert not found, f"{method} {path} tells a tenant {found}"
        status: Json = client.get("/console/v1/status").json()
        assert not status["counters"], "a tenant sees what others do"
    for path in ("/healthz", "/readyz"):
        answered: Json = httpx.get(daemon.address + path, verify=False).json()
        assert set(answered) == {"status"}, f"{path} tells anyone more than whether it works"
