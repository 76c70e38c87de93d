"""Tokens and settings over HTTP: the application as it is, over a journal in a file."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from palyra.config import SettingsReload, settings_hash
from palyra.core.clock import to_ms
from palyra.core.ids import PrincipalId, TokenId
from palyra.core.token import TokenScope
from palyra.gateway.allowed_hosts import AllowedHosts
from palyra.gateway.auth import Auth
from palyra.gateway.http import app
from palyra.gateway.http.routes.config import ConfigRoutes
from palyra.gateway.http.routes.tokens import TokenRoutes
from palyra.gateway.rate_limit import RateLimiter
from palyra.journal import migrate
from palyra.journal.engines.base import Connection
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.stores import tokens
from palyra.journal.stores.tokens import TokenRecord
from palyra.runs.services.tokens import TokenService
from palyra.settings import JournalSettings, Settings, SettingsInvalid
from tests.support.builders import ANA
from tests.support.clock import FakeClock
from tests.support.world import BEN, CountedIds

OWNER = PrincipalId("user:owner")


class Door:
    """The application, and a way in for each of a few tokens."""

    def __init__(self, engine: SqliteEngine, clock: FakeClock) -> None:
        self.limits = (1000, 1000)
        self.settings = Settings(journal=JournalSettings(database_url="postgresql://palyra:s3cret@db/palyra"))
        self.reloaded: SettingsReload | Exception = SettingsReload(self.settings, (), ())
        auth = Auth(engine, clock=clock, rate=RateLimiter(clock, lambda: self.limits))
        ids = CountedIds()
        operations = [
            *TokenRoutes(auth, TokenService(engine, clock=clock, ids=ids)).operations(),
            *ConfigRoutes(lambda: self.settings, self._reload).operations(),
        ]
        transport = httpx.ASGITransport(
            app.build(operations, auth=auth, hosts=AllowedHosts(["door"]), ready=lambda: None)
        )
        self.client = httpx.AsyncClient(transport=transport, base_url="http://door")
        self.ids = ids

    async def ask(self, secret: str, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {secret}"}
        return await self.client.request(method, f"/admin/v1{path}", json=body, headers=headers)

    async def _reload(self) -> SettingsReload:
        if isinstance(self.reloaded, Exception):
            raise self.reloaded
        return self.reloaded


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    clock = FakeClock()
    engine = SqliteEngine(tmp_path / "journal.db")
    door = Door(engine, clock)
    known = {
        "root": (OWNER, frozenset(TokenScope)),
        "ana": (ANA, frozenset({TokenScope.READ, TokenScope.WRITE})),
        "reader": (ANA, frozenset({TokenScope.READ})),
    }

    def unit(conn: Connection) -> None:
        migrate.migrate(conn, now_ms=1)
        for secret, (principal, scopes) in known.items():
            record = TokenRecord(TokenId(door.ids.new()), principal, secret, to_ms(clock.now()), scopes)
            tokens.insert(conn, record, secret)

    await engine.write(unit)
    yield door
    await door.client.aclose()
    await engine.close()


async def test_a_token_is_made_used_listed_and_revoked(door: Door) -> None:
    made = await door.ask("root", "POST", "/tokens", {"name": "phone", "principal": BEN, "expires_in_seconds": 60})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    token, secret = made.json()["token"], made.json()["secret"]
    assert (token["principal"], token["scopes"], token["current"]) == (BEN, ["read", "write"], False)
    assert token["expires_at"] == "2026-01-02T03:05:05.678000Z"

    own = (await door.ask(secret, "GET", "/tokens")).json()["tokens"]
    assert own == [token | {"current": True}]
    assert secret not in (await door.ask("root", "GET", "/tokens")).text

    gone = await door.ask("root", "POST", f"/tokens/{token['token_id']}/revoke")
    assert (gone.status_code, gone.json()["token"]["revoked_at"]) == (200, "2026-01-02T03:04:05.678000Z")
    assert (await door.ask(secret, "GET", "/tokens")).status_code == 401


async def test_the_list_goes_page_by_page(door: Door) -> None:
    first = (await door.ask("root", "GET", "/tokens?limit=2")).json()
    second = (await door.ask("root", "GET", f"/tokens?limit=2&cursor={first['next_cursor']}")).json()
    assert [token["name"] for token in first["tokens"] + second["tokens"]] == ["reader", "ana", "root"]
    assert second["next_cursor"] is None
    assert [t["name"] for t in (await door.ask("root", "GET", f"/tokens?principal={ANA}")).json()["tokens"]] == [
        "reader",
        "ana",
    ]


@pytest.mark.parametrize(
    ("secret", "method", "path", "body", "code"),
    [
        ("ana", "POST", "/tokens", {"name": "x", "principal": "user:ben"}, "token_scope_missing"),
        ("ana", "POST", "/tokens", {"name": "x", "scopes": ["admin"]}, "token_scope_exceeded"),
        ("ana", "GET", "/tokens?principal=user:owner", None, "token_scope_missing"),
        ("reader", "POST", "/tokens", {"name": "x", "scopes": ["read"]}, "token_scope_missing"),
        ("reader", "POST", "/tokens/01JGKK8F5E000000000000000T/revoke", None, "token_scope_missing"),
        ("ana", "GET", "/config", None, "token_scope_missing"),
        ("ana", "POST", "/config/reload", None, "token_scope_missing"),
    ],
)
async def test_what_a_token_does_not_allow_is_denied(
    door: Door, secret: str, method: str, path: str, body: Any, code: str
) -> None:
    answer = await door.ask(secret, method, path, body)
    assert (answer.status_code, answer.json()["code"]) == (403, code)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "x", "scopes": ["root"]}, "request_invalid"),
        ({"name": "x", "expires_in_seconds": 0}, "request_invalid"),
        ({"name": "x", "secret": "mine"}, "request_invalid"),
        ({}, "request_invalid"),
        ({"name": "x", "principal": "system:scheduler"}, "token_request_invalid"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(door: Door, body: Any, code: str) -> None:
    answer = await door.ask("root", "POST", "/tokens", body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


async def test_the_token_of_another_can_not_be_told_from_none(door: Door) -> None:
    listed = (await door.ask("root", "GET", f"/tokens?principal={OWNER}")).json()["tokens"]
    answers = [
        await door.ask("ana", "POST", f"/tokens/{token_id}/revoke")
        for token_id in (listed[0]["token_id"], "01JGKK8F5E000000000000000T")
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text == answers[1].text


async def test_requests_that_come_too_fast_are_told_when_to_come_again(door: Door) -> None:
    door.limits = (2, 1)
    answers = [await door.ask("ana", "GET", "/tokens") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["code"] == "request_rate_exceeded"
    assert (answers[1].json()["retry_after"], answers[1].headers["retry-after"]) == (0.5, "1")
    assert (await door.ask("root", "GET", "/tokens")).status_code == 200


async def test_the_settings_in_force_are_shown_without_their_secrets(door: Door) -> None:
    answer = await door.ask("root", "GET", "/config")
    assert answer.json()["hash"] == settings_hash(door.settings)
    assert answer.json()["values"]["journal.database_url"] == "postgresql://palyra:***@db/palyra"
    assert answer.json()["values"]["gateway.max_streams"] == 2048
    assert "s3cret" not in answer.text


async def test_a_reload_says_what_changed(door: Door) -> None:
    door.reloaded = SettingsReload(door.settings, ("limits.tool_timeout_ms",), ("http.port",))
    answer = await door.ask("root", "POST", "/config/reload")
    assert answer.json() == {
        "hash": settings_hash(door.settings),
        "live": ["limits.tool_timeout_ms"],
        "restart": ["http.port"],
    }


async def test_a_reload_of_wrong_settings_says_what_is_wrong(door: Door) -> None:
    door.reloaded = SettingsInvalid("config.toml: unknown section [modell].")
    answer = await door.ask("root", "POST", "/config/reload")
    assert (answer.status_code, answer.json()["code"]) == (400, "settings_invalid")
