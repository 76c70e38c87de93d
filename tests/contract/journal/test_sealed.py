"""Sealed values as rows: one of each id for each principal, with where it came from, gone with the last session."""

from palyra.core.ids import PrincipalId, SessionId
from palyra.journal import sealed, secrets
from palyra.journal.engine import Connection
from palyra.journal.sealed import Listed, Origin, SealedValue
from tests.contract.journal.builders import BEN
from tests.support.builders import ANA

ONE, OTHER = SessionId("01" * 13), SessionId("02" * 13)


def value(sealed_id: str = "a" * 16, *, principal: PrincipalId = ANA, text: str = "c2VhbGVk") -> SealedValue:
    return SealedValue(principal, sealed_id, "0123", text, created_ms=1_000)


def test_a_value_is_kept_once_and_remembers_each_origin(conn: Connection) -> None:
    assert not sealed.exist(conn)
    sealed.keep(conn, ONE, [value()], [Origin("a" * 16, "message", "p1")])
    sealed.keep(conn, OTHER, [value(text="b3RoZXI=")], [Origin("a" * 16, "file:/x", "p2")])

    assert sealed.get(conn, ANA, ["a" * 16, "b" * 16]) == [value()]
    assert [one.origin for one in sealed.origins_of(conn, ANA, "a" * 16)] == ["file:/x", "message"]
    assert sealed.page(conn, ANA, limit=10) == [Listed("a" * 16, 1_000, ("file:/x", "message"))]
    assert (sealed.exist(conn), sealed.count(conn, ANA)) == (True, 1)
    assert secrets.keys(conn) == {"0123": 1}


def test_nobody_has_the_value_of_another(conn: Connection) -> None:
    sealed.keep(conn, ONE, [value()], [Origin("a" * 16, "message", "p1")])

    assert sealed.get(conn, BEN, ["a" * 16]) == []
    assert sealed.origins_of(conn, BEN, "a" * 16) == []
    assert sealed.page(conn, BEN, limit=10) == []
    assert not sealed.delete(conn, BEN, "a" * 16)
    assert sealed.delete(conn, ANA, "a" * 16)
    assert not sealed.exist(conn)


def test_a_value_goes_with_the_last_session_that_it_came_up_in(conn: Connection) -> None:
    for session_id in (ONE, OTHER):
        sealed.keep(conn, session_id, [value()], [Origin("a" * 16, "message", "p1")])
    sealed.keep(conn, ONE, [value("b" * 16)], [Origin("b" * 16, "tool:x", "p2")])

    assert sealed.remove(conn, ONE, limit=1) == 1
    assert sealed.remove(conn, ONE, limit=10) == 1
    assert [one.sealed_id for one in sealed.page(conn, ANA, limit=10)] == ["a" * 16]
    assert sealed.remove(conn, ONE, limit=10) == 0
    assert sealed.remove(conn, OTHER, limit=10) == 1
    assert not sealed.exist(conn)
