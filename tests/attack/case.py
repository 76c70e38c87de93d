"""What an attack is, and the list of all of them.

A module of this folder is one area. Its cases are functions under `@attack("what is tried")` that take a `Ground`.
A case returns when Palyra held, raises `AssertionError` when the attack worked, and `Unsupported` when the machine
lacks what it needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from tests.attack.ground import Ground
from tests.support.needs import Need, missing

_FRAME = frozenset({"__main__", "case", "ground"})


@dataclass(frozen=True, slots=True)
class Case:
    """One attack."""

    area: str
    title: str
    run: Callable[[Ground], None]

    @property
    def name(self) -> str:
        """How the case is called on the command line: `roots.link_to_outside`."""
        return f"{self.area}.{self.run.__name__}"


class Unsupported(Exception):
    """The machine lacks what the case needs."""


def require(*wanted: Need) -> None:
    """Raise `Unsupported` unless the machine has all of these."""
    for need in wanted:
        if reason := missing(need):
            raise Unsupported(reason)


_cases: list[Case] = []


def attack(title: str) -> Callable[[Callable[[Ground], None]], Callable[[Ground], None]]:
    """Make a case of a function."""

    def register(function: Callable[[Ground], None]) -> Callable[[Ground], None]:
        _cases.append(Case(function.__module__.rpartition(".")[2], title, function))
        return function

    return register


def all_cases() -> list[Case]:
    """Return the cases of every area, in the order of their files."""
    for module in sorted(found.name for found in iter_modules([str(Path(__file__).parent)])):
        if module not in _FRAME:
            import_module(f"tests.attack.{module}")
    return list(_cases)
