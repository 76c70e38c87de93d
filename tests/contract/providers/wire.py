"""What the suite knows of a dialect: what its recordings mean, and what its errors look like.

Each dialect has a module here, `<dialect>_wire.py`, with one `WIRE`. The suite finds them by the folders of recordings.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from palyra.core.model.catalog import DialectName
from palyra.core.model.prompt import CallProposed, ModelEvent, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind

RECORDINGS = Path(__file__).parent / "recordings"


@dataclass(frozen=True)
class Heard:
    """What a turn comes to."""

    text: str = ""
    calls: tuple[tuple[str, JsonObject], ...] = ()
    """Each with the tool's own name."""
    reasoning: str = ""
    shown_again: tuple[JsonObject, ...] = ()
    """What the provider wants to see again of its thoughts."""
    stop: StopReason = StopReason.END
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True)
class Refusal:
    """An answer that is an error."""

    kind: FailureKind
    status: int
    body: object


@dataclass(frozen=True)
class Wire:
    """A dialect."""

    dialect: DialectName
    model: str
    path: str
    """Where it is asked, with the `/v1` of the server's base URL."""
    key_header: str
    """The header that carries the key, with a small name."""
    turns: dict[str, Heard]
    """What each recording means."""
    refusals: tuple[Refusal, ...]
    piece: bytes
    """An event with a few letters of text, of which an answer may have any number."""
    thought: bytes
    """An event with a few letters of a thought; empty if the dialect has none."""
    sealed: bytes
    """An event, or two, with what only the provider can read of a thought."""
    argument: bytes
    """An event with a piece of the arguments of a call, or with a whole one if they never come in pieces."""
    begin: bytes
    """What comes before such events."""
    error_inside: Callable[[str], bytes]
    """An event that says that something went wrong, with these words."""
    models: object
    """A list of models, of which one is called `one` and another `two`."""

    @property
    def name(self) -> str:
        return self.dialect.value

    def recording(self, name: str) -> bytes:
        return (RECORDINGS / self.name / f"{name}.txt").read_bytes()


def wires() -> list[Wire]:
    """Return all dialects that have recordings."""
    names = sorted(folder.name for folder in RECORDINGS.iterdir() if folder.is_dir())
    return [import_module(f"tests.contract.providers.{name}_wire").WIRE for name in names]


def heard(events: list[ModelEvent]) -> Heard:
    """Return what the events come to; the turn must end once, at the end."""
    done = events[-1]
    assert isinstance(done, TurnDone)
    assert sum(isinstance(event, TurnDone) for event in events) == 1
    thoughts = [event for event in events if isinstance(event, ReasoningDelta)]
    return Heard(
        text="".join(event.text for event in events if isinstance(event, TextDelta)),
        calls=tuple((event.tool, event.arguments) for event in events if isinstance(event, CallProposed)),
        reasoning="".join(thought.text for thought in thoughts),
        shown_again=tuple(thought.data for thought in thoughts if thought.dialect),
        stop=done.stop,
        usage=done.usage,
    )
