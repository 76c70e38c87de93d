"""What the HTTP door does not take: each has its status and a stable code, changes nothing, and gives nothing away."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import palyra
from tests.e2e.conftest import ENGINES
from tests.support.daemon import Daemon, Json, until
from tests.support.postgres import new_schema

KNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
"""An id as it should be, of something that does not exist."""
BAD_IDS = ("nonsense", KNOWN[:-1], KNOWN + "0", "8" + KNOWN[1:], KNOWN[:-1] + "U", KNOWN[:-1] + "%00", "%C3%BC" * 13)
SCRIPT = {
    "rules": [{"when": {"equals": "endless"}, "actions": [{"do": "endless", "text": "la ", "delay_ms": 50}]}],
    "default": [{"do": "text", "text": "You said: {input}"}],
}
NUL, HALF = "\\u0000", "\\ud800"
DEEP = 100_000
BODIES = {
    "PATCH /console/v1/sessions/{session_id}": {"title": "x"},
    "PUT /console/v1/agents/{agent_id}": {"name": "x"},
    "PUT /console/v1/sessions/{session_id}/agent": {"agent_id": KNOWN},
    "POST /console/v1/approvals/{approval_id}/resolve": {"decision": "deny"},
}
"""What an operation must be given before it looks at the id in its path."""


class Door:
    """A daemon with two sessions, in one of which a run has ended."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        accepted = daemon.send("Hello.", key="used", session={"key": "first", "label": "First"})
        self.run_id, self.session_id = accepted["run_id"], accepted["session_id"]
        self.other_id = daemon.post("/sessions/resolve", {"key": "second"})["session"]["session_id"]
        daemon.finished(self.run_id)
        until(lambda: daemon.get(f"/sessions/{self.session_id}")["session"]["title"])
        self.agent_id = daemon.get("/agents")["agents"][0]["agent_id"]
        self.client = httpx.Client(transport=httpx.HTTPTransport(verify=False), base_url=daemon.address)
        document = self.client.get("/openapi.json").json()
        needs_token = {
            f"{method.upper()} {path}": operation["security"] != []
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        }
        self.operations = [operation for operation, needed in needs_token.items() if needed]
        self.open_operations = {operation for operation, needed in needs_token.items() if not needed}

    def ask(self, request: str, *, body: object = None, raw: bytes | None = None, **rest: Any) -> httpx.Response:
        """Send a request with the owner's token; names in braces stand for ids."""
        method, _, path = request.partition(" ")
        content = raw if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.daemon.token}", **rest.pop("headers", {})}
        path = path.format(run=self.run_id, session=self.session_id, other=self.other_id, agent=self.agent_id)
        return self.ask_bare(method, f"/console/v1{path}", content=content, headers=headers, **rest)

    def ask_bare(self, method: str, path: str, **rest: Any) -> httpx.Response:
        """Send a request as it is, and see that the answer gives nothing away."""
        response = self.client.request(method, path, **rest)
        told = f"{response.text} {response.headers}"
        for secret in (self.daemon.token, str(Path(palyra.__file__).parent), "site-packages", "Traceback", 'File "'):
            assert secret not in told
        return response

    def refuses(self, status: int, code: str, response: httpx.Response) -> None:
        """Check that an answer is the problem document it should be."""
        assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
        problem = response.json()
        assert problem["code"] == code
        assert problem["status"] == status
        assert problem["type"] == f"urn:palyra:error:{code}"
        assert problem["detail"].strip()

    def state(self) -> Json:
        """Return all that a request could have changed."""
        with self.daemon.journal() as conn:
            heads = conn.fetch("SELECT session_id, tape_seq, hash FROM heads ORDER BY session_id")
            counts = [
                conn.fetch(f"SELECT COUNT(*) FROM {table}")
                for table in ("sessions", "runs", "messages", "idempotency", "tasks", "agents", "tokens")
            ]
        return heads, counts


