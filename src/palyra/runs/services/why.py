"""Explains why something is as it is: finds what a person names, and traces it back to its source."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from msgspec.structs import replace

from palyra.core.artifact import Artifact, FileCheckpoint
from palyra.core.clock import Clock, to_ms
from palyra.core.errors import NotFound, PalyraError
from palyra.core.events import Entry, RunAccepted
from palyra.core.ids import LENGTH, CallId, IdInvalid, PrincipalId, RunId, SessionId, parse_ulid, time_of
from palyra.core.policy.approval import Approval
from palyra.core.run.decided_calls import DecidedCall
from palyra.core.session_events import SessionEvent
from palyra.core.trace.tree import TRACE_SUBJECTS_HELP, Trace, TraceNode
from palyra.journal import tape
from palyra.journal.content import artifacts, file_checkpoints
from palyra.journal.content.artifacts import ArtifactNotFound
from palyra.journal.content.file_checkpoints import FileCheckpointNotFound
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.ledger import embeddings
from palyra.journal.stores import approvals, policy_decisions, runs, sessions
from palyra.runs.services.approvals import CODE_CHARS
from palyra.runs.trace import builder
from palyra.runs.trace.builder import TraceFocus, focus_on, run_tree
from palyra.runs.trace.nodes import file_node, session_node
from palyra.sandbox.files.workspace import Workspace

LAST = "last"
CLOCKS_APART_MS = 60_000
"""How far the time in an id may be outside of its run: clocks are set, and machines differ."""
MAX_RUNS_CHECKED = 200
MAX_CALLS_CHECKED = 5_000
LATER_SHOWN = 20
EMBEDDED = ("embeddings_started", "embeddings_ended")
CHANGES_SHOWN = 100


class TraceSubjectNotFound(NotFound):
    """You have nothing with this name."""

    def __init__(self, name: str, because: str = "You have nothing with this name") -> None:
        super().__init__(f"{because}: {name[:80]!r}. {TRACE_SUBJECTS_HELP}")


class TraceService:
    """Traces a principal's things back to their source."""

    def __init__(self, engine: Engine, *, clock: Clock, workspace: Callable[[PrincipalId], Workspace]) -> None:
        self._engine = engine
        self._clock = clock
        self._workspace = workspace

    async def trace(self, principal: PrincipalId, name: str) -> Trace:
        """Return where something came from."""
        path = None
        if not _is_id(name) and name != LAST and _entry(name) is None:
            path = await asyncio.to_thread(_absolute, self._workspace, principal, name)
        now_ms = to_ms(self._clock.now())
        return await self._engine.read(lambda conn: _TraceSearch(conn, principal, name, now_ms=now_ms).trace(path))


