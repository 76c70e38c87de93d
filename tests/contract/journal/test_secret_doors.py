"""The vault's doors: what goes in comes out for its use alone, and trouble with the key is said in words."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from palyra.core.agent import Agent, AgentNotFound
from palyra.core.errors import PalyraError
from palyra.core.ids import AgentId, PrincipalId
from palyra.core.secret import SecretNameInvalid, SecretScope, SecretValueInvalid
from palyra.journal.engines.base import Engine
from palyra.journal.stores import agents
from palyra.journal.vault import secrets
from palyra.journal.vault.vault_key import SecretDamaged, VaultKeyMismatch, VaultKeyMissing, VaultKeySource
from palyra.runs.services.secrets import (
    MAX_SECRETS,
    AgentCredentials,
    HeaderInUse,
    SecretLimitReached,
    SecretNotFound,
    SecretService,
    UsedSecrets,
)
from tests.contract.database import Database, SqliteDatabase
from tests.contract.journal.builders import BEN, an_id
from tests.support.builders import ANA
from tests.support.clock import FakeClock

VALUE = b"ghp-hunter2-hunter2"
HOST = "api.example.org"
SENT = SecretScope(hosts=(HOST,))
ONE, OTHER = AgentId(an_id(1)), AgentId(an_id(2))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class KeyFile:
    """The vault's key, which may be lost, exchanged and put back."""

    def __init__(self, path: Path) -> None:
        self.place = VaultKeySource(path)
        self._path = path

    @property
    def text(self) -> str | None:
        return self._path.read_text().strip() if self._path.exists() else None

    @property
    def mode(self) -> int:
        return self._path.stat().st_mode & 0o777

    def lose(self) -> None:
        self._path.unlink()

    def put(self, text: str | None) -> None:
        self._path.write_text(f"{text}\n")


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "vault.key")


@pytest.fixture
def used() -> UsedSecrets:
    return UsedSecrets()


@pytest.fixture
def doors(engine: Engine, key_file: KeyFile, clock: FakeClock, used: UsedSecrets) -> SecretService:
    return SecretService(engine, key_file.place, clock=clock, used=used)


async def an_agent(engine: Engine, agent_id: AgentId, principal: PrincipalId = ANA) -> None:
    agent = Agent(agent_id=agent_id, principal=principal, name=agent_id, instructions="")
    await engine.write(lambda conn: agents.put(conn, agent))


# -- in and out


async def test_a_secret_is_kept_listed_and_used(doors: SecretService) -> None:
    made = await doors.set(ANA, "github", VALUE, SENT)

    assert (made.name, made.version, made.scope.hosts) == ("github", 1, (HOST,))
    assert await doors.list(ANA) == [made]
    assert (await doors.value_of(ANA, "github")).reveal() == VALUE
    assert await doors.credentials_for(ANA, ONE, HOST) == {"Authorization": f"Bearer {VALUE.decode()}"}


async def test_any_bytes_come_out_as_they_went_in(doors: SecretService) -> None:
    for value in (b"\0", b"\xff\xfe\0\n", b"x" * 65_536):
        await doors.set(ANA, "raw", value)
        assert (await doors.value_of(ANA, "raw")).reveal() == value


async def test_setting_it_again_makes_another_version(doors: SecretService, clock: FakeClock) -> None:
    first = await doors.set(ANA, "github", VALUE)
    clock.advance(timedelta(seconds=5))
    second = await doors.set(ANA, "github", b"another value")

    assert (second.version, second.created_at) == (2, first.created_at)
    assert second.updated_at > first.updated_at
    assert (await doors.value_of(ANA, "github")).reveal() == b"another value"


async def test_what_is_deleted_is_gone(doors: SecretService) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    await doors.delete(ANA, "github")

    assert await doors.list(ANA) == []
    assert await doors.credentials_for(ANA, ONE, HOST) == {}
    for attempt in (doors.delete(ANA, "github"), doors.value_of(ANA, "github")):
        with pytest.raises(SecretNotFound):
            await attempt


async def test_nobody_has_anything_of_another(doors: SecretService) -> None:
    await doors.set(ANA, "github", VALUE, SENT)

    assert await doors.list(BEN) == []
    assert await doors.credentials_for(BEN, ONE, HOST) == {}
    for attempt in (doors.delete(BEN, "github"), doors.value_of(BEN, "github")):
        with pytest.raises(SecretNotFound):
            await attempt
    assert (await doors.value_of(ANA, "github")).reveal() == VALUE


async def test_the_value_is_nowhere_in_the_database(
    doors: SecretService, database: Database, key_file: KeyFile
) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    await doors.value_of(ANA, "github")

    stored = repr(database.dump())
    assert "github" in stored
    assert key_file.text is not None
    for hidden in (VALUE.decode(), VALUE.hex(), key_file.text):
        assert hidden not in stored
    if isinstance(database, SqliteDatabase):
        files = b"".join(path.read_bytes() for path in database.path.parent.glob("journal*"))
        assert VALUE not in files


