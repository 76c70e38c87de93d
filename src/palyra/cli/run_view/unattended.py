"""A run without a person to answer its approval requests: wait for another approver, leave it waiting, or deny."""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

import click

from palyra.cli.daemon import process
from palyra.cli.daemon.on_demand import has_terminal
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation
from palyra.cli.run_view.approval_prompt import CODE_CHARS, prompt_lines, prompt_of_approval
from palyra.cli.run_view.narration import RunEnded
from palyra.cli.run_view.watch import RunAudience, TerminalAudience, exit_after, watch
from palyra.cli.terminal.output import say, screen_width
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import PalyraError
from palyra.core.events import ApprovalRequested, RunStarted
from palyra.core.ids import RunId
from palyra.core.message import AcceptedMessage
from palyra.core.policy.approval import Approval
from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import RemoteError
from palyra.gateway.client.tape_stream import ReceivedEntry, TapeStream, follow_session
from palyra.gateway.client.target import find_daemon
from palyra.gateway.records.approvals import ApprovalAnswerRequest

NO_APPROVER = "No approver is available."
LISTED = 50
CONFLICT = 409
SUMMARY_WIDTH = 200
JOIN_SECONDS = 2.0


class OnApproval(StrEnum):
    """What to do with an approval request that cannot be shown to a person here."""

    WAIT = "wait"
    LEAVE = "leave"
    DENY = "deny"


on_approval_option = click.option(
    "--on-approval",
    type=click.Choice([choice.value for choice in OnApproval]),
    help="If a call needs approval: wait for the answer, leave the run waiting (exit code 5), or deny the call."
    " Default: wait at a terminal, otherwise leave.",
)


def rule_for(invocation: Invocation, chosen: str | None) -> OnApproval | None:
    """Return what to do with approval requests; None if the person at this terminal is asked."""
    asks = has_terminal() and not invocation.json
    if chosen is None:
        return None if asks else OnApproval.LEAVE
    rule = OnApproval(chosen)
    return None if asks and rule is OnApproval.WAIT else rule


def watch_unattended(
    invocation: Invocation, client: Client, accepted: AcceptedMessage, audience: RunAudience, *, rule: OnApproval
) -> Exit:
    """Follow a run to its end, or to the first approval request that it is left with."""
    unattended = UnattendedRun(client, accepted, audience, rule=rule)
    try:
        ended = watch(
            client,
            accepted.run_id,
            after_seq=accepted.after_seq,
            audience=unattended,
            on_stream=unattended.watching,
        )
    finally:
        unattended.close()
    if not unattended.left:
        return exit_after(ended)
    # Only a running daemon can accept the answer, whatever started it.
    if (daemon := find_daemon(invocation.home)) is not None:
        process.keep_running(invocation.home, daemon)
    _print_left_waiting(accepted.run_id, unattended.left, reported=isinstance(audience, TerminalAudience))
    return Exit.WAITING


