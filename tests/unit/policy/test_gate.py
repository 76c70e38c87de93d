"""What the gate says: the shipped rules, the person's own, earlier answers, and what goes wrong."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.policy import labels
from palyra.core.policy.approval import ApprovalScope
from palyra.core.policy.manifest import CapabilityManifest
from palyra.core.tool import FolderAccess, Risk, Verdict
from palyra.policy.gate import Gate, covers
from tests.unit.policy.asking import NOW, SESSION, a_gate, a_grant, a_question

SHIPPED = a_gate()
ABOVE_LOW = (Risk.MEDIUM, Risk.HIGH, Risk.CRITICAL)
LABELS = (labels.OWNER, labels.TOOL, labels.OTHER, labels.WEB)


# -- the shipped policies


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("approver_reachable", [True, False])
def test_what_does_no_harm_runs(label: str, approver_reachable: bool) -> None:
    judged = SHIPPED.judge(a_question(Risk.LOW, labels=(label,), approver_reachable=approver_reachable), ())
    assert (judged.verdict, judged.policies) == (Verdict.ALLOW, ("reading-is-allowed",))
    assert judged.reason == "It changes nothing."


@pytest.mark.parametrize("risk", ABOVE_LOW)
def test_what_changes_things_asks(risk: Risk) -> None:
    judged = SHIPPED.judge(a_question(risk), ())
    assert (judged.verdict, judged.risk, judged.policies) == (Verdict.ASK, risk, ("changes-ask",))
    assert judged.policy_hash == SHIPPED.policy_hash
    assert judged.grant_id is None


@pytest.mark.parametrize("risk", [Risk.HIGH, Risk.CRITICAL])
def test_what_is_dangerous_is_denied_when_nobody_can_be_asked(risk: Risk) -> None:
    judged = SHIPPED.judge(a_question(risk, approver_reachable=False), ())
    assert judged.verdict is Verdict.DENY
    assert judged.policies == ("no-approval-channel",)
    assert "no_approval_channel" in judged.reason
    assert "palyra chat" in judged.reason


def test_a_lesser_question_waits_until_somebody_can_be_asked() -> None:
    assert SHIPPED.judge(a_question(Risk.MEDIUM, approver_reachable=False), ()).verdict is Verdict.ASK


@pytest.mark.parametrize("label", [labels.OTHER, labels.WEB, "a-label-of-a-later-version"])
def test_untrusted_text_asks_again_whatever_was_allowed_for_trusted_text(label: str) -> None:
    grant = a_grant(policy_hash=SHIPPED.policy_hash, label=labels.TOOL)
    judged = SHIPPED.judge(a_question(labels=(labels.OWNER, label)), [grant])
    assert (judged.verdict, judged.grant_id) == (Verdict.ASK, None)
    assert judged.policies == ("untrusted-text-asks", "changes-ask")
    assert judged.reason.startswith("Text from another person or from the web")


def test_untrusted_text_asks_again_where_a_policy_of_the_person_would_allow_it() -> None:
    gate = a_gate('@id("all") permit (principal, action == Action::"run", resource);')
    assert gate.judge(a_question(), ()).verdict is Verdict.ALLOW
    assert gate.judge(a_question(labels=(labels.WEB,)), ()).verdict is Verdict.ASK


def test_an_earlier_answer_lets_a_call_run() -> None:
    grant = a_grant(policy_hash=SHIPPED.policy_hash, label=labels.WEB)
    judged = SHIPPED.judge(a_question(Risk.HIGH, labels=(labels.WEB,), approver_reachable=False), [grant])
    assert (judged.verdict, judged.grant_id, judged.policies) == (Verdict.ALLOW, "grant-1", ("grants-hold",))


# -- policies of the person


def test_a_command_is_allowed_by_its_exact_words() -> None:
    gate = a_gate(
        '@id("push") permit (principal, action == Action::"run", resource == Tool::"shell.run")'
        ' when { context.command == "git push" };'
    )

    def verdict(command: str) -> Verdict:
        return gate.judge(a_question(tool="shell.run", command=command), ()).verdict

    assert verdict("git push") is Verdict.ALLOW
    for command in ("git push -f", "git push ", "git -c a=b push", "git push; rm x", "/tmp/git push"):
        assert verdict(command) is Verdict.ASK, command


def test_no_prefix_of_a_command_permits_it() -> None:
    gate = a_gate(
        '@id("git-status") permit (principal, action == Action::"run", resource == Tool::"shell.run")'
        ' when { context.common_commands.contains("git status") };'
    )
    for command in ("git status", "git status -s", "git status --output=x"):
        assert gate.judge(a_question(tool="shell.run", command=command), ()).verdict is Verdict.ASK


def test_policies_can_speak_of_the_access() -> None:
    gate = a_gate(
        '@id("ask-about-reading") forbid (principal, action == Action::"run", resource == Tool::"shell.run")'
        ' when { context.access == "read" };'
    )

    def verdict(access: FolderAccess) -> Verdict:
        question = a_question(Risk.LOW, tool="shell.run", command="ls")
        return gate.judge(replace(question, effect=msgspec.structs.replace(question.effect, access=access)), ()).verdict

    assert verdict(FolderAccess.READ) is Verdict.ASK
    assert verdict(FolderAccess.WRITE) is Verdict.ALLOW


def test_a_folder_is_forbidden_with_all_that_is_in_it() -> None:
    gate = a_gate(
        '@id("private") @reason("Private papers stay private.") forbid (principal, action, resource)'
        ' when { context.folders.contains("/home/ana/private") };'
    )
    for path in ("/home/ana/private", "/home/ana/private/a/b.txt", "/home/ana/notes/../private/x"):
        judged = gate.judge(a_question(Risk.LOW, paths=("/home/ana/notes/a", path)), ())
        assert (judged.verdict, judged.policies) == (Verdict.DENY, ("private",)), path
        assert judged.reason == "Private papers stay private."
    assert gate.judge(a_question(Risk.LOW, paths=("/home/ana/private-not",)), ()).verdict is Verdict.ALLOW


def test_a_folder_is_allowed_only_for_calls_that_stay_in_it() -> None:
    gate = a_gate(
        '@id("notes") permit (principal, action == Action::"run", resource in Family::"files")'
        ' when { context.common_folders.contains("/home/ana/notes") };'
    )
    assert gate.judge(a_question(paths=("/home/ana/notes/a", "/home/ana/notes/b")), ()).verdict is Verdict.ALLOW
    assert gate.judge(a_question(paths=("/home/ana/notes/a", "/home/ana/b")), ()).verdict is Verdict.ASK
    assert gate.judge(a_question(tool="shell.run", paths=("/home/ana/notes/a",)), ()).verdict is Verdict.ASK


@pytest.mark.parametrize("named", ["b\u00fccher.example", "xn--bcher-kva.example"])
def test_a_host_beyond_ascii_is_known_by_both_of_its_spellings(named: str) -> None:
    gate = a_gate(f'@id("no") forbid (principal, action, resource) when {{ context.domains.contains("{named}") }};')
    for host in ("xn--bcher-kva.example", "www.XN--BCHER-KVA.example."):
        assert gate.judge(a_question(Risk.LOW, hosts=(host,)), ()).policies == ("no",)
    assert gate.judge(a_question(Risk.LOW, hosts=("xn--nonsense-.example",)), ()).verdict is Verdict.ALLOW


def test_a_host_is_allowed_with_what_is_below_it() -> None:
    gate = a_gate(
        '@id("docs") permit (principal, action == Action::"run", resource == Tool::"http.fetch")'
        ' when { context.common_domains.contains("example.org") };'
    )

    def verdict(*hosts: str) -> Verdict:
        return gate.judge(a_question(tool="http.fetch", hosts=hosts), ()).verdict

    assert verdict("example.org") is Verdict.ALLOW
    assert verdict("Docs.Example.org") is Verdict.ALLOW
    assert verdict("example.org", "evil.test") is Verdict.ASK
    assert verdict("notexample.org") is Verdict.ASK
    assert verdict() is Verdict.ASK


@pytest.mark.parametrize("test", ['== Channel::"http"', 'in Channel::"http"'])
def test_a_tool_is_forbidden_by_channel(test: str) -> None:
    gate = a_gate(
        '@id("not-by-http") @reason("Not from there.") forbid (principal, action, resource == Tool::"shell.run")'
        f" when {{ context.channel {test} }};"
    )
    denied = gate.judge(a_question(tool="shell.run", channels=("http",)), ())
    assert (denied.verdict, denied.policies, denied.reason) == (Verdict.DENY, ("not-by-http",), "Not from there.")
    for channels in (("grpc",), ("https",), (), ("unknown",)):
        assert gate.judge(a_question(tool="shell.run", channels=channels), ()).verdict is Verdict.ASK, channels
    assert gate.judge(a_question(tool="files.write", channels=("http",)), ()).verdict is Verdict.ASK


def test_a_family_of_channels_holds_all_whose_names_begin_so() -> None:
    gate = a_gate(
        '@id("chats") permit (principal, action == Action::"run", resource)'
        ' when { context.channel in Channel::"telegram" };'
    )

    def verdict(*channels: str) -> Verdict:
        return gate.judge(a_question(channels=channels), ()).verdict

    assert verdict("telegram") is verdict("telegram:ops") is verdict("telegram:ops:night") is Verdict.ALLOW
    assert verdict("telegramme:ops") is verdict("ops:telegram") is verdict("grpc") is Verdict.ASK


def test_of_several_channels_the_strictest_counts() -> None:
    gate = a_gate(
        """@id("at-home") permit (principal, action == Action::"run", resource)
        when { context.channel == Channel::"grpc" };
        @id("never-by-mail") forbid (principal, action, resource) when { context.channel == Channel::"mail" };"""
    )

    def judged(*channels: str) -> tuple[Verdict, tuple[str, ...]]:
        found = gate.judge(a_question(channels=channels), ())
        return found.verdict, found.policies

    assert judged("grpc") == (Verdict.ALLOW, ("at-home",))
    assert judged("grpc", "http") == judged("http", "grpc") == (Verdict.ASK, ("changes-ask",))
    assert judged("grpc", "mail", "http") == (Verdict.DENY, ("never-by-mail",))


def test_what_came_by_a_channel_that_nobody_wrote_down_fits_no_permit_for_one() -> None:
    gate = a_gate(
        '@id("all") permit (principal, action == Action::"run", resource)'
        ' when { [Channel::"grpc", Channel::"http"].contains(context.channel) };'
    )
    assert gate.judge(a_question(channels=("http",)), ()).verdict is Verdict.ALLOW
    assert gate.judge(a_question(channels=()), ()).verdict is Verdict.ASK
    assert gate.judge(a_question(channels=("http", "unknown")), ()).verdict is Verdict.ASK


def test_all_that_is_done_for_a_person_can_be_named() -> None:
    gate = a_gate('@id("not-ana") forbid (principal in Principal::"user:ana", action, resource);')
    assert gate.judge(a_question(principal=PrincipalId("user:ana")), ()).verdict is Verdict.DENY
    assert gate.judge(a_question(principal=PrincipalId("user:ben")), ()).verdict is Verdict.ASK


def test_what_is_done_in_the_persons_name_can_be_told_apart() -> None:
    gate = a_gate(
        '@id("docs") permit (principal, action == Action::"run", resource == Tool::"http.fetch")'
        ' when { context.common_domains.contains("example.org") && context.credentials.isEmpty() };'
    )
    question = a_question(tool="http.fetch", hosts=("example.org",))
    named = msgspec.structs.replace(question.effect, credentials=("github",))
    assert gate.judge(question, ()).verdict is Verdict.ALLOW
    assert gate.judge(replace(question, effect=named), ()).verdict is Verdict.ASK


def test_an_agent_always_asks() -> None:
    gate = a_gate('@id("careful") forbid (principal == Agent::"agent-1", action == Action::"run", resource);')
    judged = gate.judge(a_question(Risk.LOW), ())
    assert (judged.verdict, judged.reason) == (Verdict.ASK, "Policy careful applies.")
    assert gate.judge(a_question(Risk.LOW, agent_id=AgentId("agent-2")), ()).verdict is Verdict.ALLOW


def test_all_agents_of_a_person_are_spoken_of_by_the_person() -> None:
    gate = a_gate('@id("guest") forbid (principal in Principal::"guest", action, resource);')
    assert gate.judge(a_question(Risk.LOW, principal=PrincipalId("guest")), ()).verdict is Verdict.DENY
    assert gate.judge(a_question(Risk.LOW), ()).verdict is Verdict.ALLOW


def test_a_tool_is_denied_even_if_an_answer_covers_it() -> None:
    gate = a_gate('@id("no-writing") forbid (principal, action, resource == Tool::"files.write");')
    judged = gate.judge(a_question(), [a_grant(policy_hash=gate.policy_hash)])
    assert (judged.verdict, judged.policies) == (Verdict.DENY, ("no-writing",))


def test_a_shipped_policy_is_replaced_by_one_of_its_name() -> None:
    gate = a_gate(
        '@id("reading-is-allowed") permit (principal, action == Action::"run", resource) when { resource.read_only };'
    )
    assert gate.judge(a_question(Risk.LOW), ()).verdict is Verdict.ASK
    assert gate.judge(a_question(Risk.MEDIUM, read_only=True), ()).verdict is Verdict.ALLOW


def test_what_no_policy_speaks_of_is_denied() -> None:
    gate = a_gate(
        '@id("changes-ask") permit (principal, action == Action::"ask", resource) when { context.risk == "medium" };'
    )
    judged = gate.judge(a_question(Risk.HIGH), ())
    assert (judged.verdict, judged.policies, judged.reason) == (Verdict.DENY, (), "No policy allows it.")


# -- what goes wrong


@pytest.mark.parametrize("action", ['action == Action::"run"', 'action == Action::"ask"', "action"])
@pytest.mark.parametrize("effect", ["permit", "forbid"])
def test_a_policy_that_errs_denies(effect: str, action: str) -> None:
    gate = a_gate(
        f'@id("adds-too-much") {effect} (principal, {action}, resource)'
        " when { context.risk_level + 9223372036854775807 == 0 };"
    )
    judged = gate.judge(a_question(Risk.MEDIUM), [a_grant(policy_hash=gate.policy_hash)])
    assert (judged.verdict, judged.policies) == (Verdict.DENY, ("adds-too-much",))
    assert judged.reason.startswith("Policy adds-too-much cannot be evaluated")


def test_a_call_that_the_engine_can_not_read_is_denied() -> None:
    judged = SHIPPED.judge(a_question(Risk.LOW, command="half a \ud800 character"), ())
    assert (judged.verdict, judged.policies) == (Verdict.DENY, ())
    judged = SHIPPED.judge(a_question(Risk.LOW, tool="half.\ud800"), ())
    assert judged.verdict is Verdict.DENY
    assert judged.reason.startswith("The policies cannot be evaluated")


def test_names_that_look_like_policy_are_only_names() -> None:
    strange = 'x", action, resource);\npermit(principal, action, resource);//'
    judged = SHIPPED.judge(a_question(Risk.HIGH, tool=strange, command=strange, approver_reachable=False), ())
    assert judged.verdict is Verdict.DENY


# -- manifests


MANIFEST = CapabilityManifest(
    name="weather",
    digest="0" * 16,
    tools=frozenset({"http.fetch"}),
    hosts=frozenset({"api.test", "*.weather.test"}),
    paths=frozenset({"/home/ana/weather"}),
)


@pytest.mark.parametrize(
    ("tool", "hosts", "paths", "allowed"),
    [
        ("http.fetch", ("api.test",), (), True),
        ("http.fetch", ("eu.weather.test",), ("/home/ana/weather/now.txt",), True),
        ("shell.run", (), (), False),
        ("http.fetch", ("weather.test",), (), False),
        ("http.fetch", ("api.test", "evil.test"), (), False),
        ("http.fetch", (), ("/home/ana/weather/../notes",), False),
        ("http.fetch", (), ("notes.txt",), False),
    ],
)
def test_what_lies_beyond_the_manifest_is_denied_whatever_the_policies_say(
    tool: str, hosts: tuple[str, ...], paths: tuple[str, ...], allowed: bool
) -> None:
    question = a_question(Risk.LOW, tool=tool, hosts=hosts, paths=paths, manifest=MANIFEST)
    judged = SHIPPED.judge(question, ())
    assert judged.verdict is (Verdict.ALLOW if allowed else Verdict.DENY)
    assert allowed or (judged.policies == ("manifest",) and "manifest" in judged.reason)


def test_the_policies_still_count_within_the_manifest() -> None:
    judged = SHIPPED.judge(a_question(tool="http.fetch", hosts=("api.test",), manifest=MANIFEST), ())
    assert judged.verdict is Verdict.ASK


# -- earlier answers


def test_who_accepts_text_of_the_web_for_a_session_is_not_asked_about_each_class_that_he_allowed_in_it() -> None:
    web = a_question(labels=(labels.OWNER, labels.WEB), kind="folder:/a")
    mine = a_grant(policy_hash=SHIPPED.policy_hash, scope=ApprovalScope.SESSION, label=labels.OWNER, kind="folder:/a")
    accepted = a_grant(policy_hash=SHIPPED.policy_hash, scope=ApprovalScope.SESSION, label=labels.WEB, kind="folder:/b")
    assert SHIPPED.judge(web, [mine]).verdict is Verdict.ASK
    assert SHIPPED.judge(web, [mine, accepted]).verdict is Verdict.ALLOW
    assert SHIPPED.judge(a_question(labels=(labels.WEB,), kind="folder:/c"), [mine, accepted]).verdict is Verdict.ASK


@pytest.mark.parametrize(
    "accepted",
    [
        {"scope": ApprovalScope.ALWAYS, "label": labels.WEB},
        {"scope": ApprovalScope.SESSION, "label": labels.WEB, "session_id": SessionId("another")},
        {"scope": ApprovalScope.SESSION, "label": labels.WEB, "revoked_at": NOW},
        {"scope": ApprovalScope.SESSION, "label": labels.WEB, "expires_at": NOW},
        {"scope": ApprovalScope.SESSION, "label": labels.OTHER},
        {"scope": ApprovalScope.SESSION, "label": "a-label-of-a-later-version"},
        {"scope": ApprovalScope.SESSION, "label": labels.WEB, "agent_id": AgentId("another")},
        {"scope": ApprovalScope.SESSION, "label": labels.WEB, "policy_hash": "another"},
    ],
    ids=lambda given: " ".join(f"{name}={value}" for name, value in given.items())[:40],
)
def test_nothing_else_lifts_what_was_allowed_for_trusted_text(accepted: dict[str, Any]) -> None:
    web = a_question(labels=(labels.OWNER, labels.WEB), kind="folder:/a")
    mine = a_grant(policy_hash=SHIPPED.policy_hash, scope=ApprovalScope.SESSION, label=labels.OWNER, kind="folder:/a")
    other = a_grant(**{"policy_hash": SHIPPED.policy_hash, "kind": "folder:/b", **accepted})
    assert SHIPPED.judge(web, [mine, other]).verdict is Verdict.ASK
    general = a_grant(policy_hash=SHIPPED.policy_hash, scope=ApprovalScope.ALWAYS, label=labels.OWNER, kind="folder:/a")
    here = a_grant(policy_hash=SHIPPED.policy_hash, scope=ApprovalScope.SESSION, label=labels.WEB, kind="folder:/b")
    assert SHIPPED.judge(web, [general, here]).verdict is Verdict.ASK


@given(
    principal=st.booleans(),
    agent=st.booleans(),
    tool=st.booleans(),
    kind=st.sampled_from(["same", "other", "empty"]),
    policy=st.booleans(),
    session=st.booleans(),
    scope=st.sampled_from(ApprovalScope),
    expires=st.sampled_from([None, timedelta(seconds=-1), timedelta(0), timedelta(seconds=1)]),
    revoked=st.booleans(),
    of_grant=st.sampled_from(LABELS),
    of_question=st.lists(st.sampled_from(LABELS), min_size=1).map(tuple),
)
def test_an_answer_covers_exactly_what_it_was_given_for(
    *,
    principal: bool,
    agent: bool,
    tool: bool,
    kind: str,
    policy: bool,
    session: bool,
    scope: ApprovalScope,
    expires: timedelta | None,
    revoked: bool,
    of_grant: str,
    of_question: tuple[str, ...],
) -> None:
    question = a_question(labels=of_question, kind="" if kind == "empty" else "folder:/a")
    grant = a_grant(
        policy_hash=SHIPPED.policy_hash if policy else "another",
        scope=scope,
        label=of_grant,
        tool="files.write" if tool else "files.patch",
        kind={"same": "folder:/a", "other": "folder:/b", "empty": ""}[kind],
        principal=PrincipalId("owner" if principal else "guest"),
        agent_id=AgentId("agent-1" if agent else "agent-2"),
        session_id=SESSION if session else SessionId("session-2"),
        expires_at=NOW + expires if expires is not None else None,
        revoked_at=NOW if revoked else None,
    )
    least = max(of_question, key=LABELS.index)
    expected = (
        all((principal, agent, tool, policy))
        and kind == "same"
        and not revoked
        and (expires is None or expires > timedelta(0))
        and LABELS.index(least) <= max(LABELS.index(of_grant), LABELS.index(labels.TOOL))
        and {
            ApprovalScope.ONCE: False,
            ApprovalScope.SESSION: session,
            ApprovalScope.TIMEBOXED: expires is not None,
            ApprovalScope.ALWAYS: True,
        }[scope]
    )
    assert covers(grant, question, policy_hash=SHIPPED.policy_hash) is expected
    judged = SHIPPED.judge(question, [grant])
    assert judged.verdict is (Verdict.ALLOW if expected else Verdict.ASK)
    assert judged.grant_id == ("grant-1" if expected else None)


def test_an_answer_under_another_policy_covers_nothing() -> None:
    grant = a_grant(policy_hash=SHIPPED.policy_hash)
    changed = a_gate('@id("more") forbid (principal, action, resource == Tool::"other");')
    assert SHIPPED.judge(a_question(), [grant]).verdict is Verdict.ALLOW
    assert changed.judge(a_question(), [grant]).verdict is Verdict.ASK


def test_the_first_answer_that_covers_the_call_is_named() -> None:
    wrong = a_grant(policy_hash="another")
    right = a_grant(policy_hash=SHIPPED.policy_hash)
    assert SHIPPED.judge(a_question(), [wrong, right]).grant_id == "grant-1"
    assert SHIPPED.judge(replace(a_question(), session_id=SessionId("s")), [wrong]).grant_id is None


def test_a_gate_is_of_one_set_for_good() -> None:
    gate: Gate = a_gate()
    assert gate.policy_hash == SHIPPED.policy_hash