@pytest.fixture(scope="module", params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    url = new_schema(request.getfixturevalue("postgres_server")) if request.param == "postgres" else None
    daemon = Daemon(
        folder / "home",
        database_url=url,
        model_provider="scripted",
        model_script=script,
        runs_max_queued_inputs=3,
        # A connection without a valid token is closed after this time, and many requests use one here.
        gateway_connect_timeout_seconds=600,
    )
    try:
        door = Door(daemon.start())
        with closing(door.client):
            yield door
        assert [line for line in daemon.log() if line["level"] == "error"] == []
    finally:
        daemon.close()


@pytest.fixture
def door(opened: Door) -> Iterator[Door]:
    """The door, behind which nothing may have changed when the test is over."""
    before = opened.state()
    yield opened
    assert opened.state() == before


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_malformed_id_in_the_path(door: Door, bad: str) -> None:
    for operation, request in with_ids(door, bad):
        # The ids of sealed values have a form of their own, and no other is told from one that is not there.
        status, code = (404, "sealed_secret_not_found") if "{sealed_id}" in operation else (400, "id_invalid")
        door.refuses(status, code, door.ask(request, body=BODIES.get(operation)))


def test_an_id_of_nothing(door: Door) -> None:
    for operation, request in with_ids(door, KNOWN):
        missing = operation.partition("{")[2].partition("_id}")[0]
        missing = {"checkpoint": "file_checkpoint", "sealed": "sealed_secret"}.get(missing, missing)
        door.refuses(404, f"{missing}_not_found", door.ask(request, body=BODIES.get(operation)))


@pytest.mark.parametrize(
    ("session", "status", "code"),
    [
        ({"session_id": "nonsense"}, 400, "id_invalid"),
        ({"session_id": ""}, 400, "id_invalid"),
        ({"session_id": KNOWN}, 404, "session_not_found"),
        ({"key": "nobody", "require_existing": True}, 404, "session_not_found"),
        ({"label": "nobody", "require_existing": True}, 404, "session_not_found"),
        ({"require_existing": True}, 404, "session_not_found"),
        ({"session_id": "{other}", "key": "first"}, 409, "session_reference_conflict"),
        ({"key": "first", "label": "Second"}, 409, "session_reference_conflict"),
        ({"key": ""}, 400, "session_name_invalid"),
        ({"key": " \t"}, 400, "session_name_invalid"),
        ({"key": "k" * 201}, 400, "session_name_invalid"),
        ({"label": "l" * 201}, 400, "session_name_invalid"),
        ({"key": "a\0b"}, 400, "text_invalid"),
        ({"label": "a\0b"}, 400, "text_invalid"),
        ({"key": 7}, 400, "request_invalid"),
        ({"key": ["first"]}, 400, "request_invalid"),
        ({"reset": "yes"}, 400, "request_invalid"),
        ({"principal": "user:other"}, 400, "request_invalid"),
        ("first", 400, "request_invalid"),
        (None, 400, "request_invalid"),
    ],
)
@pytest.mark.parametrize("route", ["POST /runs", "POST /chat", "POST /sessions/resolve"])
def test_a_session_that_can_not_be(door: Door, route: str, session: Json, status: int, code: str) -> None:
    if isinstance(session, dict) and session.get("session_id") == "{other}":
        session = {**session, "session_id": door.other_id}
    body = session if route.endswith("resolve") else {"text": "Hello.", "session": session}
    door.refuses(status, code, door.ask(route, body=body, raw=b"null" if body is None else None))


@pytest.mark.parametrize("route", ["POST /runs", "POST /chat"])
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({}, 400, "request_invalid"),
        ({"text": ""}, 400, "message_empty"),
        ({"text": " \n\t\u3000"}, 400, "message_empty"),
        ({"text": None}, 400, "request_invalid"),
        ({"text": 7}, 400, "request_invalid"),
        ({"text": ["Hello."]}, 400, "request_invalid"),
        ({"text": "a\0b"}, 400, "text_invalid"),
        ({"text": "a" * (256 * 1024 + 1)}, 413, "message_too_large"),
        ({"text": "ü" * (128 * 1024) + "!"}, 413, "message_too_large"),
        ({"text": "Hello.", "mode": "shout"}, 400, "request_invalid"),
        ({"text": "Hello.", "mode": 1}, 400, "request_invalid"),
        ({"text": "Hello.", "agent": "root"}, 400, "request_invalid"),
        ({"text": "Hello.", "principal": "user:other"}, 400, "request_invalid"),
        ({"text": "Hello.", "idempotency_key": ""}, 400, "idempotency_key_invalid"),
        ({"text": "Hello.", "idempotency_key": "k" * 201}, 400, "idempotency_key_invalid"),
        ({"text": "Hello.", "idempotency_key": "a\0b"}, 400, "text_invalid"),
        ({"text": "Hello.", "idempotency_key": 7}, 400, "request_invalid"),
        ({"text": "Hello.", "idempotency_key": "used"}, 409, "idempotency_key_conflict"),
    ],
)
def test_a_message_that_can_not_be(door: Door, route: str, fields: Json, status: int, code: str) -> None:
    door.refuses(status, code, door.ask(route, body=fields))


