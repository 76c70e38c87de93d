"""What every part of a daemon needs: the clock, the source of ids, and the configuration in force."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from palyra.core.clock import Clock
from palyra.core.ids import IdSource
from palyra.settings import Settings


class CurrentConfig(Protocol):
    """The settings in force. They may be replaced at any time, so they are read at each use."""

    @property
    def now(self) -> Settings: ...

    @property
    def hash(self) -> str:
        """The hash of the settings in force; runs record it."""
        ...

    def watch(self, changed: Callable[[Settings], None]) -> None:
        """Call `changed` after every reload."""
        ...


@dataclass(frozen=True, slots=True)
class System:
    """What every part of a daemon needs."""

    clock: Clock
    ids: IdSource
    config: CurrentConfig
