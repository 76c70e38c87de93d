"""What tokens allow."""

from enum import StrEnum

from palyra.core.errors import Denied


class TokenScope(StrEnum):
    """What a token lets its bearer do."""

    ADMIN = "admin"
    """Administer the daemon and the tokens of others."""
    READ = "read"
    WRITE = "write"


class TokenScopeMissing(Denied):
    """The token does not allow this."""

    def __init__(self, scope: str, what: str = "this") -> None:
        super().__init__(
            f"Your token lacks the scope '{scope}', which is required for {what}. Use a token that has it."
        )