@pytest.mark.parametrize(
    ("header", "key", "code"),
    [
        ("one", "two", "request_invalid"),
        ("one", "", "request_invalid"),
        ("", None, "idempotency_key_invalid"),
        ("k" * 201, None, "idempotency_key_invalid"),
    ],
)
def test_an_idempotency_key_in_the_header(door: Door, header: str, key: str | None, code: str) -> None:
    body = {"text": "Hello.", "idempotency_key": key}
    door.refuses(400, code, door.ask("POST /runs", body=body, headers={"idempotency-key": header}))


@pytest.mark.parametrize("route", ["POST /runs", "POST /chat", "POST /sessions/resolve", "POST /runs/{run}/cancel"])
@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"Hello.",
        b'{"text": "Hello."',
        b'{"text": "Hello."} {}',
        b"{'text': 'Hello.'}",
        b'{"text": "\xff\xfe"}',
        b"\x80\x81",
        "{}".encode("utf-16"),
        f'{{"text": "{HALF}"}}'.encode(),
        f'{{"key": "{HALF}"}}'.encode(),
        f'{{"reason": "a{HALF}b"}}'.encode(),
        f'{{"text": "Hello.", "idempotency_key": "{HALF}"}}'.encode(),
        f'{{"text": "Hello.", "session": {{"key": "{HALF}"}}}}'.encode(),
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b'{"text":' + b"[" * DEEP,
        b'{"session":{"key":' + b"[" * DEEP,
        b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b"NaN",
        b'"Hello."',
        b"[]",
        b"7",
        b"null",
        b"9" * 10_000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_a_body_that_is_no_request(door: Door, route: str, raw: bytes) -> None:
    door.refuses(400, "request_invalid", door.ask(route, raw=raw))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "request_invalid"),
        ({"name": ""}, "agent_invalid"),
        ({"name": " "}, "agent_invalid"),
        ({"name": "n" * 81}, "agent_invalid"),
        ({"name": "a\0b"}, "text_invalid"),
        ({"name": "x", "instructions": "a\0b"}, "text_invalid"),
        ({"name": "x", "instructions": "i" * (32 * 1024 + 1)}, "agent_invalid"),
        ({"name": "x", "tools": ["files.raed"]}, "agent_invalid"),
        ({"name": "x", "tools": "files.read"}, "request_invalid"),
        ({"name": "x", "workspace_roots": ["/"]}, "agent_invalid"),
        ({"name": "x", "workspace_roots": ["a\0b"]}, "text_invalid"),
        ({"name": "x", "limits": {"model_turns": -1}}, "agent_invalid"),
        ({"name": "x", "limits": {"model_turns": 1.5}}, "request_invalid"),
        ({"name": "x", "limits": {"money": 1}}, "request_invalid"),
        ({"name": "x", "is_default": True}, "request_invalid"),
        ({"name": "x", "principal": "user:other"}, "request_invalid"),
    ],
)
def test_an_agent_that_can_not_be(door: Door, fields: Json, code: str) -> None:
    for request in ("POST /agents", "PUT /agents/{agent}"):
        door.refuses(400, code, door.ask(request, body=fields))


@pytest.mark.parametrize("title", ["", "  ", "t" * 121])
def test_a_title_that_can_not_be(door: Door, title: str) -> None:
    door.refuses(400, "session_name_invalid", door.ask("PATCH /sessions/{session}", body={"title": title}))


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (f'{{"title": "a{NUL}b"}}', "text_invalid"),
        (f'{{"title": "a{HALF}b"}}', "request_invalid"),
        ('{"title": 7}', "request_invalid"),
        ('{"title": "x", "key": "y"}', "request_invalid"),
        ("{}", "request_invalid"),
    ],
)
def test_a_title_that_is_no_text(door: Door, raw: str, code: str) -> None:
    door.refuses(400, code, door.ask("PATCH /sessions/{session}", raw=raw.encode()))


