"""The OpenAPI document keeps its word: it is valid, and a client that is generated from it works against a daemon.

The client is made from the document alone. It calls every GET, and the operations that change something; each response
must have a documented status and fit the schema of that status.
"""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from tests.e2e.conftest import NewDaemon
from tests.e2e.test_tenancy import PASTED, SCRIPT
from tests.support.daemon import Daemon, until

Json = Any

ENDLESS = {"followSession", "followApprovals", "streamMessage"}
"""Streams that end only when the client leaves, and one that is a POST."""
LINES = {"exportApprovals", "exportJournal"}
"""Downloads of many lines of JSON, which the generator takes for one value; they are read without it."""
QUERY = {"searchMessages": {"q": "write"}, "getTrace": {"of": "last"}}
MISSING = {"listProviderModels": 404, "getShadowPolicy": 404}
"""The GETs that have nothing to show in this test, and how that is answered."""


class GeneratedClient:
    """A client that was generated from the document of a daemon."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.document: Json = httpx.get(f"{daemon.address}/openapi.json", verify=False).json()
        self.operations = {
            operation["operationId"]: (method, path, operation)
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }
        self._package = _generate(self.document, folder)
        self._client = self._module("client").AuthenticatedClient(
            base_url=daemon.address, token=daemon.token, raise_on_unexpected_status=True, timeout=httpx.Timeout(60)
        )

    def call(self, name: str, *, status: int | None = None, body: Json = None, **parameters: object) -> Json:
        """Call an operation and return its JSON, or None; the response must be as the document says."""
        _, _, operation = self.operations[name]
        if body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            parameters["body"] = getattr(self._module("models"), schema["$ref"].rsplit("/", 1)[1]).from_dict(body)
        module = self._module(f"api.{operation['tags'][0]}.{_snake(name)}")
        response = module.sync_detailed(client=self._client, **parameters)
        expected = min(int(code) for code in operation["responses"] if code.isdigit()) if status is None else status
        assert response.status_code == expected, f"{name}: {response.status_code} {response.content[:500]!r}"
        return self._checked(name, operation["responses"][str(int(response.status_code))], response)

    def close(self) -> None:
        self._client.get_httpx_client().close()

    def _checked(self, name: str, described: Json, response: Any) -> Json:
        content = described.get("content")
        if content is None:
            assert response.content == b"", name
            return None
        media = response.headers["content-type"].partition(";")[0]
        assert media in content, f"{name} answers with {media}"
        if "json" not in media or "ndjson" in media:
            return None
        value = json.loads(response.content)
        schema = {**content[media]["schema"], "components": self.document["components"]}
        OAS31Validator(schema).validate(value)
        assert response.parsed is not None or media != "application/json", f"{name} is not decoded by the client"
        return value

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self._package}.{name}")


@pytest.fixture
def client(
    new_sqlite_daemon: NewDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Daemon, GeneratedClient]]:
    daemon = new_sqlite_daemon(SCRIPT, approvals_inbox="true")
    daemon.home.path.mkdir(mode=0o700)
    daemon.home.config.write_text('[mcp.servers.crown]\ncommand = "crown"\nenabled = false\n')
    daemon.start()
    monkeypatch.syspath_prepend(tmp_path)
    api = GeneratedClient(daemon, tmp_path)
    yield daemon, api
    api.close()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


PACKAGE = "generated_palyra_client"


def _generate(document: Json, folder: Path) -> str:
    written, settings = folder / "openapi.json", folder / "generator.json"
    written.write_text(json.dumps(document))
    settings.write_text(json.dumps({"post_hooks": []}))
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(written)]
    command += ["--config", str(settings), "--meta", "none", "--output-path", str(folder / PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # The generator does not know lines of JSON; everything else it must understand.
    refused = re.findall(r"WARNING parsing (\S+ \S+)", done.stdout + done.stderr)
    assert [one for one in refused if not one.endswith("/export")] == [], done.stdout + done.stderr
    return PACKAGE


def test_the_document_is_valid_and_its_names_are_unique(client: tuple[Daemon, GeneratedClient]) -> None:
    document = client[1].document
    validate(document)
    operations = [(path, method, one) for path, methods in document["paths"].items() for method, one in methods.items()]
    names = [one["operationId"] for _, _, one in operations]
    assert len(names) == len(set(names)) == len(operations) > 80
    assert [name for name in names if not re.fullmatch(r"[a-z]+([A-Z][a-z0-9]*)+", name)] == []
    assert [name for name in document["components"]["schemas"] if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name)] == []
    for path, method, one in operations:
        where = f"{method} {path}"
        # An operator's twin of an operation has its name with `admin` in front, and nothing else has.
        twin = path.replace("/admin/v1", "/console/v1")
        is_twin = path.startswith("/admin/v1") and method in document["paths"].get(twin, {})
        assert one["operationId"].startswith("admin") == is_twin, where
        assert all(response["description"] for response in one["responses"].values()), where
        if path.startswith(("/console/v1", "/admin/v1", "/v1")):
            assert {"400", "401", "403", "default"} <= set(one["responses"]), where
        body = one.get("requestBody")
        if body is not None:
            schema = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
            assert body["required"] == bool(document["components"]["schemas"][schema].get("required")), where


def test_items_lists_and_deletions_have_one_shape(client: tuple[Daemon, GeneratedClient]) -> None:
    document = client[1].document
    for path, methods in document["paths"].items():
        if not path.startswith(("/console/v1", "/admin/v1")):
            continue
        for method, one in methods.items():
            good = next(code for code in one["responses"] if code.startswith("2"))
            schema = one["responses"][good].get("content", {}).get("application/json", {}).get("schema", {})
            name = schema.get("$ref", "").rsplit("/", 1)[-1]
            if method == "delete":
                assert good == "204", path
            if one["operationId"].removeprefix("admin").lower().startswith(("list", "search")):
                properties = document["components"]["schemas"][name]["properties"]
                assert name.endswith("Page"), path
                assert "next_cursor" in properties, path
                limited = {query["name"] for query in one["parameters"]} & {"limit", "cursor"}
                assert limited in (set(), {"limit", "cursor"}), path


def test_a_generated_client_calls_every_operation_that_reads(client: tuple[Daemon, GeneratedClient]) -> None:
    daemon, api = client
    ids = _things(daemon, api)
    called = 0
    for name, (method, path, operation) in api.operations.items():
        if method != "get" or name in ENDLESS:
            continue
        called += 1
        if name in LINES:
            headers = {"authorization": f"Bearer {daemon.token}"}
            lines = httpx.get(daemon.address + path, headers=headers, verify=False)
            assert lines.headers["content-type"] in operation["responses"]["200"]["content"], name
            assert all(map(json.loads, lines.text.splitlines())), name
            continue
        named = {one["name"]: ids[one["name"]] for one in operation["parameters"] if one["in"] == "path"}
        api.call(name, status=MISSING.get(name), **named, **QUERY.get(name, {}))
    assert called > 35


def test_a_generated_client_changes_things(client: tuple[Daemon, GeneratedClient]) -> None:
    daemon, api = client
    ids = _things(daemon, api)
    session, agent = ids["session_id"], ids["agent_id"]
    assert api.call("bindAgent", session_id=session, body={"agent_id": agent})["session"]["agent_id"] == agent
    api.call("unbindAgent", session_id=session)
    assert api.call("updateSession", session_id=session, body={"title": "renamed"})["session"]["title"] == "renamed"
    assert api.call("cancelRun", run_id=ids["run_id"]) == api.call("getRun", run_id=ids["run_id"])
    api.call("archiveSession", session_id=session)
    api.call("unarchiveSession", session_id=session)
    api.call("setSecret", secret_name="web", body={"value": "hunter2"})
    api.call("deleteSecret", secret_name="web")
    api.call("deleteSecret", secret_name="web", status=404)
    api.call("revealSealedSecret", sealed_id=ids["sealed_id"])
    api.call("deleteSealedSecret", sealed_id=ids["sealed_id"])
    assert api.call("revokeGrant", grant_id=ids["grant_id"])["grant"]["revoked_at"]
    made = api.call("createToken", body={"name": "phone"})
    assert api.call("revokeToken", token_id=made["token"]["token_id"])["token"]["revoked_at"]
    api.call("restoreFileCheckpoint", checkpoint_id=ids["checkpoint_id"], body={"force": True})
    stop = api.call("createStop", body={"reason": "smoke"})["stop"]
    assert [one["stop_id"] for one in api.call("listStops")["stops"]] == [stop["stop_id"]]
    assert api.call("resumeWork") == {"resumed": [stop], "stops": []}
    assert api.call("verifyJournal")["ok"]
    api.call("reloadConfig")
    api.call("deleteAgent", agent_id=agent)
    api.call("createChatCompletion", body={"model": "palyra", "messages": [{"role": "user", "content": "Hi"}]})


def test_pages_are_complete_and_the_last_one_says_so(client: tuple[Daemon, GeneratedClient]) -> None:
    daemon, api = client
    _things(daemon, api)
    for key in ("one", "two", "three"):
        daemon.finished(daemon.send("Hello", session={"key": key})["run_id"])
    session = api.call("listSessions", limit=1)["sessions"][0]["session_id"]
    for name, field, key, parameters in (
        ("listSessions", "sessions", "session_id", {}),
        ("listRuns", "runs", "run_id", {}),
        ("listMessages", "messages", "tape_seq", {"session_id": session}),
        ("searchMessages", "hits", "tape_seq", {"q": "hello"}),
        ("listGrants", "grants", "grant_id", {}),
        ("listSealedSecrets", "sealed", "sealed_id", {}),
        ("listApprovals", "approvals", "approval_id", {}),
        ("listFileCheckpoints", "checkpoints", "checkpoint_id", {}),
        ("listTokens", "tokens", "token_id", {}),
    ):
        every = api.call(name, **parameters)
        assert every["next_cursor"] is None, name
        found, cursor = [], None
        for _ in every[field]:
            page = api.call(name, limit=1, **parameters, **({} if cursor is None else {"cursor": cursor}))
            found += page[field]
            cursor = page["next_cursor"]
        assert ([one[key] for one in found], cursor) == ([one[key] for one in every[field]], None), name


def test_event_streams_are_described_by_the_data_of_their_events(client: tuple[Daemon, GeneratedClient]) -> None:
    daemon, api = client
    run_id = _things(daemon, api)["run_id"]
    described = {name: _data_schema(operation) for name, (_, _, operation) in api.operations.items()}
    streams = {name: schema for name, schema in described.items() if schema is not None}
    refs = {name: re.findall(r"#/components/schemas/(\w+)", json.dumps(schema)) for name, schema in streams.items()}
    assert refs == {
        "streamMessage": ["TapeEntry"],
        "followRun": ["TapeEntry"],
        "followSession": ["TapeEntry"],
        "followApprovals": ["Approval"],
        "createChatCompletion": ["ChatChunk", "ErrorResponse"],
        "createResponse": ["ResponseEvent"],
    }
    asked = {"role": "user", "content": "Hi"}
    for name, method, path, body in (
        ("streamMessage", "POST", "/console/v1/chat", {"text": "Hello"}),
        ("followRun", "GET", f"/console/v1/runs/{run_id}/events", None),
        ("createChatCompletion", "POST", "/v1/chat/completions", {"messages": [asked], "stream": True}),
        ("createResponse", "POST", "/v1/responses", {"input": "Hello", "stream": True}),
    ):
        model = {"model": "palyra"} if path.startswith("/v1") else {}
        headers = {"authorization": f"Bearer {daemon.token}"}
        content = {**body, **model} if body is not None else None
        answer = httpx.request(
            method, f"{daemon.address}{path}", json=content, headers=headers, timeout=60, verify=False
        )
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        assert data, name
        validator = OAS31Validator({**streams[name], "components": api.document["components"]})
        for one in data:
            validator.validate(json.loads(one))


def _data_schema(operation: Json) -> Json:
    """Return how the document describes the data of an operation's server-sent events; None if it has none."""
    stream = operation["responses"].get("200", {}).get("content", {}).get("text/event-stream")
    return stream["schema"]["contentSchema"]["items"]["properties"]["data"]["contentSchema"] if stream else None


def _things(daemon: Daemon, api: GeneratedClient) -> dict[str, str]:
    """Make one of everything through the client, and return the ids that stand in paths."""
    agent = api.call("createAgent", body={"name": "cook"})["agent"]
    sent = api.call("sendMessage", body={"text": f"write a note, and {PASTED}", "session": {"key": "k"}})
    approval = until(lambda: api.call("listApprovals", open_=True)["approvals"])[0]
    answer = {"decision": "allow", "scope": "session"}
    api.call("resolveApproval", approval_id=approval["approval_id"], body=answer)
    daemon.finished(sent["run_id"])
    response = api.call("createResponse", body={"model": "palyra", "input": "Hello"})
    return {
        "agent_id": agent["agent_id"],
        "approval_id": approval["approval_id"],
        "checkpoint_id": api.call("listFileCheckpoints")["checkpoints"][0]["checkpoint_id"],
        "grant_id": api.call("listGrants")["grants"][0]["grant_id"],
        "model_name": "palyra",
        "provider_name": "nobody",
        "response_id": response["id"],
        "run_id": sent["run_id"],
        "sealed_id": api.call("listSealedSecrets")["sealed"][0]["sealed_id"],
        "server_name": "crown",
        "session_id": sent["session_id"],
    }


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
