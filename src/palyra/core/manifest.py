"""What a plugin or a skill may do at most: calls made on its behalf are held against it, whatever the policies say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the skill or plugin on whose behalf a call is made may do at most."""

    name: str
    digest: str
    tools: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    """`example.org`, or `*.example.org` for everything below it."""
    paths: frozenset[str] = frozenset()
    """Folders; what lies in them is included."""
