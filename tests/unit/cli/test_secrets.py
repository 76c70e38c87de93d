"""`palyra secrets`: the value from stdin or a prompt, never from an argument, and never shown."""

import io
import json
import sys
from datetime import UTC, datetime

import pytest

from palyra.gateway.grpc.pb import gateway_pb2, vault_pb2
from palyra.home import Home
from tests.unit.cli.door import Cli, Door

VALUE = "hunter2-hunter2"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AGENT_ID = "01JGKK8F5E000000000000000A"


class Stdin(io.TextIOWrapper):
    """What is piped in, or typed."""

    def __init__(self, data: bytes, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def a_secret(name: str = "github", **scope: object) -> vault_pb2.Secret:
    wanted = vault_pb2.SecretScope(**{"header": "Authorization", "format": "Bearer {}", **scope})  # type: ignore[arg-type]
    return vault_pb2.Secret(name=name, principal="user:owner", version=1, scope=wanted, created_at=AT, updated_at=AT)


@pytest.fixture(autouse=True)
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(f"{VALUE}\n".encode()))


def test_the_value_is_read_from_stdin_without_its_last_line_break(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("SetSecret", vault_pb2.SetSecretResponse(secret=a_secret()))
    result = cli("secrets", "set", "github")

    (asked,) = door.called("SetSecret")
    assert (asked.name, asked.value, list(asked.scope.hosts)) == ("github", VALUE.encode(), [])
    assert (result.code, result.err) == (0, "")
    assert result.out == "Stored github, for the configuration (vault:github).\n"


@pytest.mark.parametrize(
    ("data", "flags", "value"),
    [
        (b"a\0b\xff\r\n", (), b"a\0b\xff"),
        (b"one\ntwo\n\n", (), b"one\ntwo\n"),
        (b"key\n", ("--keep-newline",), b"key\n"),
    ],
)
def test_any_bytes_may_be_piped_in(
    cli: Cli, inhabited: Home, door: Door, monkeypatch: pytest.MonkeyPatch, data: bytes, flags: tuple[str], value: bytes
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    door.tells("SetSecret", vault_pb2.SetSecretResponse(secret=a_secret()))
    assert cli("secrets", "set", "key", *flags).code == 0
    assert door.called("SetSecret")[0].value == value


def test_at_a_terminal_the_value_is_asked_for_and_not_shown(
    cli: Cli, inhabited: Home, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"", terminal=True))
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda prompt: VALUE)
    door.tells("SetSecret", vault_pb2.SetSecretResponse(secret=a_secret()))
    result = cli("secrets", "set", "github")
    assert door.called("SetSecret")[0].value == VALUE.encode()
    assert VALUE not in result.out + result.err


@pytest.mark.parametrize("args", [("github", VALUE), ("github", VALUE, "more"), ("github", "--", "--value")])
def test_a_value_on_the_command_line_is_refused_with_the_reason(
    cli: Cli, inhabited: Home, door: Door, args: tuple[str, ...]
) -> None:
    result = cli("secrets", "set", *args)
    assert (result.code, result.out) == (2, "")
    assert "Other programs can see a value on the command line" in result.err
    assert "[secret_in_arguments]" in result.err
    assert VALUE not in result.err
    assert door.called("SetSecret") == []


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("a b",), "secret_name_invalid"),
        (("x", "--host", "https://a.org"), "secret_scope_invalid"),
        (("x", "--format", "nothing"), "secret_scope_invalid"),
        (("x", "--header", "Host"), "secret_scope_invalid"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    cli: Cli, inhabited: Home, door: Door, args: tuple[str, ...], code: str
) -> None:
    result = cli("secrets", "set", *args)
    assert result.code == 2
    assert f"[{code}]" in result.err
    assert door.called("SetSecret") == []


