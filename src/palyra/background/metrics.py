"""Counters of the events that this process committed, in the Prometheus text format."""

from collections import Counter
from collections.abc import Mapping, Sequence

from palyra.core.events import Entry
from palyra.journal.engines.base import Engine, Fact


class Metrics:
    """Counts tape entries by kind. Only what has an entry is counted."""

    def __init__(self, engine: Engine) -> None:
        self.counters: Counter[str] = Counter()
        engine.subscribe(self._notice)

    def _notice(self, facts: Sequence[Fact]) -> None:
        self.counters.update(fact.kind for fact in facts if isinstance(fact, Entry))


def exposition(counters: Mapping[str, int], figures: Mapping[str, tuple[str, float]]) -> str:
    """Return the metrics as text: events by kind, and further figures with their descriptions.

    A figure whose name ends in `_total` is a counter, as the convention has it; every other one is a gauge.
    """
    lines = [
        "# HELP palyra_events_total Entries committed to tapes since the daemon started, by kind.",
        "# TYPE palyra_events_total counter",
        *(f'palyra_events_total{{kind="{kind}"}} {count}' for kind, count in sorted(counters.items())),
    ]
    for name, (about, value) in figures.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP palyra_{name} {about}", f"# TYPE palyra_{name} {kind}", f"palyra_{name} {_text_of(value)}"]
    return "\n".join(lines) + "\n"


def _text_of(value: float) -> str:
    # Rounded to six digits, a counter would stand still for a while.
    return str(int(value)) if value == int(value) else repr(value)
