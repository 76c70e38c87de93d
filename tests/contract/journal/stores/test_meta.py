"""Facts about the journal itself."""

from palyra.journal.engines.base import Connection
from palyra.journal.stores import meta


def test_a_fact_that_was_never_set_is_none(conn: Connection) -> None:
    assert meta.get(conn, "journal_id") is None


def test_a_fact_that_is_set_once_stays(conn: Connection) -> None:
    assert meta.set_once(conn, "journal_id", "first") == "first"
    assert meta.set_once(conn, "journal_id", "second") == "first"
    assert meta.get(conn, "journal_id") == "first"


def test_a_fact_may_be_set_once_to_nothing(conn: Connection) -> None:
    assert meta.set_once(conn, "journal_id", "") == ""
    assert meta.set_once(conn, "journal_id", "second") == ""


def test_a_fact_that_is_put_replaces_what_was_there(conn: Connection) -> None:
    meta.put(conn, "note", "first")
    meta.put(conn, "note", "second")
    meta.put(conn, "other", "third")

    assert [meta.get(conn, name) for name in ("note", "other")] == ["second", "third"]
