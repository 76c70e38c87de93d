"""Sessions as rows."""

import asyncio

from palyra.core.clock import to_ms
from palyra.core.ids import AgentId, SessionId
from palyra.core.projection.changes import ActiveRunChanged
from palyra.core.session import Session
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import sessions
from tests.contract.journal.builders import BEN, a_run_id, a_session, a_session_id, an_id, later
from tests.support.builders import ANA, AT

NOW_MS = to_ms(AT) + 3_600_000


def stored(conn: Connection, session_id: SessionId) -> Session:
    found = sessions.get(conn, session_id, ANA)
    assert found is not None
    return found


def test_a_session_comes_back_as_it_was_written(conn: Connection) -> None:
    session = a_session(key="mail:1", label="Käse", parent=a_session_id(9))

    assert sessions.insert(conn, session)

    assert sessions.get(conn, session.session_id, ANA) == session


def test_a_session_is_seen_by_its_principal_only(conn: Connection) -> None:
    session = a_session(key="mail:1", label="work")
    sessions.insert(conn, session)

    assert sessions.get(conn, session.session_id, BEN) is None
    assert sessions.by_key(conn, "mail:1", BEN) is None
    assert sessions.by_label(conn, "work", BEN) is None
    assert sessions.page(conn, BEN, archived=False, before=None, limit=10, now_ms=NOW_MS) == []


# -- keys


def test_a_session_is_found_by_its_key(conn: Connection) -> None:
    session = a_session(key="mail:1")
    sessions.insert(conn, session)

    assert sessions.by_key(conn, "mail:1", ANA) == session
    assert sessions.by_key(conn, "MAIL:1", ANA) is None


def test_a_principal_has_one_session_of_a_key(conn: Connection) -> None:
    assert sessions.insert(conn, a_session(1, key="mail:1"))

    assert not sessions.insert(conn, a_session(2, key="mail:1"))

    assert sessions.get(conn, a_session_id(2), ANA) is None


def test_two_principals_may_use_the_same_key_and_label(conn: Connection) -> None:
    assert sessions.insert(conn, a_session(1, ANA, key="mail:1", label="work"))
    assert sessions.insert(conn, a_session(2, BEN, key="mail:1", label="work"))

    found = sessions.by_key(conn, "mail:1", BEN)
    assert found is not None
    assert found.session_id == a_session_id(2)


def test_any_number_of_sessions_have_no_key_and_no_label(conn: Connection) -> None:
    assert all(sessions.insert(conn, a_session(place)) for place in range(5))


def test_an_archived_session_keeps_its_key(conn: Connection) -> None:
    sessions.insert(conn, a_session(1, key="mail:1"))
    sessions.change(conn, a_session_id(1), {"archived_ms": to_ms(AT)}, at_ms=to_ms(AT))

    assert not sessions.insert(conn, a_session(2, key="mail:1"))
    assert sessions.by_key(conn, "mail:1", ANA) == stored(conn, a_session_id(1))


def test_a_key_that_is_freed_can_be_given_to_another_session(conn: Connection) -> None:
    sessions.insert(conn, a_session(1, key="mail:1"))
    sessions.change(conn, a_session_id(1), {"archived_ms": to_ms(later(5)), "key": None}, at_ms=to_ms(later(5)))

    assert stored(conn, a_session_id(1)).key is None
    assert sessions.insert(conn, a_session(2, key="mail:1"))


async def test_of_many_at_once_with_one_key_only_one_is_made(engine: Engine) -> None:
    made = await asyncio.gather(
        *(
            engine.write(lambda conn, place=place: sessions.insert(conn, a_session(place, key="mail:1")))  # type: ignore[misc]
            for place in range(10)
        )
    )

    assert sum(made) == 1


# -- labels


def test_a_label_names_the_one_session_that_is_not_archived(conn: Connection) -> None:
    assert sessions.insert(conn, a_session(1, label="work"))
    assert not sessions.insert(conn, a_session(2, label="work"))
    sessions.change(conn, a_session_id(1), {"archived_ms": to_ms(AT)}, at_ms=to_ms(AT))
    assert sessions.by_label(conn, "work", ANA) is None

    assert sessions.insert(conn, a_session(2, label="work"))

    found = sessions.by_label(conn, "work", ANA)
    assert found is not None
    assert found.session_id == a_session_id(2)


def test_several_archived_sessions_may_have_one_label(conn: Connection) -> None:
    for place in range(3):
        assert sessions.insert(conn, a_session(place, label="work"))
        sessions.change(conn, a_session_id(place), {"archived_ms": to_ms(AT)}, at_ms=to_ms(AT))

    assert len(sessions.page(conn, ANA, archived=True, before=None, limit=10, now_ms=NOW_MS)) == 3


# -- what changes


def test_archiving_notes_when_and_taking_back_forgets_it(conn: Connection) -> None:
    sessions.insert(conn, a_session())

    sessions.change(conn, a_session_id(), {"archived_ms": to_ms(later(5))}, at_ms=to_ms(later(5)))
    away = stored(conn, a_session_id())
    sessions.change(conn, a_session_id(), {"archived_ms": None}, at_ms=to_ms(later(9)))
    back = stored(conn, a_session_id())

    assert (away.archived_at, away.updated_at) == (later(5), later(5))
    assert (back.archived_at, back.updated_at) == (None, later(9))


