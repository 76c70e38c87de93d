"""Calls judged once more."""

import pytest

from palyra.core.events import PolicyDecided, ToolProposed
from palyra.core.ids import CallId, RunId
from palyra.core.policy.effect import Effect
from palyra.core.run.decided_calls import DecidedCall
from palyra.core.tool import JsonObject, Risk, ToolSpec, Verdict
from palyra.policy.simulation import HypotheticalCall, judge_again, judge_hypothetical
from tests.unit.policy.asking import AGENT, NOW, OWNER, SESSION, a_gate

SHIPPED = a_gate()
SHELL = ToolSpec(name="shell.run", description="", parameters={}, risk=Risk.MEDIUM)
NO_PUSH = '@id("no-push") forbid (principal, action, resource) when { context.commands.contains("git push") };'


def a_call(
    effect: Effect | None,
    *,
    arguments: JsonObject | None = None,
    labels: tuple[str, ...] = ("owner",),
    approver_reachable: bool = True,
    channels: tuple[str, ...] = ("grpc",),
    grant_id: str | None = None,
    risk: Risk = Risk.MEDIUM,
) -> DecidedCall:
    call_id = CallId("c1")
    return DecidedCall(
        principal=OWNER,
        agent_id=AGENT,
        session_id=SESSION,
        run_id=RunId("r1"),
        proposed=ToolProposed(at=NOW, turn=1, call_id=call_id, tool="shell.run", arguments=arguments or {}),
        decided=PolicyDecided(
            at=NOW,
            labels=labels,
            call_id=call_id,
            verdict=Verdict.ASK,
            risk=risk,
            reason="",
            effect=effect,
            approver_reachable=approver_reachable,
            grant_id=grant_id,
        ),
        channels=channels,
    )


PUSH = Effect(risk=Risk.MEDIUM, summary="run git push", command="git push", kind="command:git push")


def test_a_recorded_call_is_judged_by_what_was_recorded() -> None:
    assert judge_again(SHIPPED, a_call(PUSH), SHELL).verdict is Verdict.ASK
    assert judge_again(a_gate(NO_PUSH), a_call(PUSH), SHELL).policies == ("no-push",)
    alone = a_call(Effect(risk=Risk.HIGH, summary=""), approver_reachable=False)
    assert judge_again(SHIPPED, alone, SHELL).policies == ("no-approval-channel",)
    web = judge_again(SHIPPED, a_call(PUSH, labels=("owner", "web")), SHELL)
    assert "untrusted-text-asks" in web.policies


def test_a_call_is_judged_by_the_channels_of_then() -> None:
    gate = a_gate('@id("no") forbid (principal, action, resource) when { context.channel == Channel::"http" };')
    assert judge_again(gate, a_call(PUSH), SHELL).verdict is Verdict.ASK
    assert judge_again(gate, a_call(PUSH, channels=("grpc", "http")), SHELL).policies == ("no",)
    assert judge_again(gate, a_call(PUSH, channels=()), SHELL).verdict is Verdict.ASK
    assert judge_hypothetical(gate, HypotheticalCall(tool="files.read", channel="http"), SHELL).verdict is Verdict.DENY
    assert judge_hypothetical(gate, HypotheticalCall(tool="files.read"), SHELL).verdict is not Verdict.DENY


@pytest.mark.parametrize("label", ["owner", "web"])
def test_an_answer_that_covered_a_call_covers_it_still(label: str) -> None:
    judged = judge_again(SHIPPED, a_call(PUSH, labels=(label,), grant_id="grant-1"), SHELL)
    assert (judged.verdict, judged.policies) == (Verdict.ALLOW, ("grants-hold",))
    other = judge_again(a_gate(NO_PUSH), a_call(PUSH, labels=(label,), grant_id="grant-1"), SHELL)
    assert other.verdict is Verdict.DENY


def test_a_call_recorded_without_its_effect_is_judged_by_its_arguments() -> None:
    past = a_call(None, arguments={"command": "git push"}, approver_reachable=False, risk=Risk.HIGH)
    judged = judge_again(SHIPPED, past, SHELL)
    assert (judged.verdict, judged.risk) == (Verdict.ASK, Risk.HIGH)
    assert judge_again(a_gate(NO_PUSH), past, SHELL).verdict is Verdict.DENY


def test_an_imagined_call_is_harmless_unless_something_else_is_said() -> None:
    read = ToolSpec(name="files.read", description="", parameters={})
    assert judge_hypothetical(SHIPPED, HypotheticalCall(tool="files.read"), read).verdict is Verdict.ALLOW
    assert (
        judge_hypothetical(SHIPPED, HypotheticalCall(tool="files.read", risk=Risk.MEDIUM), read).verdict is Verdict.ASK
    )
    force = judge_hypothetical(
        SHIPPED, HypotheticalCall(tool="shell.run", command="git push -f", approver_reachable=False), SHELL
    )
    assert (force.verdict, force.risk) == (Verdict.DENY, Risk.HIGH)
    granted = judge_hypothetical(
        SHIPPED, HypotheticalCall(tool="shell.run", command="x", label="web", granted=True), SHELL
    )
    assert granted.verdict is Verdict.ALLOW
    named = judge_hypothetical(
        a_gate(NO_PUSH), HypotheticalCall(tool="shell.run", arguments={"command": "git push"}), SHELL
    )
    assert named.verdict is Verdict.DENY
    seen = judge_hypothetical(
        SHIPPED, HypotheticalCall(tool="shell.run"), SHELL, effect=Effect(risk=Risk.LOW, summary="")
    )
    assert seen.verdict is Verdict.ALLOW
