"""The policies in force: one frozen set at a time, exchanged as a whole."""

import logging

from palyra.home import Home
from palyra.policy.gate import Gate
from palyra.policy.load import Policies, combine, load, user_files
from palyra.policy.source import permits_by_words

_log = logging.getLogger(__name__)


class CurrentPolicies:
    """Holds the policies of a home, and reads them again when asked. What is wrong changes nothing."""

    def __init__(self, home: Home) -> None:
        """Read the policies; raise `PolicyInvalid` if a file of the person's is wrong.

        Those that are shipped need no check. Without files of the person's own, the engine is not started before
        something is judged.
        """
        self._home = home
        self.adopt(load(home) if user_files(home) else combine(()))

    def read(self) -> Policies:
        """Return what the files say now; raise `PolicyInvalid` if anything is wrong."""
        return load(self._home)

    def adopt(self, policies: Policies) -> None:
        """Let these policies be in force. A judgement under way is not changed by it."""
        for problem in permits_by_words(policies.items):
            _log.warning("%s", problem)
        self.now = policies
        self.gate = Gate(policies)

    @property
    def hash(self) -> str:
        """What tells the policies in force from others."""
        return self.now.hash
