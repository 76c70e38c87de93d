"""A stop says what it stops, since when, by whom and why."""

from palyra.core.ids import PrincipalId
from palyra.core.stop import EmergencyStop
from tests.support.builders import ANA, AT

BEN = PrincipalId("user:ben")


def test_a_stop_of_everybody_covers_everybody() -> None:
    stop = EmergencyStop(stop_id="s1", principal=None, by=BEN, at=AT, reason="smoke.")
    assert stop.covers(ANA)
    assert stop.covers(BEN)
    assert stop.description == "Everything has been stopped since 2026-01-02 03:04:05 UTC by user:ben: smoke."
    assert stop.cause == "stopped by user:ben: smoke."


def test_a_stop_of_one_covers_nobody_else() -> None:
    stop = EmergencyStop(stop_id="s1", principal=ANA, by=BEN, at=AT)
    assert stop.covers(ANA)
    assert not stop.covers(BEN)
    assert stop.description == "All work of user:ana has been stopped since 2026-01-02 03:04:05 UTC by user:ben."
    assert stop.cause == "stopped by user:ben"