class _TraceSearch:
    """One search in the journal."""

    def __init__(self, conn: Connection, principal: PrincipalId, name: str, *, now_ms: int) -> None:
        self._conn = conn
        self._now_ms = now_ms
        self._principal = principal
        self._name = name

    def trace(self, path: str | None) -> Trace:
        if self._name == LAST:
            return self._last()
        if (entry := _entry(self._name)) is not None:
            return self._entry(*entry)
        if not _is_id(self._name):
            return self._code() or self._file(path)
        requested = parse_ulid(self._name)
        ways = (
            self._run,
            self._approval,
            self._checkpoint,
            self._artifact,
            self._session,
            self._embeddings,
            self._call,
        )
        matching_trace = next((trace for way in ways if (trace := way(requested)) is not None), None)
        if matching_trace is None:
            raise TraceSubjectNotFound(self._name)
        return matching_trace

    # -- what can be named

    def _last(self) -> Trace:
        matching_runs = runs.page(
            self._conn, self._principal, session_id=None, before=None, limit=1, now_ms=self._now_ms
        )
        if not matching_runs:
            raise TraceSubjectNotFound(self._name, "You have no run yet")
        return self._traced("run", self._tree(matching_runs[0].run_id))

    def _run(self, requested: str) -> Trace | None:
        run = runs.get(self._conn, RunId(requested), self._principal)
        return None if run is None else self._traced("run", self._tree(run.run_id))

    def _session(self, requested: str) -> Trace | None:
        run = runs.last_in(self._conn, SessionId(requested), self._principal)
        return None if run is None else self._traced("run", self._tree(run.run_id))

    def _entry(self, session_id: SessionId, tape_seq: int) -> Trace:
        if sessions.get(self._conn, session_id, self._principal) is None:
            raise TraceSubjectNotFound(self._name)
        page = tape.page(self._conn, session_id, after_seq=tape_seq - 1, limit=1)
        if not page or page[0].tape_seq != tape_seq:
            raise TraceSubjectNotFound(self._name, "The tape of that session has no such entry")
        entry = page[0]
        if entry.run_id is None:
            assert isinstance(entry.event, SessionEvent)
            return self._traced("entry", session_node(entry, subject=True))
        return self._traced("entry", self._tree(entry.run_id, at=tape_seq))

    def _approval(self, requested: str) -> Trace | None:
        approval = approvals.get(self._conn, requested, self._principal)
        return None if approval is None else self._of_approval(approval)

    def _code(self) -> Trace | None:
        if len(self._name) != CODE_CHARS:
            return None
        matching_approvals = approvals.ending_in(self._conn, self._name.upper(), self._principal)
        return self._of_approval(matching_approvals[0]) if len(matching_approvals) == 1 else None

    def _of_approval(self, approval: Approval) -> Trace:
        # One about budgets concerns the whole run.
        if not approval.call_id:
            return self._traced("approval", self._tree(approval.run_id))
        return self._of_call("approval", approval.run_id, approval.call_id)

    def _artifact(self, requested: str) -> Trace | None:
        try:
            artifact = artifacts.get(self._conn, requested, self._principal)
        except ArtifactNotFound:
            return None
        link = TraceNode(
            kind="artifact",
            what=f"{artifact.size} bytes of {artifact.what}",
            at=artifact.made_at,
            by=artifact.what,
            session_id=artifact.session_id,
            run_id=artifact.run_id,
            facts={"artifact_id": artifact.artifact_id, "digest": artifact.digest, "size": artifact.size},
            subject=True,
        )
        return self._of_call("artifact", artifact.run_id, artifact.call_id, left=[link], later=self._readers(artifact))

    def _checkpoint(self, requested: str) -> Trace | None:
        try:
            file_checkpoint = file_checkpoints.get(self._conn, requested, self._principal)
        except FileCheckpointNotFound:
            return None
        return self._of_change("checkpoint", file_checkpoint)

    def _file(self, path: str | None) -> Trace:
        matching_file_checkpoints = (
            file_checkpoints.page(self._conn, self._principal, path=path, limit=1) if path is not None else []
        )
        if not matching_file_checkpoints:
            raise TraceSubjectNotFound(
                self._name, "No agent of yours has changed a file with this name, and nothing else has it"
            )
        return self._of_change("file", matching_file_checkpoints[0])

    def _embeddings(self, requested: str) -> Trace | None:
        ledger_turn = embeddings.find(self._conn, requested, self._principal)
        if ledger_turn is None:
            return None
        entries = tape.since(self._conn, SessionId(ledger_turn.session_id), EMBEDDED, at_ms=ledger_turn.at_ms)
        links = [
            session_node(entry, subject=True)
            for entry in entries
            if getattr(entry.event, "request_id", None) == requested
        ]
        if not links:
            raise TraceSubjectNotFound(self._name, "Its tape was moved to the archive")
        return self._traced("embeddings", replace(links[0], then=tuple(links[1:])))

    def _call(self, requested: str) -> Trace | None:
        at_ms = time_of(requested)
        near = runs.under_way(
            self._conn,
            self._principal,
            since_ms=at_ms - CLOCKS_APART_MS,
            until_ms=at_ms + CLOCKS_APART_MS,
            limit=MAX_RUNS_CHECKED,
        )
        for run_id, _ in near:
            if builder.proposes(tape.of_run(self._conn, run_id), CallId(requested)):
                return self._of_call("call", run_id, CallId(requested))
        return None

    # -- trees

    def _tree(self, run_id: RunId, *, at: int | None = None) -> TraceNode:
        entries = self._entries(run_id)
        focus = focus_on(entries, at) if at is not None else builder.WHOLE_RUN
        return self._above(entries, run_tree(entries, focus=focus, left=self._left(run_id, focus)))

    def _of_call(
        self,
        kind: str,
        run_id: RunId,
        call_id: CallId,
        *,
        left: list[TraceNode] | None = None,
        later: list[TraceNode] | None = None,
    ) -> Trace:
        entries = self._entries(run_id)
        stored_file_checkpoints = file_checkpoints.of_call(self._conn, run_id, call_id)
        if left is None:
            left = [file_node(one) for one in stored_file_checkpoints]
        tree = run_tree(entries, focus=TraceFocus(call_id=call_id), left={call_id: left})
        if later is None:
            later = [link for one in stored_file_checkpoints for link in self._after(one)]
        return self._traced(kind, self._above(entries, tree), later)

    def _of_change(self, kind: str, changed: FileCheckpoint) -> Trace:
        if changed.run_id is not None and changed.call_id is not None:
            left = [
                file_node(one, subject=one.checkpoint_id == changed.checkpoint_id)
                for one in file_checkpoints.of_call(self._conn, changed.run_id, changed.call_id)
            ]
            return self._of_call(kind, changed.run_id, changed.call_id, left=left, later=self._after(changed))
        # A person restored it; what the restore undid has a history too.
        link = file_node(changed, subject=True)
        if changed.restores is not None:
            with suppress(FileCheckpointNotFound):
                taken_back = file_checkpoints.get(self._conn, changed.restores, self._principal)
                link = replace(link, then=(_unmarked(self._of_change(kind, taken_back).tree),))
        return self._traced(kind, link, self._after(changed))

    def _above(self, entries: list[Entry], tree: TraceNode) -> TraceNode:
        """Attach the tree of a child below the call of its parent, up to the run that a person started."""
        accepted = entries[0].event
        assert isinstance(accepted, RunAccepted)
        if (parent := accepted.parent) is None:
            return tree
        higher = self._entries(parent.run_id)
        focus = TraceFocus(call_id=parent.call_id)
        return self._above(higher, _unasked(run_tree(higher, focus=focus, below={parent.call_id: tree}), tree))

    def _entries(self, run_id: RunId) -> list[Entry]:
        entries = tape.of_run(self._conn, run_id)
        if not entries:
            raise TraceSubjectNotFound(self._name, "Its tape was moved to the archive")
        return entries

    def _left(self, run_id: RunId, focus: TraceFocus) -> dict[CallId, list[TraceNode]]:
        """Return the files that the calls of a run changed."""
        left: dict[CallId, list[TraceNode]] = {}
        for entry in tape.of_run(self._conn, run_id):
            if entry.kind == "tool_started":
                call_id: CallId = getattr(entry.event, "call_id")  # noqa: B009
                if focus.call_id in (None, call_id) and call_id not in left:
                    stored_file_checkpoints = file_checkpoints.of_call(self._conn, run_id, call_id)[:CHANGES_SHOWN]
                    left[call_id] = [file_node(one) for one in stored_file_checkpoints]
        return left

    # -- what followed

    def _after(self, changed: FileCheckpoint) -> list[TraceNode]:
        """Return the later changes of the same file, and the calls that read it since."""
        matching_file_checkpoints = file_checkpoints.page(
            self._conn, self._principal, path=changed.path, limit=CHANGES_SHOWN
        )
        later = [file_node(one) for one in matching_file_checkpoints if one.checkpoint_id > changed.checkpoint_id]
        later += self._calls(to_ms(changed.at), lambda call: _reads(call, changed))
        return sorted(later, key=lambda link: link.at)[:LATER_SHOWN]

    def _readers(self, artifact: Artifact) -> list[TraceNode]:
        requested = artifact.artifact_id
        return self._calls(to_ms(artifact.made_at), lambda call: requested in call.proposed.arguments.values())

    def _calls(self, since_ms: int, fits: Callable[[DecidedCall], bool]) -> list[TraceNode]:
        mine: Iterator[DecidedCall] = (
            call
            for call in islice(policy_decisions.decided(self._conn, since_ms=since_ms), MAX_CALLS_CHECKED)
            if call.principal == self._principal and to_ms(call.proposed.at) >= since_ms and fits(call)
        )
        return [_read_by(call) for call in islice(mine, LATER_SHOWN)][::-1]

    def _traced(self, kind: str, tree: TraceNode, later: list[TraceNode] | None = None) -> Trace:
        return Trace(of=self._name, kind=kind, tree=tree, later=tuple(later or ()))


