"""The policies in force: one immutable set at a time, replaced as a whole."""

import logging

from palyra.home import Home
from palyra.policy.cedar_source import permits_by_words
from palyra.policy.gate import Gate
from palyra.policy.loader import Policies, combine, load, user_files

_log = logging.getLogger(__name__)


class CurrentPolicies:
    """Holds the policies of a home, and reloads them on request. Invalid files change nothing."""

    def __init__(self, home: Home) -> None:
        """Read the policies; raise `PolicyInvalid` if one of the user's files is invalid.

        Shipped policies need no check. Without user files, the engine is not started before the first decision.
        """
        self._home = home
        self.adopt(load(home) if user_files(home) else combine(()))

    def read(self) -> Policies:
        """Return the policies in the files now; raise `PolicyInvalid` if anything is invalid."""
        return load(self._home)

    def adopt(self, policies: Policies) -> None:
        """Put these policies in force. Decisions in progress are not affected."""
        for problem in permits_by_words(policies.items):
            _log.warning("%s", problem)
        self.now = policies
        self.gate = Gate(policies)

    @property
    def hash(self) -> str:
        """The hash that distinguishes the policies in force from others."""
        return self.now.hash
