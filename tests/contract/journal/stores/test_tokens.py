"""Tokens: recognised, never read back."""

import pytest

from palyra.core.ids import TokenId
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import tokens
from palyra.journal.stores.tokens import ALL, TokenHolder, TokenRecord
from tests.contract.database import Database, SqliteDatabase
from tests.contract.journal.builders import BEN, an_id
from tests.support.builders import ANA

NOW = 1_700_000_000_000
SECRET = "palyra_" + "s3cret" * 7


def a_token(place: int = 1) -> TokenRecord:
    return TokenRecord(TokenId(an_id(place)), ANA if place == 1 else BEN, "laptop", 1_000)


def test_a_token_proves_its_principal(conn: Connection) -> None:
    tokens.insert(conn, a_token(1), SECRET)
    tokens.insert(conn, a_token(2), "another")

    ours, other = (tokens.principal_of(conn, tokens.digest(text)) for text in (SECRET, "another"))
    assert ours is not None
    assert other is not None
    assert (ours.principal, other.principal) == (ANA, BEN)


@pytest.mark.parametrize("text", ["", SECRET, SECRET[:-1], SECRET + " ", SECRET.upper()])
def test_what_is_no_token_proves_nobody(conn: Connection, text: str) -> None:
    tokens.insert(conn, a_token(), SECRET)

    assert tokens.principal_of(conn, tokens.digest(text) if text != SECRET else SECRET) is None


def test_a_token_for_a_time_that_was_made_while_the_clock_was_ahead_has_expired() -> None:
    ahead, hour = 9 * 365 * 24 * 3_600_000, 3_600_000
    made_ahead = TokenHolder(ANA, ALL, TokenId("t"), expires_ms=NOW + ahead + hour, created_ms=NOW + ahead)
    without_end = TokenHolder(ANA, ALL, TokenId("t"), expires_ms=None, created_ms=NOW + ahead)
    usual = TokenHolder(ANA, ALL, TokenId("t"), expires_ms=NOW + hour, created_ms=NOW)
    assert [one.has_expired(now_ms=NOW) for one in (made_ahead, without_end, usual)] == [True, False, False]


def test_a_token_that_was_revoked_proves_nobody(conn: Connection) -> None:
    tokens.insert(conn, a_token(), SECRET)
    conn.execute("UPDATE tokens SET revoked_ms = 2000")

    assert tokens.principal_of(conn, tokens.digest(SECRET)) is None


def test_one_secret_is_one_token(conn: Connection) -> None:
    tokens.insert(conn, a_token(1), SECRET)

    with pytest.raises(Exception, match=r"digest"):
        tokens.insert(conn, a_token(2), SECRET)


async def test_the_secret_of_a_token_is_nowhere_in_the_database(engine: Engine, database: Database) -> None:
    await engine.write(lambda conn: tokens.insert(conn, a_token(), SECRET))

    stored = repr(database.dump())
    assert tokens.digest(SECRET) in stored
    assert SECRET not in stored
    if isinstance(database, SqliteDatabase):
        files = b"".join(path.read_bytes() for path in database.path.parent.iterdir())
        assert tokens.digest(SECRET).encode() in files
        assert SECRET.encode() not in files
