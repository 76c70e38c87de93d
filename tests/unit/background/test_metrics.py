"""The figures that Prometheus reads."""

from palyra.background.metrics import Metrics, exposition
from palyra.core.events import Entry
from palyra.journal.engines.base import FailureListener, Listener, Unit, WorkAvailable
from tests.support.builders import RUN, SESSION
from tests.support.world import T


class Teller:
    """An engine that only tells of facts."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    async def write(self, unit: Unit[T]) -> T:
        raise AssertionError

    async def read(self, query: Unit[T]) -> T:
        raise AssertionError

    def subscribe(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def on_failure(self, listener: FailureListener) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


def test_entries_are_counted_by_kind_and_wake_ups_are_not() -> None:
    engine = Teller()
    metrics = Metrics(engine)
    (tell,) = engine.listeners
    accepted = Entry(SESSION, 1, RUN, 1, "run_accepted", 0, "{}")
    started = Entry(SESSION, 2, RUN, 2, "run_started", 0, "{}")
    tell([accepted, started, WorkAvailable("tasks")])
    tell([accepted])
    assert metrics.counters == {"run_accepted": 2, "run_started": 1}


def test_the_text_names_each_figure_says_what_it_is_and_ends_with_a_line() -> None:
    figures = {"runs_active": ("Runs that are executed.", 3.0), "connections_closed_total": ("Closed.", 12_345_678)}
    text = exposition({"run_started": 1, "run_accepted": 2}, figures)
    assert text.splitlines() == [
        "# HELP palyra_events_total Entries committed to tapes since the daemon started, by kind.",
        "# TYPE palyra_events_total counter",
        'palyra_events_total{kind="run_accepted"} 2',
        'palyra_events_total{kind="run_started"} 1',
        "# HELP palyra_runs_active Runs that are executed.",
        "# TYPE palyra_runs_active gauge",
        "palyra_runs_active 3",
        "# HELP palyra_connections_closed_total Closed.",
        "# TYPE palyra_connections_closed_total counter",
        "palyra_connections_closed_total 12345678",
    ]
    assert text.endswith("\n")
