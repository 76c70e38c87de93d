"""Attestations: whoever changes an execution on the tape without the daemon's key is found out, new chain or not."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nacl.signing import SigningKey

from palyra.core.attestation import FullResult, ProgramRun, Statement, digest_of_json
from palyra.core.events import (
    ApprovalDecision,
    ApprovalResolved,
    ChildEnded,
    Entry,
    PolicyDecided,
    RunEvent,
    ToolFinished,
    ToolProposed,
    ToolStarted,
)
from palyra.core.ids import CallId, RunId
from palyra.core.run.state import RunState
from palyra.core.tool import CallOutcome, CallRuntime, JsonObject, Risk, Verdict
from palyra.journal import tape
from palyra.journal.atomic_file import atomic_file
from palyra.journal.content import artifacts
from palyra.journal.content.blobs import pack
from palyra.journal.engines.base import Connection
from palyra.journal.projection import replay_check
from palyra.journal.proof import export, export_proof
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.export_proof import ExportReport
from palyra.journal.proof.signing_key import KeySigner
from palyra.journal.proof.tape_proof import ProofProblem
from palyra.journal.tape import GENESIS, entry_hash
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.recording.run_writer import write_from_outside
from tests.contract.journal.archive.test_rotation import rotate
from tests.contract.journal.builders import a_run_id, a_session_id
from tests.contract.journal.content.test_blobs import an_artifact
from tests.contract.journal.homes import DONE, KeptHome
from tests.support.builders import (
    ANA,
    AT,
    a_child,
    a_completion,
    a_context,
    a_question,
    a_turn,
    a_turn_end,
    a_turn_start,
)

SESSION = a_session_id(1)
RUN = a_run_id(1)
FIRST, SECOND, THIRD = CallId("c1"), CallId("c2"), CallId("c3")
ARGUMENTS: JsonObject = {"command": "make", "folder": "./src"}
EDITED: JsonObject = {"command": "make test"}
LONG = b"a long result " * 3000

Change = Callable[[dict[str, Any]], object]
"""Changes the content of an entry."""


def proposed(call_id: CallId, tool: str, arguments: JsonObject) -> ToolProposed:
    return ToolProposed(at=AT, turn=1, call_id=call_id, tool=tool, arguments=arguments)


def decided(call_id: CallId, verdict: Verdict, *, grant_id: str | None = None) -> PolicyDecided:
    return PolicyDecided(
        at=AT,
        call_id=call_id,
        verdict=verdict,
        risk=Risk.MEDIUM,
        reason="",
        policy_hash="ab" * 32,
        grant_id=grant_id,
    )


def started(call_id: CallId, runtime: CallRuntime | None = CallRuntime.INTERNAL) -> ToolStarted:
    return ToolStarted(at=AT, call_id=call_id, runtime=runtime, spec="cd" * 32 if runtime is not None else "")


def finished(call_id: CallId, text: str, *, artifact: str | None = None) -> ToolFinished:
    return ToolFinished(at=AT, call_id=call_id, outcome=CallOutcome.OK, text=text, artifact=artifact)


class Carried:
    """A run that is carried step by step, each end of an execution attested as the daemon does it."""

    def __init__(self, kept: KeptHome, *, place: int = 1) -> None:
        self._kept = kept
        self._run_id = kept.run(place, SESSION)
        self._attester = ExecutionAttester(kept.signer)

    def step(self, *events: RunEvent) -> None:
        self._write(lambda state: events)

    def end(
        self, event: ToolFinished | ChildEnded, *, ran: tuple[ProgramRun, ...] = (), whole: FullResult | None = None
    ) -> None:
        self._write(lambda state: [self._attester.attest(state, event, ran=ran, full_result=whole)])

    def _write(self, events_of: Callable[[RunState], Iterable[RunEvent]]) -> None:
        self._kept.write(
            lambda conn: write_from_outside(
                conn, self._run_id, lambda state, _: events_of(state), ids=self._kept.ids, now_ms=0
            )
        )


@pytest.fixture
def kept(fresh_home: KeptHome) -> KeptHome:
    """A journal with three executions: an approved program with a long result, one after edited arguments, a child."""
    kept = fresh_home.begin()
    kept.session(1)
    run = Carried(kept)
    calls = [
        proposed(FIRST, "shell.run", ARGUMENTS),
        proposed(SECOND, "files.read", ARGUMENTS),
        proposed(THIRD, "agent.delegate", {"task": "Look."}),
    ]
    run.step(a_context(), a_turn_start(1), *calls, a_turn_end(1))
    run.step(decided(FIRST, Verdict.ALLOW, grant_id="g1"), decided(SECOND, Verdict.ASK), decided(THIRD, Verdict.ALLOW))
    run.step(a_question(SECOND))
    run.step(
        ApprovalResolved(
            at=AT,
            call_id=SECOND,
            approval_id="a1",
            decision=ApprovalDecision.ALLOWED,
            arguments=EDITED,
            actor="user:ana",
        ),
        decided(SECOND, Verdict.ALLOW),
    )
    artifact = an_artifact(LONG)
    kept.write(lambda conn: artifacts.add(conn, artifact, pack(LONG)))
    run.step(started(FIRST, CallRuntime.SHELL))
    run.end(
        finished(FIRST, "a part of it", artifact=artifact.artifact_id),
        ran=(ProgramRun(tier="strict", limits={"wall_ms": 60_000}, exit_code=2),),
        whole=FullResult(artifact_id=artifact.artifact_id, digest=artifact.digest, size=artifact.size),
    )
    run.step(started(SECOND))
    run.end(finished(SECOND, "so it reads"))
    run.step(started(THIRD), a_child(THIRD))
    run.end(ChildEnded(at=AT, call_id=THIRD, child_run_id=RunId("child"), outcome=CallOutcome.OK, text="Fine."))
    run.step(*a_turn(2), a_completion())
    return kept


def entries(kept: KeptHome, kind: str) -> list[Entry]:
    with kept.reading() as conn:
        return [entry for entry in tape.page(conn, SESSION, after_seq=0) if entry.kind == kind]


def attestation(content: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = content["attestation"]
    return found


def stated(entry: Entry) -> Statement:
    return msgspec.json.decode(attestation(json.loads(entry.content))["statement"], type=Statement)


def at(kept: KeptHome, kind: str, number: int = 0) -> int:
    return entries(kept, kind)[number].tape_seq


def rewrite(kept: KeptHome, seq: int, change: Change) -> None:
    """Change an entry as somebody does who can write to the database: with a new chain from there on."""

    def unit(conn: Connection) -> None:
        before = GENESIS
        for entry in tape.page(conn, SESSION, after_seq=0):
            (salt,) = conn.fetch("SELECT salt FROM tape WHERE tape_seq = :seq", {"seq": entry.tape_seq})[0]
            if entry.tape_seq == seq:
                content = json.loads(entry.content)
                change(content)
                entry = msgspec.structs.replace(entry, content=json.dumps(content, separators=(",", ":")))
            before = entry_hash(before, entry, salt)
            conn.execute(
                "UPDATE tape SET content = :content, hash = :hash WHERE session_id = :s AND tape_seq = :seq",
                {"content": entry.content, "hash": before, "s": SESSION, "seq": entry.tape_seq},
            )
        conn.execute("UPDATE heads SET hash = :hash WHERE session_id = :s", {"hash": before, "s": SESSION})

    kept.write(unit)


def problems(kept: KeptHome) -> tuple[ProofProblem, ...]:
    return kept.verify().problems


def change_statement(name: str, value: object) -> Change:
    def change(content: dict[str, Any]) -> None:
        said = json.loads(content["attestation"]["statement"])
        assert said[name] != value
        said[name] = value
        content["attestation"]["statement"] = json.dumps(said, separators=(",", ":"))

    return change


def test_every_execution_is_attested_and_holds(kept: KeptHome) -> None:
    report = kept.verify()

    assert report.problems == ()
    assert (report.attested, report.unattested) == (3, 0)


def test_a_statement_says_who_had_what_done_and_how(kept: KeptHome) -> None:
    first, second = (stated(entry) for entry in entries(kept, "tool_finished"))

    assert (first.principal, first.session_id, first.run_id, first.call_id) == (
        ANA,
        SESSION,
        RUN,
        FIRST,
    )
    assert (first.tool, first.runtime, first.grant_id, first.approval_id) == (
        "shell.run",
        CallRuntime.SHELL,
        "g1",
        None,
    )
    assert first.programs == (ProgramRun(tier="strict", limits={"wall_ms": 60_000}, exit_code=2),)
    assert first.arguments == digest_of_json(dict(reversed(ARGUMENTS.items())))
    assert first.full_result is not None
    assert first.full_result.size == len(LONG)
    assert (second.approval_id, second.arguments) == ("a1", digest_of_json(EDITED))


@pytest.mark.parametrize(
    ("kind", "number", "change", "what"),
    [
        ("tool_proposed", 0, lambda c: c["arguments"].update(command="make it"), "another set of arguments"),
        ("tool_proposed", 0, lambda c: c.update(tool="files.list"), "another tool"),
        ("approval_resolved", 0, lambda c: c["arguments"].update(command="rm"), "another set of arguments"),
        ("policy_decided", 0, lambda c: c.update(policy_hash="00" * 32), "another policy"),
        ("policy_decided", 0, lambda c: c.pop("grant_id"), "another grant"),
        ("run_accepted", 0, lambda c: c.update(principal="user:ben"), "another principal"),
        ("run_accepted", 0, lambda c: c.update(agent_id="another"), "another agent"),
        ("tool_started", 0, lambda c: c.update(spec="00" * 32), "another tool"),
        ("tool_started", 0, lambda c: c.update(at="2026-01-02T03:04:00Z"), "another start"),
        ("tool_finished", 0, lambda c: c.update(text="a part of it."), "another result"),
        ("tool_finished", 0, lambda c: c.update(outcome="error"), "another outcome"),
        ("tool_finished", 0, lambda c: c.update(at="2026-01-02T03:04:06Z"), "another end"),
        ("tool_finished", 0, lambda c: c.pop("artifact"), "another artifact"),
        ("child_ended", 0, lambda c: c.update(text="Not fine."), "another result"),
        ("tool_finished", 0, lambda c: c.pop("attestation"), "is not attested"),
        ("child_ended", 0, lambda c: c.pop("attestation"), "is not attested"),
        (
            "tool_finished",
            0,
            change_statement("ran", [{"tier": "off", "limits": {}, "exit_code": 2, "stopped": ""}]),
            "not signed",
        ),
        ("tool_finished", 0, change_statement("runtime", "internal"), "not signed"),
        ("tool_finished", 0, lambda c: attestation(c).update(signature="00" * 64), "not signed"),
        ("tool_finished", 0, lambda c: attestation(c).update(signature="no signature"), "not signed"),
        ("tool_finished", 0, lambda c: attestation(c).update(public_key="00" * 32), "not signed"),
    ],
)
def test_whatever_is_changed_is_found_though_the_chain_was_made_anew(
    kept: KeptHome, kind: str, number: int, change: Change, what: str
) -> None:
    rewrite(kept, at(kept, kind, number), change)

    (problem,) = problems(kept)

    assert problem.session_id == SESSION
    assert what in problem.what
    ends = {entry.tape_seq for kind in ("tool_finished", "child_ended") for entry in entries(kept, kind)}
    assert problem.tape_seq in ends


def test_an_attestation_of_another_call_does_not_do(kept: KeptHome) -> None:
    first, second = entries(kept, "tool_finished")

    rewrite(kept, first.tape_seq, lambda c: c.update(attestation=json.loads(second.content)["attestation"]))

    (problem,) = problems(kept)
    assert (problem.tape_seq, problem.what) == (first.tape_seq, "the attestation names another call than the tape")


def test_whoever_signs_with_another_key_has_not_signed(kept: KeptHome) -> None:
    forger = KeySigner(SigningKey(bytes(range(32))))

    def forge(content: dict[str, Any]) -> None:
        signed = attestation(content)
        signed["public_key"] = forger.public_key
        signed["signature"] = forger.sign(signed["statement"].encode())

    rewrite(kept, at(kept, "tool_finished"), forge)

    (problem,) = problems(kept)
    assert problem.what == "the attestation of this execution is not signed by this journal's key"


def test_an_attestation_without_an_execution_is_named(kept: KeptHome) -> None:
    rewrite(kept, at(kept, "tool_started"), lambda c: c.update(call_id="another"))

    (problem,) = problems(kept)

    assert problem.what == "an execution that never started is attested here"


@pytest.mark.parametrize(
    "harm", ["UPDATE artifacts SET digest = 'ab'", "UPDATE artifacts SET size = 1", "DELETE FROM artifacts"]
)
def test_the_whole_of_a_result_is_held_against_what_was_attested(kept: KeptHome, harm: str) -> None:
    kept.change(harm)

    (problem,) = problems(kept)

    assert problem.what == "the stored full result differs from the attested one"


def test_content_that_was_changed_is_found_by_a_deep_look(kept: KeptHome) -> None:
    assert replay_check.examine(kept.home, kept.settings).ok
    kept.change("UPDATE blob_parts SET content = 'nothing'")

    found = replay_check.examine(kept.home, kept.settings)

    assert found.report.ok
    assert ["is missing or was changed" in problem.what for problem in found.file] == [True]


def test_executions_from_before_are_counted_and_not_held_against_anybody(kept: KeptHome) -> None:
    kept.run(2, SESSION, *DONE)

    report = kept.verify()

    assert report.ok
    assert (report.attested, report.unattested) == (3, 1)


def test_a_call_that_never_started_is_neither_attested_nor_missed(kept: KeptHome) -> None:
    run = Carried(kept, place=2)
    run.step(*a_turn(1, "c9"))
    run.end(finished(CallId("c9"), "not run"))

    assert kept.verify().ok
    assert (kept.verify().attested, kept.verify().unattested) == (3, 0)


# -- without the journal


def exported_to(path: Path, kept: KeptHome, *, since: Anchor | None = None) -> ExportReport:
    with kept.reading() as conn, atomic_file(path) as file:
        export.write(conn, file.write, made_at=AT, since=since)
    return export_proof.verify_file(path)


def test_an_export_proves_its_attestations(kept: KeptHome, tmp_path: Path) -> None:
    proof = exported_to(tmp_path / "all", kept)

    assert proof.report.ok
    assert (proof.report.attested, proof.report.unattested) == (3, 0)

    rewrite(kept, at(kept, "tool_finished", 1), lambda c: c.update(text="so it read"))

    (problem,) = exported_to(tmp_path / "changed", kept).report.problems
    assert problem.what == "the attestation names another result than the tape"


def test_an_export_of_what_is_new_proves_executions_that_began_before(kept: KeptHome, tmp_path: Path) -> None:
    run = Carried(kept, place=2)
    run.step(a_context(), a_turn_start(1), proposed(FIRST, "files.read", ARGUMENTS), a_turn_end(1))
    run.step(decided(FIRST, Verdict.ALLOW))
    run.step(started(FIRST))
    anchor = kept.anchor()
    run.end(finished(FIRST, "so it reads"))

    proof = exported_to(tmp_path / "new", kept, since=anchor)
    assert proof.report.ok
    assert (proof.report.attested, proof.report.unattested) == (1, 0)

    rewrite(kept, at(kept, "tool_finished", 2), lambda c: c.update(text="so it read"))
    (problem,) = exported_to(tmp_path / "changed", kept, since=anchor).report.problems
    assert problem.what == "the attestation names another result than the tape"


def test_attestations_are_proved_after_the_tape_was_moved_away(kept: KeptHome) -> None:
    kept.archive(SESSION)
    kept.anchor()

    rotate(kept)

    assert kept.verify().ok
    assert kept.verify().attested == 0
    (file,) = (kept.home.path / row[0] for row in kept.rows("SELECT file FROM rotated"))
    assert export_proof.verify_file(file).report.ok
    assert export_proof.verify_file(file).report.attested == 3