@pytest.mark.parametrize(
    ("name", "value", "scope", "error"),
    [
        ("a b", VALUE, SecretScope(), SecretNameInvalid),
        ("empty", b"", SecretScope(), SecretValueInvalid),
        ("long", b"x" * 65_537, SecretScope(), SecretValueInvalid),
        ("broken", b"a\r\nb", SENT, SecretValueInvalid),
        ("stranger", VALUE, SecretScope(hosts=(HOST,), agents=(AgentId(an_id(7)),)), AgentNotFound),
    ],
)
async def test_what_can_not_be_kept_is_refused(
    doors: SecretService, name: str, value: bytes, scope: SecretScope, error: type[PalyraError]
) -> None:
    with pytest.raises(error):
        await doors.set(ANA, name, value, scope)
    assert await doors.list(ANA) == []


async def test_there_is_an_end_to_secrets(doors: SecretService, engine: Engine) -> None:
    made = await doors.set(ANA, "first", VALUE)
    row = await engine.read(lambda conn: secrets.get(conn, ANA, "first"))
    assert row is not None
    for number in range(MAX_SECRETS - 1):
        record = msgspec.structs.replace(made, name=f"s{number}")
        more = secrets.StoredSecret(record, row.scope, row.key_id, row.sealed)
        await engine.write(lambda conn, more=more: secrets.put(conn, more))  # type: ignore[misc]

    with pytest.raises(SecretLimitReached):
        await doors.set(ANA, "one-more", VALUE)
    await doors.set(ANA, "first", b"may still change")
    await doors.set(BEN, "first", VALUE)


# -- what it may be used for


async def test_a_host_gets_what_is_meant_for_it_and_nothing_else(doors: SecretService) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    await doors.set(ANA, "extra", b"12345678", SecretScope(hosts=(HOST, "b.org"), header="X-Key", format="{}"))
    await doors.set(ANA, "unsent", b"for the configuration")

    assert await doors.credentials_for(ANA, ONE, "API.example.org.") == {
        "Authorization": f"Bearer {VALUE.decode()}",
        "X-Key": "12345678",
    }
    assert await doors.credentials_for(ANA, ONE, "b.org") == {"X-Key": "12345678"}
    for host in ("example.org", "x.api.example.org", "api.example.org.evil.com", "[::1]", "", "a b"):
        assert await doors.credentials_for(ANA, ONE, host) == {}
        assert await doors.names_for(ANA, ONE, host) == ()


async def test_what_is_not_named_is_neither_sent_nor_used(doors: SecretService) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    await doors.set(ANA, "extra", b"12345678", SecretScope(hosts=(HOST,), header="X-Key", format="{}"))
    sent = AgentCredentials(doors, ANA, ONE).only(("extra", "gone"))
    assert await sent.headers(HOST, tool="http.fetch") == {"X-Key": "12345678"}
    assert await sent.names(HOST, tool="http.fetch") == ("extra", "github")
    assert await sent.only(()).headers(HOST, tool="http.fetch") == {}
    assert {record.name for record in await doors.list(ANA) if record.last_used_at is not None} == {"extra"}


async def test_the_names_are_told_without_a_use(doors: SecretService, key_file: KeyFile) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    await doors.set(ANA, "extra", b"12345678", SecretScope(hosts=(HOST,), header="X-Key", format="{}"))
    key_file.lose()
    assert await doors.names_for(ANA, ONE, "API.example.org") == ("extra", "github")
    assert await doors.names_for(ANA, ONE, "b.org") == await doors.names_for(BEN, ONE, HOST) == ()
    assert [record.last_used_at for record in await doors.list(ANA)] == [None, None]


async def test_a_short_value_is_hidden_where_its_header_stands(doors: SecretService, used: UsedSecrets) -> None:
    await doors.set(ANA, "door", b"4711", SENT)
    await doors.credentials_for(ANA, ONE, HOST)
    assert used.hide_for(ANA, "4711 said Bearer 4711") == "4711 said [secret door]"


async def test_an_agent_and_a_tool_get_what_is_meant_for_them(doors: SecretService, engine: Engine) -> None:
    for agent_id in (ONE, OTHER):
        await an_agent(engine, agent_id)
    await doors.set(ANA, "one", b"for-one", SecretScope(hosts=(HOST,), agents=(ONE,)))
    await doors.set(ANA, "other", b"for-other", SecretScope(hosts=(HOST,), agents=(OTHER,), tools=("mcp.call",)))

    assert await doors.credentials_for(ANA, ONE, HOST) == {"Authorization": "Bearer for-one"}
    assert await doors.credentials_for(ANA, OTHER, HOST) == {}
    assert await doors.credentials_for(ANA, OTHER, HOST, tool="mcp.call") == {"Authorization": "Bearer for-other"}


