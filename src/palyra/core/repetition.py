"""Calls that fail again and again: the sign by which a run that makes no progress is recognised.

The same call may fail several times for good reasons: a test between two edits of a file. So what counts are failures
of one call without anything new in between. A call that succeeds brings something new unless it has succeeded before.
"""

from msgspec import Struct

from palyra.core.attestation import digest_of_json
from palyra.core.tool import Outcome, ToolCall

MAX_FAILURES = 3
_FAILED = frozenset({Outcome.ERROR, Outcome.TIMEOUT, Outcome.DENIED})


class Repetition(Struct, frozen=True):
    """What has failed since the run last made progress."""

    failed: tuple[tuple[str, int], ...] = ()
    """The digests of the calls that failed, and how often each did."""
    succeeded: frozenset[str] = frozenset()
    """The digests of the calls that have succeeded since something first failed."""

    @property
    def is_stuck(self) -> bool:
        """Whether one call has failed too often."""
        return any(count >= MAX_FAILURES for _, count in self.failed)

    def with_result(self, call: ToolCall, outcome: Outcome) -> "Repetition":
        """Return it with the result of one more call."""
        if outcome in _FAILED:
            counts = dict(self.failed)
            digest = _digest(call)
            counts[digest] = counts.get(digest, 0) + 1
            return Repetition(tuple(counts.items()), self.succeeded)
        # Digests cost time, and nothing is repeated as long as nothing has failed.
        if outcome is not Outcome.OK or not self.failed:
            return self
        digest = _digest(call)
        if digest in self.succeeded:
            return self
        return Repetition((), self.succeeded | {digest})


NOTHING_FAILED = Repetition()


def _digest(call: ToolCall) -> str:
    return digest_of_json((call.tool, call.malformed or call.arguments))
