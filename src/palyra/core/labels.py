"""Where a piece of text came from, from trusted to not: owner < tool < other < web.

Every event carries the labels of what went into it. They are recorded from the first entry on, so that any rule over
them can later be judged over the whole history.
"""

OWNER = "owner"
TOOL = "tool"
OTHER = "other"
WEB = "web"

_ORDER = (OWNER, TOOL, OTHER, WEB)


def least_trusted(present: tuple[str, ...]) -> str:
    """Return the label that counts when something is decided; one that is not known is trusted least."""
    return join(present)[-1] if present else OWNER


def rank(label: str) -> int:
    """Return how little a label is trusted: 0 for the owner, the highest for one that is not known."""
    return _ORDER.index(label) if label in _ORDER else len(_ORDER)


def join(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return every label of the groups once, the most trusted first."""
    present = {label for group in groups for label in group}
    known = tuple(label for label in _ORDER if label in present)
    # What is not known is trusted least, and never lost.
    return known if len(known) == len(present) else known + tuple(sorted(present.difference(_ORDER)))