async def test_two_secrets_can_not_claim_one_header(doors: SecretService) -> None:
    await doors.set(ANA, "github", VALUE, SENT)

    with pytest.raises(HeaderInUse, match="github"):
        await doors.set(ANA, "second", VALUE, SecretScope(hosts=("c.org", HOST), header="authorization"))
    await doors.set(ANA, "github", b"its own place", SENT)
    await doors.set(BEN, "second", VALUE, SENT)


async def test_a_use_is_noted_at_most_once_a_minute(doors: SecretService, clock: FakeClock) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    seen = []
    for seconds in (0, 30, 30):
        clock.advance(timedelta(seconds=seconds))
        await doors.credentials_for(ANA, ONE, HOST)
        (record,) = await doors.list(ANA)
        seen.append(record.last_used_at)

    assert seen[0] is not None
    assert seen[0] == seen[1]
    assert seen[2] == clock.now()


# -- the key


async def test_a_key_is_made_for_the_first_secret_and_not_before(doors: SecretService, key_file: KeyFile) -> None:
    await doors.list(ANA)
    await doors.credentials_for(ANA, ONE, HOST)
    assert key_file.text is None
    await doors.set(ANA, "github", VALUE)
    assert key_file.mode == 0o600


async def test_a_lost_key_is_said_so_and_no_other_is_made_in_its_place(doors: SecretService, key_file: KeyFile) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    key = key_file.text
    key_file.lose()

    attempts = (
        doors.value_of(ANA, "github"),
        doors.credentials_for(ANA, ONE, HOST),
        doors.set(ANA, "github", VALUE),
        doors.set(BEN, "first", VALUE),
    )
    for attempt in attempts:
        with pytest.raises(VaultKeyMissing, match="Restore it"):
            await attempt
    assert key_file.text is None
    assert [record.name for record in await doors.list(ANA)] == ["github"]

    key_file.put(key)
    assert (await doors.value_of(ANA, "github")).reveal() == VALUE


async def test_an_exchanged_key_is_said_so_and_the_secret_can_be_set_anew(
    doors: SecretService, key_file: KeyFile
) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    key_file.put("ab" * 32)

    with pytest.raises(VaultKeyMismatch, match="palyra secrets set github"):
        await doors.credentials_for(ANA, ONE, HOST)
    await doors.set(ANA, "github", VALUE, SENT)
    assert (await doors.value_of(ANA, "github")).reveal() == VALUE


async def test_a_vault_without_its_key_can_be_emptied_and_used_again(doors: SecretService, key_file: KeyFile) -> None:
    await doors.set(ANA, "github", VALUE)
    key_file.lose()
    await doors.delete(ANA, "github")

    await doors.set(ANA, "github", VALUE)
    assert (await doors.value_of(ANA, "github")).reveal() == VALUE


# -- rows that somebody changed


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE secrets SET name = 'renamed' WHERE name = 'github' AND principal = :ana",
        "UPDATE secrets SET principal = :mallory WHERE name = 'github' AND principal = :ana",
        "UPDATE secrets SET version = 2 WHERE name = 'github' AND principal = :ana",
        "UPDATE secrets SET scope = REPLACE(scope, 'api.example.org', 'evil.example.org')",
        "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE principal = :ben) WHERE principal = :ana",
    ],
)
async def test_a_row_that_was_changed_does_not_open(doors: SecretService, engine: Engine, change: str) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    await doors.set(BEN, "github", b"of somebody else", SENT)
    params = {name: f"user:{name}" for name in ("ana", "ben", "mallory") if f":{name}" in change}
    assert await engine.write(lambda conn: conn.execute(change, params))

    for principal in (ANA, PrincipalId("user:mallory")):
        for record in await doors.list(principal):
            with pytest.raises(SecretDamaged):
                await doors.value_of(principal, record.name)
            with pytest.raises(SecretDamaged):
                await doors.credentials_for(principal, ONE, record.scope.hosts[0])


# -- what was used is hidden


async def test_what_was_set_or_used_is_hidden_in_texts(doors: SecretService, engine: Engine, used: UsedSecrets) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    text = f"it said {VALUE.decode()}"
    assert used.hide(text) == "it said [secret github]"
    assert used.hide_for(ANA, text) == "it said [secret github]"
    # What another keeps must not change what a principal reads.
    assert used.hide_for(BEN, text) == text


async def test_a_secret_of_an_earlier_process_is_hidden_once_it_is_used(
    doors: SecretService, engine: Engine, key_file: KeyFile, clock: FakeClock
) -> None:
    await doors.set(ANA, "github", VALUE, SENT)
    used = UsedSecrets()
    later = SecretService(engine, key_file.place, clock=clock, used=used)
    assert used.hide(VALUE.decode()) == VALUE.decode()
    await later.credentials_for(ANA, ONE, HOST)
    assert used.hide(VALUE.decode()) == "[secret github]"
    await later.set(ANA, "github", b"a new value", SENT)
    assert used.hide(f"{VALUE.decode()} a new value") == "[secret github] [secret github]"
