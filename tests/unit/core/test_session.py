"""Sessions, and how a caller names one."""

import msgspec
import pytest

from palyra.core.ids import SessionId
from palyra.core.session import SessionRef, new_session
from tests.support.builders import AGENT, ANA, AT, SESSION


def test_nothing_has_happened_in_a_new_session() -> None:
    session = new_session(SESSION, ANA, agent_id=AGENT, at=AT)
    assert (session.session_id, session.principal, session.agent_id) == (SESSION, ANA, AGENT)
    assert (session.created_at, session.updated_at, session.archived_at) == (AT, AT, None)
    assert (session.title, session.reset_seq, session.active_run_id) == (None, 0, None)
    assert (session.key, session.label, session.parent_session_id) == (None, None, None)


def test_a_new_session_keeps_the_names_it_was_given() -> None:
    above = SessionId("01JGKK8F5E0000000000000009")
    session = new_session(SESSION, ANA, agent_id=AGENT, at=AT, key="mail", label="Mail", parent_session_id=above)
    assert (session.key, session.label, session.parent_session_id) == ("mail", "Mail", above)


def test_a_caller_who_names_no_session_wants_a_new_one() -> None:
    assert msgspec.json.decode("{}", type=SessionRef) == SessionRef(
        session_id=None, key=None, label=None, require_existing=False, reset=False
    )


def test_a_misspelt_name_of_a_session_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="sesion_id"):
        msgspec.json.decode('{"sesion_id":"x"}', type=SessionRef)