@pytest.mark.parametrize("data", [b"", b"\n", b"x" * 65_537])
def test_a_value_that_is_empty_or_too_long_is_not_sent(
    cli: Cli, inhabited: Home, door: Door, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    result = cli("secrets", "set", "github")
    assert (result.code, result.out) == (2, "")
    assert door.called("SetSecret") == []


def test_what_it_may_be_used_for_is_handed_on(cli: Cli, inhabited: Home, door: Door) -> None:
    agent = gateway_pb2.Agent(agent_id=AGENT_ID, principal="user:owner", name="scout")
    door.tells("ListAgents", gateway_pb2.ListAgentsResponse(agents=[agent]))
    kept = a_secret(hosts=["api.example.org"], header="X-Key", format="{}", agents=[AGENT_ID], tools=["http.fetch"])
    door.tells("SetSecret", vault_pb2.SetSecretResponse(secret=kept))
    options = ("--host", "API.example.org", "--header", "X-Key", "--format", "{}", "--agent", "scout")
    result = cli("secrets", "set", "key", *options, "--tool", "http.fetch")

    scope = door.called("SetSecret")[0].scope
    assert (list(scope.hosts), scope.header, scope.format) == (["api.example.org"], "X-Key", "{}")
    assert (list(scope.agents), list(scope.tools)) == ([AGENT_ID], ["http.fetch"])
    assert result.out.startswith("Stored github, sent to api.example.org as X-Key: {}")


@pytest.mark.parametrize("args", [("secrets",), ("secrets", "list")])
def test_the_list_says_what_each_is_for_and_when_it_was_used(
    cli: Cli, inhabited: Home, door: Door, args: tuple[str, ...]
) -> None:
    sent = a_secret("mail", hosts=["mail.example.org"])
    sent.last_used_at.FromDatetime(AT)
    door.tells("ListSecrets", vault_pb2.ListSecretsResponse(secrets=[a_secret(), sent]))
    lines = cli(*args).out.splitlines()
    assert lines[0].split() == ["NAME", "PURPOSE", "SET", "LAST", "USED"]
    assert lines[1].endswith("never")
    assert "sent to mail.example.org as Authorization: Bearer {}" in lines[2]


def test_an_empty_list_says_how_to_fill_it(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("ListSecrets", vault_pb2.ListSecretsResponse())
    assert "palyra secrets set NAME" in cli("secrets").out


def test_programs_get_json(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("ListSecrets", vault_pb2.ListSecretsResponse(secrets=[a_secret()]))
    (listed,) = json.loads(cli("secrets", "--json").out)["secrets"]
    assert (listed["name"], listed["version"], listed["last_used_at"]) == ("github", 1, None)
    assert "value" not in listed

    door.tells("SetSecret", vault_pb2.SetSecretResponse(secret=a_secret()))
    assert json.loads(cli("secrets", "set", "github", "--json").out)["secret"]["name"] == "github"
    door.tells("DeleteSecret", vault_pb2.DeleteSecretResponse())
    assert json.loads(cli("secrets", "delete", "github", "--json").out) == {"deleted": "github"}
    assert door.called("DeleteSecret")[0].secret_name == "github"


# -- secrets that were found in texts


def test_sealed_secrets_are_listed_with_where_they_came_from(cli: Cli, inhabited: Home, door: Door) -> None:
    sealed = vault_pb2.Sealed(sealed_id="a" * 16, origins=["file:/home/ana/.env", "message", "call:0123"])
    sealed.created_at.FromDatetime(AT)
    door.tells("ListSealed", vault_pb2.ListSealedResponse(sealed=[sealed]))
    assert cli("secrets", "sealed").out.splitlines()[1].split(maxsplit=3)[-1] == (
        "/home/ana/.env, message, call arguments"
    )
    (listed,) = json.loads(cli("secrets", "sealed", "--json").out)["sealed"]
    assert (listed["sealed_id"], "value" in listed) == ("a" * 16, False)


def test_an_empty_list_of_sealed_secrets_says_so(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("ListSealed", vault_pb2.ListSealedResponse())
    assert "No sealed secrets" in cli("secrets", "sealed").out


@pytest.mark.parametrize("name", ["a" * 16, f"[sealed:{'a' * 16}]"])
def test_a_marker_is_revealed_and_deleted_by_its_id(cli: Cli, inhabited: Home, door: Door, name: str) -> None:
    door.tells("RevealSealed", vault_pb2.RevealSealedResponse(value="first\nsecond\x1b[2J"))
    assert cli("secrets", "sealed", "reveal", name).out == "first\nsecond⟨ESC⟩[2J\n"
    assert door.called("RevealSealed")[0].sealed_id == "a" * 16
    door.tells("DeleteSealed", vault_pb2.DeleteSealedResponse())
    assert json.loads(cli("secrets", "sealed", "delete", name, "--json").out) == {"deleted": "a" * 16}
    assert door.called("DeleteSealed")[0].sealed_id == "a" * 16
