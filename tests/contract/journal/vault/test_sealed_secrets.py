"""Sealed values as rows: one of each id for each principal, with where it came from, gone with the last session."""

from palyra.core.ids import PrincipalId, SessionId
from palyra.journal.engines.base import Connection
from palyra.journal.vault import sealed_secrets, secrets
from palyra.journal.vault.sealed_secrets import SealedListing, SealedOrigin, SealedValue
from tests.contract.journal.builders import BEN
from tests.support.builders import ANA

ONE, OTHER = SessionId("01" * 13), SessionId("02" * 13)


def value(sealed_id: str = "a" * 16, *, principal: PrincipalId = ANA, text: str = "c2VhbGVk") -> SealedValue:
    return SealedValue(principal, sealed_id, "0123", text, created_ms=1_000)


def test_a_value_is_kept_once_and_remembers_each_origin(conn: Connection) -> None:
    assert not sealed_secrets.exist(conn)
    sealed_secrets.keep(conn, ONE, [value()], [SealedOrigin("a" * 16, "message", "p1")])
    sealed_secrets.keep(conn, OTHER, [value(text="b3RoZXI=")], [SealedOrigin("a" * 16, "file:/x", "p2")])

    assert sealed_secrets.get(conn, ANA, ["a" * 16, "b" * 16]) == [value()]
    assert [one.origin for one in sealed_secrets.origins_of(conn, ANA, "a" * 16)] == ["file:/x", "message"]
    assert sealed_secrets.page(conn, ANA, limit=10) == [SealedListing("a" * 16, 1_000, ("file:/x", "message"))]
    assert (sealed_secrets.exist(conn), sealed_secrets.count(conn, ANA)) == (True, 1)
    assert secrets.keys(conn) == {"0123": 1}


def test_nobody_has_the_value_of_another(conn: Connection) -> None:
    sealed_secrets.keep(conn, ONE, [value()], [SealedOrigin("a" * 16, "message", "p1")])

    assert sealed_secrets.get(conn, BEN, ["a" * 16]) == []
    assert sealed_secrets.origins_of(conn, BEN, "a" * 16) == []
    assert sealed_secrets.page(conn, BEN, limit=10) == []
    assert not sealed_secrets.delete(conn, BEN, "a" * 16)
    assert sealed_secrets.delete(conn, ANA, "a" * 16)
    assert not sealed_secrets.exist(conn)


def test_a_value_goes_with_the_last_session_that_it_came_up_in(conn: Connection) -> None:
    for session_id in (ONE, OTHER):
        sealed_secrets.keep(conn, session_id, [value()], [SealedOrigin("a" * 16, "message", "p1")])
    sealed_secrets.keep(conn, ONE, [value("b" * 16)], [SealedOrigin("b" * 16, "tool:x", "p2")])

    assert sealed_secrets.remove(conn, ONE, limit=1) == 1
    assert sealed_secrets.remove(conn, ONE, limit=10) == 1
    assert [one.sealed_id for one in sealed_secrets.page(conn, ANA, limit=10)] == ["a" * 16]
    assert sealed_secrets.remove(conn, ONE, limit=10) == 0
    assert sealed_secrets.remove(conn, OTHER, limit=10) == 1
    assert not sealed_secrets.exist(conn)