class UnattendedRun:
    """Follows a run for another audience, and handles its approval requests and those of its child runs.

    While the run waits for its turn, the session has a stream of its own: an approval request of an earlier run blocks
    it just like one of its own.
    """

    def __init__(self, client: Client, accepted: AcceptedMessage, audience: RunAudience, *, rule: OnApproval) -> None:
        self.left: list[Approval] = []
        """The open approval requests that the run was left with."""
        self._client = client
        self._accepted = accepted
        self._audience = audience
        self._rule = rule
        self._tells = isinstance(audience, TerminalAudience)
        self._family = {accepted.run_id}
        self._main: TapeStream | None = None
        self._streams: list[TapeStream] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def watching(self, stream: TapeStream) -> None:
        """Store the stream that is closed when the run is left."""
        first, self._main = self._main is None, stream
        if first and self._accepted.queued and self._rule is not OnApproval.WAIT:
            self._watch_earlier_runs()

    def on_entry(self, line: ReceivedEntry) -> RunEnded | None:
        ended = self._audience.on_entry(line)
        self._take(line)
        return RunEnded(self._accepted.run_id, "waiting") if self.left and ended is None else ended

    def on_child_entry(self, line: ReceivedEntry) -> None:
        if line.run_id is not None:
            self._family.add(RunId(line.run_id))
        self._take(line)

    def lost(self) -> None:
        self._audience.lost()

    def close(self) -> None:
        """Stop following."""
        for stream in self._streams:
            stream.close()
        for thread in self._threads:
            thread.join(timeout=JOIN_SECONDS)

    def _take(self, line: ReceivedEntry) -> None:
        match line.event:
            case ApprovalRequested(approval_id=approval_id):
                self._decide(approval_id, reported=line.run_id == self._accepted.run_id and self._tells)
            case _:
                pass

    def _decide(self, approval_id: str, *, reported: bool) -> None:
        match self._rule:
            case OnApproval.DENY:
                self._deny(approval_id)
            case OnApproval.LEAVE:
                # It may be answered by now: a stream also brings old entries.
                approvals = [one for one in self._open() if one.run_id in self._family]
                if any(one.approval_id == approval_id for one in approvals):
                    self._leave(approvals)
            case OnApproval.WAIT if not reported:
                for one in self._open():
                    if one.approval_id == approval_id:
                        _put(one)
            case OnApproval.WAIT:
                pass

    def _deny(self, approval_id: str) -> None:
        try:
            denied = self._client.approvals.resolve(
                approval_id, ApprovalAnswerRequest(decision="deny", reason=NO_APPROVER)
            )
        except RemoteError as error:
            if error.status != CONFLICT:
                raise
            # Another approver was faster.
            return
        say(f"palyra: denied, because no approver is available: {_named(denied)}")

    def _leave(self, approvals: list[Approval]) -> None:
        with self._lock:
            self.left = self.left or approvals
        if self._main is not None:
            self._main.close()

    def _watch_earlier_runs(self) -> None:
        """Watch the session for approval requests of the runs before this one, until its turn comes."""
        accepted = self._accepted
        if self._client.run(accepted.run_id).status != "accepted":
            return
        stream = follow_session(self._client, accepted.session_id, after_seq=accepted.after_seq)

        def look(line: ReceivedEntry) -> None:
            if line.run_id == accepted.run_id and isinstance(line.event, RunStarted):
                stream.close()
            elif line.run_id != accepted.run_id and isinstance(line.event, ApprovalRequested):
                self._leave_behind()

        self._follow(stream, look)
        self._leave_behind()

    def _leave_behind(self) -> None:
        session_id = self._accepted.session_id
        approvals = [one for one in self._open() if one.session_id == session_id and one.run_id not in self._family]
        if approvals:
            self._leave(approvals)

    def _open(self) -> list[Approval]:
        return list(self._client.approvals.list(only_open=True, limit=LISTED).approvals)

    def _follow(self, stream: TapeStream, hear: Callable[[ReceivedEntry], None]) -> None:
        self._streams.append(stream)
        thread = threading.Thread(target=self._hear_ahead, args=(stream, hear), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _hear_ahead(self, stream: TapeStream, hear: Callable[[ReceivedEntry], None]) -> None:
        # If the daemon goes away, the run's own stream reports that.
        with suppress(PalyraError):
            for line in stream:
                hear(line)


def _print_left_waiting(run_id: str, approvals: list[Approval], *, reported: bool) -> None:
    """Print what the run waits for; `told` if its own approval requests were shown already."""
    if all(one.run_id != run_id for one in approvals):
        others = ", ".join(sorted({one.run_id for one in approvals}))
        say(f"palyra: run {run_id} waits for run {others}, which needs approval, and no terminal is attached:")
    else:
        say(f"palyra: run {run_id} needs approval, and no terminal is attached:")
    for one in approvals:
        if reported and one.run_id == run_id:
            say(f"- {_named(one)}")
            say(f"  {_ways(one.approval_id)}")
        else:
            _put(one)
    say(f"palyra: the run continues after your answer. Follow it with `palyra runs attach {run_id}`.")


def _put(one: Approval) -> None:
    """Show an approval request with its full effect, and how to answer it."""
    for row in prompt_lines(prompt_of_approval(one), width=screen_width(sys.stderr)):
        say(row)
    say(f"  Answer with {_ways(one.approval_id)}.")


def _ways(approval_id: str) -> str:
    code = approval_id[-CODE_CHARS:]
    return f"`palyra approvals allow {code}` or `palyra approvals deny {code}`"


def _named(one: Approval) -> str:
    return printable_line(one.effect.summary or one.tool or one.reason, width=SUMMARY_WIDTH)