def test_a_reason_that_is_no_text(door: Door) -> None:
    door.refuses(400, "text_invalid", door.ask("POST /runs/{run}/cancel", body={"reason": "a\0b"}))


@pytest.mark.parametrize("route", ["POST /runs", "POST /chat", "POST /sessions/resolve", "PATCH /sessions/{session}"])
@pytest.mark.parametrize("size", [1024 * 1024 + 1, 8 * 1024 * 1024])
def test_a_body_that_is_too_large(door: Door, route: str, size: int) -> None:
    door.refuses(413, "request_too_large", door.ask(route, raw=b'{"text": "' + b"a" * size))


def test_a_body_that_is_too_large_and_does_not_say_so(door: Door) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 65536

    headers = {"authorization": f"Bearer {door.daemon.token}"}
    door.refuses(413, "request_too_large", door.ask_bare("POST", "/console/v1/runs", content=pieces(), headers=headers))


@pytest.mark.parametrize("of", ["runs/{run}", "sessions/{session}"])
@pytest.mark.parametrize("what", ["tape", "events"])
@pytest.mark.parametrize("bad", ["-1", "one", "", "1.0", "+1", " 1", "0x1", "1e3", "٣", "9" * 17, "9" * 5000, "1\0"])
def test_a_position_that_is_no_number(door: Door, of: str, what: str, bad: str) -> None:
    answer = door.ask(f"GET /{of}/{what}", params={"after_seq": bad})
    door.refuses(400, "request_invalid", answer)


@pytest.mark.parametrize("of", ["runs/{run}", "sessions/{session}"])
@pytest.mark.parametrize("what", ["tape", "events"])
@pytest.mark.parametrize("far", [1000, 10**16 - 1])
def test_a_position_beyond_the_end(door: Door, of: str, what: str, far: int) -> None:
    for answer in (
        door.ask(f"GET /{of}/{what}", params={"after_seq": far}),
        door.ask(f"GET /{of}/{what}", headers={"last-event-id": str(far)}),
    ):
        door.refuses(400, "offset_beyond_end", answer)


@pytest.mark.parametrize("of", ["runs/{run}", "sessions/{session}"])
@pytest.mark.parametrize("bad", ["one", "", "-1", "1.0", "9" * 17, "9" * 5000, "\xb2", "1 2"])
def test_a_last_event_id_that_is_none(door: Door, of: str, bad: str) -> None:
    headers = {
        b"authorization": f"Bearer {door.daemon.token}".encode(),
        b"last-event-id": bad.encode("latin-1"),
    }
    path = of.format(run=door.run_id, session=door.session_id)
    door.refuses(400, "request_invalid", door.ask_bare("GET", f"/console/v1/{path}/events", headers=headers))


@pytest.mark.parametrize("path", ["runs", "sessions", "approvals", "grants", "sealed"])
@pytest.mark.parametrize("bad", ["", "x", "1", "1-", "-1", f"1-{KNOWN}'", "1-\0", f"{'9' * 17}-{KNOWN}", "٣-A", "--"])
def test_a_cursor_that_is_none(door: Door, path: str, bad: str) -> None:
    door.refuses(400, "request_invalid", door.ask(f"GET /{path}", params={"cursor": bad}))


@pytest.mark.parametrize(
    ("route", "query", "code"),
    [
        ("GET /runs", {"limit": "many"}, "request_invalid"),
        ("GET /runs", {"limit": "-1"}, "request_invalid"),
        ("GET /runs", {"session_id": "nonsense"}, "id_invalid"),
        ("GET /sessions", {"limit": "9" * 17}, "request_invalid"),
        ("GET /sessions", {"archived": "maybe"}, "request_invalid"),
        ("GET /sessions/search", {}, "search_query_empty"),
        ("GET /sessions/search", {"q": "'\"\0!&|*"}, "search_query_empty"),
        ("GET /sessions/{session}/export", {"format": "pdf"}, "request_invalid"),
        ("GET /sessions/{session}/messages", {"cursor": "yesterday"}, "request_invalid"),
    ],
)
def test_a_question_that_makes_no_sense(door: Door, route: str, query: dict[str, object], code: str) -> None:
    door.refuses(400, code, door.ask(route, params=query))


