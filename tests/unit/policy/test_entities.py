"""Questions in the words of the policies: they fit the schema, whatever the call is."""

import cedarpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.policy.effect import Effect
from palyra.core.tool import Risk, ToolSpec
from palyra.policy import cedar
from palyra.policy.entities import cedar_request, domains_above, folders_above
from palyra.policy.query import PolicyQuery
from tests.support.builders import AT

SCHEMA = cedarpy.Schema.from_str(cedar.schema_text())
NOTHING = cedarpy.PolicySet.from_str("")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    tool=st.builds(
        ToolSpec,
        name=NAMES,
        description=st.just(""),
        parameters=st.just({}),
        read_only=st.booleans(),
    ),
    effect=st.builds(
        Effect,
        risk=st.sampled_from(Risk),
        summary=NAMES,
        paths=st.lists(NAMES).map(tuple),
        hosts=st.lists(NAMES).map(tuple),
        command=NAMES,
        carries_secret=st.booleans(),
    ),
    names=st.tuples(NAMES, NAMES, NAMES, NAMES),
    flags=st.tuples(st.booleans(), st.booleans()),
    signals=st.lists(NAMES).map(tuple),
)
def test_every_request_fits_the_schema(
    tool: ToolSpec, effect: Effect, names: tuple[str, str, str, str], flags: tuple[bool, bool], signals: tuple[str, ...]
) -> None:
    principal, agent_id, label, channel = names
    query = PolicyQuery(
        principal=PrincipalId(principal),
        agent_id=AgentId(agent_id),
        session_id=SessionId("s"),
        tool=tool,
        effect=effect,
        labels=(label,),
        channels=(channel,),
        approver_reachable=flags[0],
        now=AT,
        signals=signals,
    )
    asked = cedar_request(query, label=label, channel=channel, granted=flags[1])
    entities = cedarpy.Entities.from_json_str(asked.entities, SCHEMA)
    for action in (cedar.RUN, cedar.ASK):
        parts = {
            "principal": asked.principal,
            "action": {"type": "Action", "id": action},
            "resource": asked.resource,
            "context": asked.context,
        }
        answer = cedarpy.is_authorized(parts, NOTHING, entities, SCHEMA)
        assert (answer.decision, answer.diagnostics.errors) == (cedarpy.Decision.Deny, [])


@pytest.mark.parametrize(
    ("path", "folders"),
    [
        ("/a/b/c.txt", ["/a/b/c.txt", "/a/b", "/a", "/"]),
        ("/a/./b/../c", ["/a/c", "/a", "/"]),
        ("//a", ["/a", "/"]),
        ("/../..", ["/"]),
        ("a/b", []),
        ("", []),
    ],
)
def test_a_path_lies_in_every_folder_above_it(path: str, folders: list[str]) -> None:
    assert folders_above(path) == folders


@pytest.mark.parametrize(
    ("host", "domains"),
    [
        ("Docs.Example.org.", ["docs.example.org", "example.org", "org"]),
        ("10.0.0.1", ["10.0.0.1"]),
        ("::1", ["::1"]),
    ],
)
def test_a_host_belongs_to_every_domain_above_it(host: str, domains: list[str]) -> None:
    assert domains_above(host) == domains
