"""`palyra tokens`: the secret once, the list without it, and no token sawn off that one sits on."""

import json

import pytest

from palyra.home import Home
from tests.unit.cli.door import Cli, Door, problem

TOKEN_ID = "01JGKK8F5E000000000000000T"
OTHER_ID = "01JGKK8F5E000000000000000U"
SECRET = "palyra_" + "x" * 43
AT = "/admin/v1/tokens"


def a_token(**changes: object) -> dict[str, object]:
    token = {
        "token_id": TOKEN_ID,
        "principal": "user:ben",
        "name": "phone",
        "scopes": ["read", "write"],
        "created_at": "2026-01-02T03:04:05Z",
        "expires_at": None,
        "revoked_at": None,
        "current": False,
    }
    return token | changes


def test_the_list_shows_what_each_token_is_for(cli: Cli, inhabited: Home, door: Door) -> None:
    mine = a_token(token_id=OTHER_ID, name="laptop", principal="user:owner", current=True)
    door.says("GET", AT, {"tokens": [a_token(), mine], "next_cursor": None})
    for args in (("tokens",), ("tokens", "list")):
        lines = cli(*args).out.splitlines()
        assert lines[0].split() == ["TOKEN", "PRINCIPAL", "SCOPES", "CREATED", "EXPIRES", "NAME"]
        assert [word in lines[1] for word in (TOKEN_ID, "user:ben", "read,write", "never", "phone")] == [True] * 5
        assert lines[2].endswith("laptop (in use here)")


def test_the_list_of_one_principal_is_asked_for(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("GET", AT, {"tokens": [], "next_cursor": None})
    assert cli("tokens", "list", "--principal", "user:ben").out == "No tokens.\n"
    assert door.asked("GET", AT)[0].query == {"principal": "user:ben", "limit": "100"}


def test_the_secret_alone_goes_to_stdout(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", AT, {"token": a_token(), "secret": SECRET}, status=201)
    result = cli("tokens", "create", "phone", "--principal", "user:ben")
    assert (result.code, result.out) == (0, f"{SECRET}\n")
    assert "shown only once" in result.err
    assert TOKEN_ID in result.err
    assert door.asked("POST", AT)[0].body == {
        "name": "phone",
        "principal": "user:ben",
        "scopes": ["read", "write"],
        "expires_in_seconds": None,
    }


def test_scopes_and_a_life_are_handed_on(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", AT, {"token": a_token(), "secret": SECRET}, status=201)
    result = cli("tokens", "create", "watch", "--scope", "read", "--scope", "admin", "--expires", "12h", "--json")
    assert json.loads(result.out)["secret"] == SECRET
    body = door.asked("POST", AT)[0].body
    assert (body["scopes"], body["expires_in_seconds"]) == (["read", "admin"], 43_200)


@pytest.mark.parametrize("life", ["soon", "12", "1y", "-1h", "", "1h1m"])
def test_a_life_that_is_no_time_is_refused(cli: Cli, inhabited: Home, door: Door, life: str) -> None:
    result = cli("tokens", "create", "x", "--expires", life)
    assert (result.code, door.seen) == (2, [])
    assert "such as 12h or 30d" in result.err


def test_a_token_is_revoked(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("GET", AT, {"tokens": [a_token()], "next_cursor": None})
    door.says("POST", f"{AT}/{TOKEN_ID}/revoke", {"token": a_token(revoked_at="2026-01-02T03:04:05Z")})
    result = cli("tokens", "revoke", TOKEN_ID.lower())
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{TOKEN_ID} (phone of user:ben): revoked.\n"


def test_the_token_in_use_is_revoked_only_when_said_twice(cli: Cli, inhabited: Home, door: Door) -> None:
    mine = a_token(current=True)
    door.says("GET", AT, {"tokens": [a_token(token_id=OTHER_ID)], "next_cursor": OTHER_ID})
    door.says("GET", AT, {"tokens": [mine], "next_cursor": None})
    door.says("POST", f"{AT}/{TOKEN_ID}/revoke", {"token": mine})

    refused = cli("tokens", "revoke", TOKEN_ID)
    assert refused.code == 2
    assert "[token_in_use]" in refused.err
    assert door.asked("POST", f"{AT}/{TOKEN_ID}/revoke") == []

    done = cli("tokens", "revoke", TOKEN_ID, "--yes")
    assert done.code == 0
    assert "palyra restart" in done.err


@pytest.mark.parametrize("wrong", ["x", "../status", f"{TOKEN_ID}/x"])
def test_what_is_no_id_is_not_sent(cli: Cli, inhabited: Home, door: Door, wrong: str) -> None:
    result = cli("tokens", "revoke", wrong)
    assert (result.code, door.seen) == (2, [])
    assert "not a valid token id" in result.err


def test_a_refusal_of_the_daemon_is_told(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", AT, problem("token_scope_missing", "Your token lacks the scope 'admin'.", status=403))
    result = cli("tokens", "create", "x", "--principal", "user:ben")
    assert (result.code, result.out) == (1, "")
    assert result.err == "palyra: Your token lacks the scope 'admin'. [token_scope_missing]\n"
