"""Secrets as rows: one of each name for each principal."""

from datetime import UTC, datetime

import msgspec

from palyra.core.ids import PrincipalId
from palyra.core.secret import SecretRecord, SecretScope
from palyra.journal.engines.base import Connection
from palyra.journal.vault import secrets
from palyra.journal.vault.secrets import StoredSecret, scope_text
from tests.contract.journal.builders import BEN
from tests.support.builders import ANA

AT = datetime(2026, 1, 2, tzinfo=UTC)
LATER = datetime(2026, 1, 3, tzinfo=UTC)
SCOPE = SecretScope(hosts=("api.example.org",), format="token {}")


def kept(name: str = "github", *, principal: PrincipalId = ANA, sealed: str = "c2VhbGVk") -> StoredSecret:
    record = SecretRecord(
        name=name, principal=principal, version=1, scope=SCOPE, created_at=AT, updated_at=AT, last_used_at=None
    )
    return StoredSecret(record, scope_text(SCOPE), "0123", sealed)


def test_a_secret_is_found_as_it_was_kept(conn: Connection) -> None:
    assert not secrets.exist(conn)
    secrets.put(conn, kept())

    assert secrets.get(conn, ANA, "github") == kept()
    assert secrets.exist(conn)


def test_the_secret_of_a_name_is_the_last_one_kept(conn: Connection) -> None:
    secrets.put(conn, kept())
    secrets.note_use(conn, ANA, "github", now_ms=5_000)
    again = msgspec.structs.replace(kept().record, version=2, scope=SecretScope(), updated_at=LATER)
    second = StoredSecret(again, scope_text(SecretScope()), "4567", "YWdhaW4=")
    secrets.put(conn, second)

    assert secrets.of(conn, ANA) == [second]


def test_each_principal_has_names_of_its_own(conn: Connection) -> None:
    for each in (kept("b"), kept("a"), kept("a", principal=BEN, sealed="aGlz")):
        secrets.put(conn, each)

    assert [each.record.name for each in secrets.of(conn, ANA)] == ["a", "b"]
    assert not secrets.delete(conn, BEN, "b")
    assert secrets.delete(conn, BEN, "a")
    assert secrets.get(conn, BEN, "a") is None
    assert secrets.get(conn, ANA, "a") == kept("a")


def test_a_use_is_noted_for_the_secret_that_was_used(conn: Connection) -> None:
    for each in (kept("a"), kept("b"), kept("a", principal=BEN)):
        secrets.put(conn, each)
    secrets.note_use(conn, ANA, "a", now_ms=1_767_323_045_678)

    used = [each.record.last_used_at for each in (*secrets.of(conn, ANA), *secrets.of(conn, BEN))]
    assert [moment is not None for moment in used] == [True, False, False]
    assert used[0] == datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