@pytest.mark.parametrize(
    "words",
    [
        "hello",
        "Hello AND",
        "hello OR 1=1",
        '"hello',
        "hello'",
        "hel*",
        "a:*|b",
        "NEAR(hello",
        "hello\0",
        "ü" * 1000,
        "\\",
    ],
)
def test_a_search_for_anything_is_a_search(door: Door, words: str) -> None:
    answer = door.ask("GET /sessions/search", params={"q": words})
    assert answer.status_code == 200 or answer.json()["code"] == "search_query_empty"


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer palyra_{token}",
        "Bearer {token}x",
        "Bearer {token} more",
        "Basic {token}",
        "Token {token}",
        "{token}",
        "Bearer \xff",
    ],
)
def test_nobody_gets_in_without_a_token(door: Door, given: str | None) -> None:
    token = door.daemon.token
    headers = {} if given is None else {b"authorization": given.format(token=token).encode("latin-1")}
    assert len(door.operations) > 25
    assert door.open_operations == {"GET /healthz", "GET /readyz", "GET /openapi.json"}
    for operation in door.operations:
        method, _, path = operation.partition(" ")
        response = door.ask_bare(
            method,
            filled(path, KNOWN),
            # A token in the address would end up in logs and histories, so it counts for nothing there.
            params={"token": token, "access_token": token},
            headers=headers,
            content=b'{"text": "Hello."}',
        )
        if path.startswith("/v1/"):
            # Programs that speak to OpenAI read its errors.
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        else:
            door.refuses(401, "unauthenticated", response)
        assert response.headers["www-authenticate"] == "Bearer"


def test_the_scheme_may_be_written_in_any_case(door: Door) -> None:
    headers = {"authorization": f"bEARER   {door.daemon.token}"}
    assert door.ask_bare("GET", "/console/v1/status", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/console", "/console/v1", "/console/v1/", "/console/v1/runs/", "/nothing", "/healthz/"]
)
def test_an_address_where_nothing_is(door: Door, path: str) -> None:
    door.refuses(404, "route_not_found", door.ask_bare("GET", path))


@pytest.mark.parametrize(
    ("request_line", "allowed"),
    [
        ("DELETE /runs", {"GET", "HEAD", "POST"}),
        ("OPTIONS /runs", {"GET", "HEAD", "POST"}),
        ("GET /chat", {"POST"}),
        ("PUT /sessions/{session}", {"GET", "HEAD", "PATCH"}),
        ("POST /status", {"GET", "HEAD"}),
        ("TRACE /status", {"GET", "HEAD"}),
        ("GET /runs/{run}/cancel", {"POST"}),
    ],
)
def test_a_method_that_is_not_taken(door: Door, request_line: str, allowed: set[str]) -> None:
    response = door.ask(request_line)
    door.refuses(405, "method_not_allowed", response)
    assert {method.strip() for method in response.headers["allow"].split(",")} == allowed


@pytest.mark.parametrize("path", ["/status", "/runs", "/sessions/{session}", "/runs/{run}/tape"])
def test_head_is_get_without_a_body(door: Door, path: str) -> None:
    head = door.ask(f"HEAD {path}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == "application/json"


def test_head_of_a_stream_ends_at_once(door: Door) -> None:
    with connection_to(door) as line:
        line.sendall(request_of(door, "HEAD", f"/sessions/{door.session_id}/events"))
        line.sendall(request_of(door, "GET", "/status"))
        received = receive_until(line, lambda data: b'"version"' in data)
    first, _, second = received.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200")
    assert b"text/event-stream" in first
    assert second.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /console/v1/runs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: a\0b\r\n\r\n",
    ],
    ids=lambda said: repr(said[:24]),
)
def test_what_is_no_http(door: Door, said: bytes) -> None:
    with connection_to(door) as line:
        line.sendall(said)
        answer = receive_until(line, lambda data: False)
    assert answer == b"" or answer.split(b" ")[1][:1] == b"4"
    assert door.daemon.token.encode() not in answer
    assert door.ask("GET /status").status_code == 200


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"GET /", b"a" * 65536),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: ", b"a" * 65536),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"x: a\r\n" * 10_000),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n", b"x: a\r\n" * 10_000),
    ],
)
def test_a_head_without_end_is_cut_off(door: Door, head: bytes, piece: bytes) -> None:
    with connection_to(door) as line:
        line.sendall(head)
        # Whoever goes on sending is not listened to any more, and may not even hear the answer.
        with suppress(ConnectionError):
            send_again_and_again(line, piece)
        answer = receive_until(line, lambda data: b"64 KiB" in data)
    assert b"HTTP/1.1 413" in answer or not answer
    assert door.ask("GET /status").status_code == 200


