"""No principal sees, touches or learns of another's: tried on everything that the doors say they offer.

The cases are made from the OpenAPI document and from the proto descriptors. A route or method that is added later is
tried without being named here; one whose parameters are of a new kind fails until it is said what stands for them.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from palyra.gateway.grpc.pb import approvals_pb2, gateway_pb2, stops_pb2, vault_pb2
from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon

Json = Any

_numbers = count(1)

BEGINNING_SECONDS = 2
"""How long a stream without an end is listened to."""
STRANGE = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
"""An id that nothing has."""
SECRET = "the crown is under the third stone"
PASTED = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
SCRIPT = {
    "rules": [
        {
            "when": {"contains": "write", "tools": True},
            "turns": [
                [{"do": "call", "tool": "files.write", "arguments": {"path": "notes.txt", "text": SECRET}}],
                [{"do": "text", "text": "Written."}],
            ],
        }
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}
METHODS = {
    method.name: method
    for file in (approvals_pb2.DESCRIPTOR, gateway_pb2.DESCRIPTOR, vault_pb2.DESCRIPTOR, stops_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}

OWN_NAMES = {"setSecret"}
"""Operations with a name that each principal chooses: what ben calls like a thing of ana's is his own."""


class Tenant:
    """Somebody with a token of their own."""

    def __init__(self, daemon: Daemon, name: str, *, grpc_at: str) -> None:
        owner = {"authorization": f"Bearer {daemon.token}"}
        asked = {"principal": f"user:{name}", "name": name}
        made: Json = httpx.post(f"{daemon.address}/admin/v1/tokens", headers=owner, json=asked, verify=False).json()
        self.token_id: str = made["token"]["token_id"]
        self.headers = {"authorization": f"Bearer {made['secret']}"}
        self.http = httpx.Client(base_url=daemon.address, headers=self.headers, timeout=60, verify=False)
        self.channel = grpc.insecure_channel(grpc_at)

    def close(self) -> None:
        self.http.close()
        self.channel.close()

    def call(self, method: MethodDescriptor, request: Message, *, seconds: float = 60) -> tuple[str, str, str]:
        """Make a call and return its status, its detail and everything that it answered until then."""
        kind = ("stream" if method.client_streaming else "unary") + ("_stream" if method.server_streaming else "_unary")
        stub = getattr(self.channel, kind)(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        metadata = tuple(self.headers.items())
        heard: list[str] = []
        try:
            asked = iter([request]) if method.client_streaming else request
            answer = stub(asked, metadata=metadata, timeout=seconds)
            heard.extend(str(part) for part in (answer if method.server_streaming else [answer]))
        except grpc.RpcError as error:
            return error.code().name, error.details() or "", " ".join(heard)
        return "OK", "", " ".join(heard)


class Stage:
    """A daemon, ana who has something to hide, and ben who is curious."""

    def __init__(self, daemon: Daemon) -> None:
        grpc_at = json.loads(daemon.home.daemon.read_text())["grpc"]
        self.ana, self.ben = (Tenant(daemon, name, grpc_at=grpc_at) for name in ("ana", "ben"))
        sent = self.ana.http.post("/console/v1/runs", json={"text": SECRET, "session": {"key": "hers"}}).json()
        self.ana.http.get(f"/console/v1/runs/{sent['run_id']}/events")  # ends with the run
        agent = self.ana.http.post("/console/v1/agents", json={"name": "spy", "instructions": SECRET}).json()["agent"]
        kept = self.ana.http.put("/console/v1/secrets/crown-key", json={"value": SECRET})
        assert kept.status_code == 200
        pasted = self.ana.http.post("/console/v1/runs", json={"text": f"it is {PASTED}", "session": {"key": "hers"}})
        self.ana.http.get(f"/console/v1/runs/{pasted.json()['run_id']}/events")
        (sealed,) = self.ana.http.get("/console/v1/sealed").json()["sealed"]
        approval, grant, checkpoint = self._write_a_note()
        self.ids = {
            "session_id": sent["session_id"],
            "run_id": sent["run_id"],
            "response_id": f"resp_{sent['run_id']}",
            "model_name": f"palyra/{agent['name']}",
            "agent_id": agent["agent_id"],
            "token_id": self.ana.token_id,
            "secret_name": "crown-key",
            "sealed_id": sealed["sealed_id"],
            "approval_id": approval,
            "grant_id": grant,
            "checkpoint_id": checkpoint,
            "server_name": "crown-server",
            "provider_name": "crown-provider",
        }
        self.document: Json = httpx.get(daemon.address + "/openapi.json", verify=False).json()
        self.home = daemon.home.path
        self.own = [str(daemon.home.path), f'"pid":{daemon.pid}', "workspaces/", "descriptor"]
        """What only those may know who look after the daemon: where its files are, and how its process is."""

    def _write_a_note(self) -> tuple[str, str, str]:
        """Let ana's agent write a note, with her yes for the session; return question, grant and checkpoint."""
        ask = self.ana.http
        asked = {"text": "write a note", "session": {"key": "hers"}}
        run_id = ask.post("/console/v1/runs", json=asked).json()["run_id"]

        with ask.stream("GET", f"/console/v1/runs/{run_id}/events") as stream:
            assert any("approval_requested" in line for line in stream.iter_lines())
        (question,) = ask.get("/console/v1/approvals?open=true").json()["approvals"]
        approval_id = question["approval_id"]
        answer = {"decision": "allow", "scope": "session"}
        assert ask.post(f"/console/v1/approvals/{approval_id}/resolve", json=answer).status_code == 200
        ask.get(f"/console/v1/runs/{run_id}/events")  # ends with the run
        (grant,) = ask.get("/console/v1/grants").json()["grants"]
        (checkpoint,) = ask.get("/console/v1/files/checkpoints").json()["checkpoints"]
        return approval_id, grant["grant_id"], checkpoint["checkpoint_id"]

    def hers(self) -> Json:
        """Everything that ana has, to see that nobody touched it."""
        ask = self.ana.http
        session = self.ids["session_id"]
        return [
            ask.get(path).json()
            for path in (
                "/console/v1/sessions",
                "/console/v1/sessions?archived=true",
                f"/console/v1/sessions/{session}/tape",
                "/console/v1/runs",
                "/console/v1/agents",
                "/console/v1/secrets",
                "/console/v1/sealed",
                "/console/v1/approvals",
                "/console/v1/grants",
                "/console/v1/files/checkpoints",
                "/admin/v1/tokens",
            )
        ]

    def bens_folder(self) -> Path:
        """The folder in which ben's agents work; it is made when it is first needed."""
        self.ben.http.post("/console/v1/agents", json={"name": "first", "workspace_roots": ["."]})
        (folder,) = (self.home / "workspaces").glob("*ben")
        return folder

    def assert_silent(self, text: str, where: str) -> None:
        """Nothing of ana's, and nothing of the daemon's own, may be in an answer to ben."""
        for hidden in (*self.ids.values(), SECRET, PASTED, "user:ana", *self.own):
            assert hidden not in text, f"{where} tells of {hidden}"


@pytest.fixture
def stage(new_sqlite_daemon: NewDaemon) -> Iterator[Stage]:
    daemon = new_sqlite_daemon(SCRIPT)
    daemon.home.path.mkdir(mode=0o700)
    daemon.home.config.write_text(f'[mcp.servers.crown-server]\ncommand = "{SECRET}"\nenabled = false\n')
    daemon.start()
    stage = Stage(daemon)
    yield stage
    stage.ana.close()
    stage.ben.close()


def test_no_route_tells_a_stranger_anything(stage: Stage) -> None:
    before = stage.hers()
    tried = 0
    for path, methods in stage.document["paths"].items():
        for method, operation in methods.items():
            where = f"{method.upper()} {path}"
            if "text/event-stream" in json.dumps(operation) and not _names_something(operation):
                # It goes on for ever; what has been so far comes at once.
                stage.assert_silent(_beginning(stage, path), where)
                continue
            known = _try_route(stage, method, path, operation, stage.ids)
            if operation["operationId"] in OWN_NAMES:
                assert known.json()["secret"]["principal"] == "user:ben"
                assert stage.ben.http.delete(path.replace("{secret_name}", stage.ids["secret_name"])).status_code == 204
                continue
            stage.assert_silent(known.text, where)
            tried += 1
            if not _names_something(operation):
                continue
            nowhere = _try_route(stage, method, path, operation, dict.fromkeys(stage.ids, STRANGE))
            assert known.status_code >= 400, f"{where} let a stranger in"
            # What is hers and what does not exist are answered alike, so that nobody learns which it is.
            assert (known.status_code, known.json()) == (nowhere.status_code, nowhere.json()), where
    assert tried > 25
    assert stage.hers() == before


def test_no_method_tells_a_stranger_anything(stage: Stage) -> None:
    before = stage.hers()
    for method in METHODS.values():
        request, named = _request(method, stage.ids)
        # A stream of something that is not named goes on for ever; what has been so far comes at once.
        endless = method.server_streaming and not named
        status, detail, answer = stage.ben.call(method, request, seconds=BEGINNING_SECONDS if endless else 60)
        stage.assert_silent(detail + answer, method.name)
        if named:
            nowhere, _ = _request(method, dict.fromkeys(stage.ids, STRANGE))
            # An id that a method does not look at (making an agent) changes nothing, and then neither does hers.
            assert (status, detail) == stage.ben.call(method, nowhere)[:2], method.name
    assert stage.hers() == before


@pytest.mark.parametrize("root", ["/etc", "../..", "missing", "linked", "a-file", "a-file/below", "/"])
def test_a_root_that_is_refused_is_named_relative_to_the_workspace(stage: Stage, root: str) -> None:
    folder = stage.bens_folder()
    (folder / "linked").symlink_to("/")
    (folder / "a-file").write_text("")
    agent = {"name": "curious", "workspace_roots": [root]}
    answer = stage.ben.http.post("/console/v1/agents", json=agent)
    assert (answer.status_code, answer.json()["code"]) == (400, "agent_invalid")
    stage.assert_silent(answer.text, root)
    assert root in answer.json()["detail"]
    absolute = {"name": "curious", "workspace_roots": [str(folder / "missing"), str(stage.home)]}
    status, detail, _ = stage.ben.call(METHODS["CreateAgent"], gateway_pb2.CreateAgentRequest(agent=absolute))
    assert status == "INVALID_ARGUMENT"
    stage.assert_silent(detail, "CreateAgent")


def test_a_root_may_be_named_relative_to_the_workspace(stage: Stage) -> None:
    folder = stage.bens_folder()
    (folder / "sub").mkdir()
    made = stage.ben.http.post("/console/v1/agents", json={"name": "below", "workspace_roots": ["sub"]})
    assert made.status_code == 201, made.text


def test_errors_of_the_daemons_own_files_do_not_say_where_they_are(stage: Stage) -> None:
    (stage.home / "vault.key").rename(stage.home / "elsewhere")
    try:
        answer = stage.ben.http.put("/console/v1/secrets/mine", json={"value": "x"})
        assert answer.status_code >= 400
        stage.assert_silent(answer.text, "the vault")
        assert "PALYRA_HOME" in answer.json()["detail"]
        status, detail, _ = stage.ben.call(METHODS["SetSecret"], vault_pb2.SetSecretRequest(name="mine", value=b"x"))
        assert status != "OK"
        stage.assert_silent(detail, "the vault")
    finally:
        (stage.home / "elsewhere").rename(stage.home / "vault.key")


def test_a_tenant_sees_of_the_status_what_its_work_depends_on(stage: Stage) -> None:
    status: Json = stage.ben.http.get("/console/v1/status").json()
    assert status["version"]
    assert status["storage"] == "ok"
    assert {part["name"] for part in status["parts"]} == {"journal", "provider", "stop"}
    assert not any(part["detail"] for part in status["parts"])
    empty = ("pid", "home", "started_at", "engine", "schema", "workspace", "settings_hash", "grpc")
    assert [status[name] for name in empty] == [None] * len(empty)
    assert status["runs"] == status["tasks"] == status["counters"] == status["connections"] == {}
    for path in ("/admin/v1/status", "/metrics"):
        assert stage.ben.http.get(path).status_code == 403


def test_who_shows_no_token_learns_whether_it_works_and_nothing_else(stage: Stage) -> None:
    at = str(stage.ben.http.base_url).rstrip("/")
    assert httpx.get(f"{at}/healthz", verify=False).json() == {"status": "ok"}
    assert httpx.get(f"{at}/readyz", verify=False).json() == {"status": "ready"}
    health = stage.ben.channel.unary_unary(
        "/palyra.v1.GatewayService/GetHealth",
        request_serializer=gateway_pb2.GetHealthRequest.SerializeToString,
        response_deserializer=gateway_pb2.GetHealthResponse.FromString,
    )
    assert health(gateway_pb2.GetHealthRequest(), timeout=60) == gateway_pb2.GetHealthResponse(
        status="ok", protocol_version=1
    )


def test_the_owner_of_a_thing_gets_in(stage: Stage) -> None:
    """The tests above would pass if nobody ever got in."""
    for name in ("session_id", "run_id", "agent_id"):
        kind = name.removesuffix("_id") + "s"
        assert stage.ana.http.get(f"/console/v1/{kind}/{stage.ids[name]}").status_code == 200
    for name in ("GetAgent", "DeleteSecret"):
        assert stage.ana.call(METHODS[name], _request(METHODS[name], stage.ids)[0])[0] == "OK"


# -- requests made from what the doors say of themselves


def _names_something(operation: Json) -> bool:
    return any(parameter["in"] == "path" for parameter in operation["parameters"])


def _beginning(stage: Stage, path: str) -> str:
    heard = ""
    with suppress(httpx.ReadTimeout), stage.ben.http.stream("GET", path, timeout=BEGINNING_SECONDS) as stream:
        for piece in stream.iter_text():
            heard += piece
    return heard


def _try_route(stage: Stage, method: str, path: str, operation: Json, ids: dict[str, str]) -> httpx.Response:
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            assert parameter["name"] in ids, f"say in this test what stands for {parameter['name']}"
            path = path.replace("{" + parameter["name"] + "}", ids[parameter["name"]])
    query = {p["name"]: ids[p["name"]] for p in operation["parameters"] if p["in"] == "query" and p["name"] in ids}
    body = None
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = _value(stage.document, schema, "", ids)
    return stage.ben.http.request(method, path, params=query, json=body)


def _value(document: Json, schema: Json, name: str, ids: dict[str, str]) -> Json:
    """Make up a value that fits a schema; whatever is named like an id of ana's is hers."""
    if name in ids:
        return ids[name]
    if name == "session":
        return {"session_id": ids["session_id"]}
    if "$ref" in schema:
        return _value(document, document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], name, ids)
    if "anyOf" in schema:
        return _value(document, schema["anyOf"][0], name, ids)
    match schema.get("type"):
        case "object":
            wanted = set(schema.get("required", ())) | (set(schema.get("properties", ())) & {*ids, "session"})
            return {part: _value(document, schema["properties"][part], part, ids) for part in sorted(wanted)}
        case "array":
            return []
        case "integer":
            return 1
        case "boolean":
            return False
        case _:
            return schema["enum"][0] if "enum" in schema else "curious"


def _request(method: MethodDescriptor, ids: dict[str, str]) -> tuple[Message, bool]:
    message = GetMessageClass(method.input_type)()
    return message, any(list(_fill(message, ids, depth=0)))


def _fill(message: Message, ids: dict[str, str], *, depth: int) -> Iterator[bool]:
    """Set every field that is named like an id of ana's, and what a call needs to be taken seriously."""
    for field in message.DESCRIPTOR.fields:
        if field.name in ids:
            setattr(message, field.name, ids[field.name])
            yield True
        elif field.name == "protocol_version":
            setattr(message, field.name, 1)
        elif field.name in ("text", "name"):
            setattr(message, field.name, f"curious {next(_numbers)}")
        elif field.type == FieldDescriptor.TYPE_MESSAGE and not field.is_repeated and depth < 4:
            if field.containing_oneof is None or field.name == "start":
                part = getattr(message, field.name)
                part.SetInParent()
                yield from _fill(part, ids, depth=depth + 1)
