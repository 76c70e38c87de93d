"""Agents as rows."""

import pytest

from palyra.core.agent import Agent
from palyra.core.ids import AgentId, PrincipalId
from palyra.core.limits import Limits
from palyra.journal.engines.base import Connection
from palyra.journal.stores import agents
from tests.contract.journal.builders import BEN, an_id
from tests.support.builders import ANA


def an_agent(place: int = 1, principal: PrincipalId = ANA, *, name: str = "main", is_default: bool = False) -> Agent:
    return Agent(
        agent_id=AgentId(an_id(place)),
        principal=principal,
        name=name,
        instructions="Be kind; say 'please'.\nAlways.",
        tools=("files.read", "clock.now"),
        workspace_roots=("/srv/work",),
        limits=Limits(model_turns=3),
        is_default=is_default,
    )


def test_an_agent_comes_back_as_it_was_put(conn: Connection) -> None:
    agent = an_agent()
    agents.put(conn, agent)

    assert agents.get(conn, agent.agent_id, ANA) == agent


def test_an_agent_is_seen_by_its_principal_only(conn: Connection) -> None:
    agent = an_agent(is_default=True)
    agents.put(conn, agent)

    assert agents.get(conn, agent.agent_id, BEN) is None
    assert agents.default(conn, BEN) is None
    assert agents.get(conn, AgentId(an_id(2)), ANA) is None


def test_an_agent_that_is_put_again_is_changed(conn: Connection) -> None:
    agents.put(conn, an_agent(name="old", is_default=True))
    changed = an_agent(name="new")
    agents.put(conn, changed)

    assert agents.get(conn, changed.agent_id, ANA) == changed
    assert agents.default(conn, ANA) is None


def test_each_principal_has_a_default_agent_of_its_own(conn: Connection) -> None:
    for agent in (an_agent(1), an_agent(2, is_default=True), an_agent(3, BEN, is_default=True)):
        agents.put(conn, agent)

    assert agents.default(conn, ANA) == an_agent(2, is_default=True)
    assert agents.default(conn, BEN) == an_agent(3, BEN, is_default=True)


def test_a_principal_has_one_default_agent_at_the_most(conn: Connection) -> None:
    agents.put(conn, an_agent(1, is_default=True))

    with pytest.raises(Exception, match=r"agents_default|agents\.principal"):
        agents.put(conn, an_agent(2, is_default=True))


def test_the_agents_of_a_principal_are_listed_by_name(conn: Connection) -> None:
    for agent in (
        an_agent(1, name="zoe"),
        an_agent(2, name="Bob"),
        an_agent(3, BEN, name="alf"),
        an_agent(4, name="al"),
    ):
        agents.put(conn, agent)

    assert [agent.name for agent in agents.of(conn, ANA)] == ["Bob", "al", "zoe"]
    assert [agent.name for agent in agents.of(conn, BEN)] == ["alf"]
    assert agents.of(conn, PrincipalId("user:nobody")) == []


def test_an_agent_is_forgotten_by_its_principal_only(conn: Connection) -> None:
    for place in (1, 2):
        agents.put(conn, an_agent(place))

    agents.delete(conn, AgentId(an_id(1)), BEN)
    assert len(agents.of(conn, ANA)) == 2
    agents.delete(conn, AgentId(an_id(1)), ANA)

    assert agents.of(conn, ANA) == [an_agent(2)]


def test_the_agents_of_all_principals_are_counted(conn: Connection) -> None:
    assert agents.count(conn) == 0
    agents.put(conn, an_agent(1))
    agents.put(conn, an_agent(2, BEN))
    assert agents.count(conn) == 2
