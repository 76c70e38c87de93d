"""What tokens are good for."""

from enum import StrEnum


class TokenScope(StrEnum):
    """What a token lets its bearer do."""

    ADMIN = "admin"
    """Administer the daemon and the tokens of others."""
    READ = "read"
    WRITE = "write"
