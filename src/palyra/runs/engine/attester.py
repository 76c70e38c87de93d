"""Signs, with the daemon's key, a statement about the outcome of each tool execution."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from palyra.core import attestation
from palyra.core.attestation import Attestation, FullResult, ProgramRun, Statement, digest_of_json, digest_of_text
from palyra.core.events import ChildEnded, ToolFinished
from palyra.core.run.state import RunState
from palyra.journal.proof.anchors import Signer

Ended = TypeVar("Ended", bound=ToolFinished | ChildEnded)


class ExecutionAttester:
    """Signs statements for the daemon."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def attest(
        self, state: RunState, event: Ended, *, ran: Sequence[ProgramRun] = (), full_result: FullResult | None = None
    ) -> Ended:
        """Return the event with its signed statement.

        The statement goes to the tape in the same commit as the end itself. A call that never started gets none.
        """
        call = state.call(event.call_id)
        started = call.started
        if started is None or started.runtime is None:
            return event
        text = attestation.write(
            Statement(
                principal=state.principal,
                agent_id=state.agent_id,
                session_id=state.session_id,
                run_id=state.run_id,
                call_id=event.call_id,
                tool=call.call.tool,
                runtime=started.runtime,
                spec=started.spec,
                arguments=digest_of_json(call.call.arguments),
                policy_hash=call.policy_hash,
                approval_id=call.answered,
                grant_id=call.grant_id,
                attempt=started.attempt,
                started_at=started.at,
                finished_at=event.at,
                outcome=event.outcome,
                programs=tuple(ran),
                result=digest_of_text(event.text),
                full_result=full_result,
            )
        )
        signed = Attestation(
            statement=text, signature=self._signer.sign(text.encode()), public_key=self._signer.public_key
        )
        return replace(event, attestation=signed)