def test_trailers_without_end_are_cut_off(door: Door) -> None:
    head = request_of(door, "POST", "/runs").replace(b"content-length: 0", b"transfer-encoding: chunked")
    with connection_to(door) as line:
        line.sendall(head + b"1\r\n{\r\n0\r\n")
        with pytest.raises(ConnectionError):
            send_again_and_again(line, b"x: a\r\n" * 10_000)


def test_a_long_head_is_a_head(door: Door) -> None:
    assert door.ask("GET /status", headers={"x-long": "a" * 32_000}).status_code == 200


def test_a_client_that_vanishes_in_the_middle_of_its_request(door: Door) -> None:
    whole = request_of(door, "POST", "/runs", b'{"text": "Hello."}')
    for cut in (5, len(whole) - 30, len(whole) - 5, len(whole) - 1):
        with connection_to(door) as line:
            line.sendall(whole[:cut])
    assert door.ask("GET /status").status_code == 200


def test_a_message_at_the_limit_is_taken(opened: Door) -> None:
    text = "ü" * (128 * 1024)
    accepted = opened.daemon.send(text)
    assert opened.daemon.finished(accepted["run_id"])["status"] == "done"
    assert opened.daemon.tape(f"/runs/{accepted['run_id']}")[0].event["text"] == text


def test_a_full_queue_says_when_to_come_back(opened: Door) -> None:
    session = {"key": "busy"}
    active = opened.daemon.send("endless", session=session)
    queued = [opened.daemon.send(f"{number}", session=session) for number in range(3)]
    # The active run goes on writing, so its tape moves; what a refused request could have added is counted.
    _, before = opened.state()
    response = opened.ask("POST /runs", body={"text": "one more", "session": session, "idempotency_key": "more"})
    opened.refuses(429, "run_queue_full", response)
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["retry_after"] > 0
    _, after = opened.state()
    assert after == before
    # The refusal is not kept under the key: the same request may succeed later.
    opened.daemon.post(f"/runs/{active['run_id']}/cancel")
    for each in queued:
        assert opened.daemon.finished(each["run_id"])["status"] == "done"
    later = opened.daemon.send("one more", key="more", session=session)
    assert opened.daemon.finished(later["run_id"])["status"] == "done"


def test_a_session_that_is_busy_or_put_away(opened: Door) -> None:
    run = opened.daemon.send("endless", session={"key": "put away"})
    one = f"/sessions/{run['session_id']}"
    for verb in ("archive", "reset"):
        opened.refuses(409, "session_busy", opened.ask(f"POST {one}/{verb}"))
    opened.daemon.post(f"/runs/{run['run_id']}/cancel")
    opened.daemon.finished(run["run_id"])
    opened.daemon.post(f"{one}/archive")
    before = opened.state()
    body = {"text": "Hello.", "session": {"session_id": run["session_id"]}}
    opened.refuses(409, "session_archived", opened.ask("POST /runs", body=body))
    assert opened.state() == before


def with_ids(door: Door, item_id: str) -> list[tuple[str, str]]:
    """Return every operation of the console that takes an id in its path, as it is written and as it is asked."""
    return [
        (operation, filled(operation, item_id).replace("/console/v1", ""))
        for operation in door.operations
        if "_id}" in operation and "/console/v1" in operation
    ]


def filled(path: str, item_id: str) -> str:
    """Put an id in the place of the one that a path asks for."""
    head, brace, rest = path.partition("{")
    return head + item_id + rest.partition("}")[2] if brace else path


def connection_to(door: Door) -> socket.socket:
    address = urlsplit(door.daemon.address)
    line = socket.create_connection((address.hostname, address.port), timeout=60)
    line.settimeout(5)
    return line


def request_of(door: Door, method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} /console/v1{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {door.daemon.token}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def send_again_and_again(line: socket.socket, piece: bytes) -> None:
    for _ in range(100):
        line.sendall(piece)


def receive_until(line: socket.socket, enough: Callable[[bytes], bool]) -> bytes:
    received = b""
    try:
        while not enough(received) and (piece := line.recv(65536)):
            received += piece
    except ConnectionResetError:
        pass
    return received
