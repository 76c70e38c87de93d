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


def exposition(counters: Mapping[str, int], gauges: Mapping[str, tuple[str, float]]) -> str:
    """Return the metrics as text: events by kind, and gauges with their descriptions."""
    lines = [
        "# HELP palyra_events_total Entries committed to tapes since the daemon started, by kind.",
        "# TYPE palyra_events_total counter",
        *(f'palyra_events_total{{kind="{kind}"}} {count}' for kind, count in sorted(counters.items())),
    ]
    for name, (about, value) in gauges.items():
        lines += [f"# HELP palyra_{name} {about}", f"# TYPE palyra_{name} gauge", f"palyra_{name} {value:g}"]
    return "\n".join(lines) + "\n"