def _reads(call: DecidedCall, changed: FileCheckpoint) -> bool:
    """Tell whether a call named the file without changing it; a call that changes it has a file checkpoint."""
    if call.proposed.call_id == changed.call_id:
        return False
    named = call.proposed.arguments.get("path")
    return isinstance(named, str) and os.path.normpath(os.path.join(changed.root, named)) == changed.path


def _read_by(call: DecidedCall) -> TraceNode:
    return TraceNode(
        kind="call",
        what=f"{call.proposed.tool}, {call.decided.verdict.value}",
        at=call.proposed.at,
        by=call.proposed.actor,
        session_id=call.session_id,
        run_id=call.run_id,
        labels=call.proposed.labels,
        facts={"call_id": call.proposed.call_id, "tool": call.proposed.tool, "arguments": call.proposed.arguments},
    )


def _unmarked(tree: TraceNode) -> TraceNode:
    return replace(tree, subject=False, then=tuple(_unmarked(link) for link in tree.then))


def _unasked(tree: TraceNode, trace_node: TraceNode) -> TraceNode:
    """Take the mark from everything but the tree of the child."""
    if tree is trace_node:
        return tree
    return replace(tree, subject=False, then=tuple(_unasked(link, trace_node) for link in tree.then))


def _is_id(name: str) -> bool:
    if len(name) != LENGTH:
        return False
    try:
        parse_ulid(name)
    except IdInvalid:
        return False
    return True


def _entry(name: str) -> tuple[SessionId, int] | None:
    session, _, seq = name.partition(":")
    if not _is_id(session) or not seq.isascii() or not seq.isdigit() or len(seq) > 16:
        return None
    return SessionId(parse_ulid(session)), int(seq)


def _absolute(workspace: Callable[[PrincipalId], Workspace], principal: PrincipalId, path: str) -> str | None:
    """Return the absolute path of a file, None if it is in no workspace of the principal's."""
    try:
        with workspace(principal).reach(path, absent=True) as at:
            return at.path
    except PalyraError:
        return None
