"""Repeated failures: how a run that makes no progress is detected.

The same call may fail several times for good reasons: a test between two edits of a file. So only failures of one call
with nothing new in between count. A call that succeeds brings something new unless it succeeded before.
"""

from msgspec import Struct

from palyra.core.attestation import digest_of_json
from palyra.core.tool import CallOutcome, ToolCall

MAX_FAILURES = 3
_FAILED = frozenset({CallOutcome.ERROR, CallOutcome.TIMEOUT, CallOutcome.DENIED})


class RepeatedFailures(Struct, frozen=True):
    """What has failed since the run last made progress."""

    failed: tuple[tuple[str, int], ...] = ()
    """The digests of the calls that failed, and how often each did."""
    succeeded: frozenset[str] = frozenset()
    """The digests of the calls that have succeeded since something first failed."""

    @property
    def is_stuck(self) -> bool:
        """Whether one call has failed too often."""
        return any(count >= MAX_FAILURES for _, count in self.failed)

    def with_result(self, call: ToolCall, outcome: CallOutcome) -> "RepeatedFailures":
        """Return a copy with the result of one more call."""
        if outcome in _FAILED:
            counts = dict(self.failed)
            digest = _digest(call)
            counts[digest] = counts.get(digest, 0) + 1
            return RepeatedFailures(tuple(counts.items()), self.succeeded)
        # Digests cost time, and nothing is repeated as long as nothing has failed.
        if outcome is not CallOutcome.OK or not self.failed:
            return self
        digest = _digest(call)
        if digest in self.succeeded:
            return self
        return RepeatedFailures((), self.succeeded | {digest})


NOTHING_FAILED = RepeatedFailures()


def _digest(call: ToolCall) -> str:
    return digest_of_json((call.tool, call.malformed or call.arguments))