def test_a_title_can_be_given_and_changed(conn: Connection) -> None:
    sessions.insert(conn, a_session())
    assert not sessions.titled(conn, a_session_id())

    sessions.change(conn, a_session_id(), {"title": "Über Käse"}, at_ms=to_ms(later(5)))

    assert sessions.titled(conn, a_session_id())
    assert stored(conn, a_session_id()).title == "Über Käse"
    assert stored(conn, a_session_id()).updated_at == later(5)


def test_an_agent_can_be_bound_and_let_go(conn: Connection) -> None:
    sessions.insert(conn, a_session())

    sessions.change(conn, a_session_id(), {"agent_id": AgentId(an_id(7))}, at_ms=to_ms(later(5)))
    bound = stored(conn, a_session_id())
    sessions.change(conn, a_session_id(), {"agent_id": None}, at_ms=to_ms(later(9)))
    free = stored(conn, a_session_id())

    assert (bound.agent_id, bound.updated_at) == (an_id(7), later(5))
    assert (free.agent_id, free.updated_at) == (None, later(9))


def test_a_session_that_is_not_there_has_no_title(conn: Connection) -> None:
    assert not sessions.titled(conn, a_session_id())


def test_a_reset_sets_the_boundary_and_starts_the_count_anew(conn: Connection) -> None:
    sessions.insert(conn, a_session())
    sessions.touch(conn, a_session_id(), at_ms=0, active=None, messages=7)
    assert sessions.scope(conn, a_session_id()) == (0, 7)

    sessions.reset(conn, a_session_id(), at_ms=to_ms(later(5)), seq=30)
    assert sessions.scope(conn, a_session_id()) == (30, 0)
    sessions.touch(conn, a_session_id(), at_ms=0, active=None, messages=2)

    assert sessions.scope(conn, a_session_id()) == (30, 2)
    assert stored(conn, a_session_id()).reset_seq == 30


def test_a_touch_notes_the_active_run_only_if_that_changed(conn: Connection) -> None:
    sessions.insert(conn, a_session())

    def active() -> str | None:
        return stored(conn, a_session_id()).active_run_id

    sessions.touch(conn, a_session_id(), at_ms=1, active=ActiveRunChanged(a_run_id()), messages=0)
    assert active() == a_run_id()
    sessions.touch(conn, a_session_id(), at_ms=2, active=None, messages=0)
    assert active() == a_run_id()
    sessions.touch(conn, a_session_id(), at_ms=3, active=ActiveRunChanged(None), messages=0)
    assert active() is None


def test_a_change_leaves_other_sessions_alone(conn: Connection) -> None:
    for place in (1, 2):
        sessions.insert(conn, a_session(place, key=f"key {place}"))
    other = stored(conn, a_session_id(2))

    sessions.change(conn, a_session_id(1), {"title": "A title"}, at_ms=to_ms(later(5)))
    sessions.reset(conn, a_session_id(1), at_ms=to_ms(later(5)), seq=30)
    sessions.touch(conn, a_session_id(1), at_ms=0, active=ActiveRunChanged(a_run_id()), messages=7)
    sessions.change(conn, a_session_id(1), {"archived_ms": to_ms(later(5)), "key": None}, at_ms=to_ms(later(5)))

    assert stored(conn, a_session_id(2)) == other
    assert sessions.scope(conn, a_session_id(2)) == (0, 0)


# -- lists


def test_the_list_has_the_latest_first_and_goes_on_where_it_stopped(conn: Connection) -> None:
    # Three were changed in the same moment: then the id decides, and none is shown twice or left out.
    moments = {1: 5, 2: 7, 3: 7, 4: 7, 5: 1, 6: 9}
    for place, moment in moments.items():
        sessions.insert(conn, a_session(place, at=later(moment)))

    seen: list[Session] = []
    before: tuple[int, str] | None = None
    while page := sessions.page(conn, ANA, archived=False, before=before, limit=2, now_ms=NOW_MS):
        assert len(page) <= 2
        seen += page
        last = page[-1]
        before = (round(last.updated_at.timestamp() * 1000), last.session_id)

    assert [session.session_id for session in seen] == [a_session_id(place) for place in (6, 4, 3, 2, 1, 5)]


def test_what_was_used_while_the_clock_was_ahead_comes_last(conn: Connection) -> None:
    years = 9 * 365 * 24 * 3600
    for place, moment in {1: 1, 2: years, 3: 2}.items():
        sessions.insert(conn, a_session(place, at=later(moment)))

    page = sessions.page(conn, ANA, archived=False, before=None, limit=9, now_ms=NOW_MS)

    assert [session.session_id for session in page] == [a_session_id(place) for place in (3, 1, 2)]
    assert sessions.latest(conn, now_ms=NOW_MS) == a_session_id(3)
    assert sessions.newest_ms(conn) == to_ms(later(years))


def test_what_is_archived_has_a_list_of_its_own(conn: Connection) -> None:
    for place in (1, 2):
        sessions.insert(conn, a_session(place))
    sessions.change(conn, a_session_id(1), {"archived_ms": to_ms(AT)}, at_ms=to_ms(AT))

    listed = {
        archived: [
            session.session_id
            for session in sessions.page(conn, ANA, archived=archived, before=None, limit=9, now_ms=NOW_MS)
        ]
        for archived in (True, False)
    }

    assert listed == {True: [a_session_id(1)], False: [a_session_id(2)]}


def test_sessions_of_child_runs_are_not_listed(conn: Connection) -> None:
    sessions.insert(conn, a_session(1))
    sessions.insert(conn, a_session(2, parent=a_session_id(1)))

    page = sessions.page(conn, ANA, archived=False, before=None, limit=9, now_ms=NOW_MS)

    assert [session.session_id for session in page] == [a_session_id(1)]
