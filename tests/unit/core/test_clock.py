"""Times as stored in columns."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from palyra.core.clock import from_ms, to_ms

LAST_MS = to_ms(datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC))


def test_time_is_counted_from_1970_in_milliseconds() -> None:
    assert to_ms(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert to_ms(datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)) == 1_767_323_045_678
    assert from_ms(1_767_323_045_678) == datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@given(st.integers(0, LAST_MS))
def test_a_stored_time_comes_back_exactly(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)))
def test_what_is_finer_than_a_millisecond_is_cut_off(moment: datetime) -> None:
    assert timedelta(0) <= moment - from_ms(to_ms(moment)) < timedelta(milliseconds=1)


def test_the_same_moment_is_the_same_in_every_zone() -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    assert to_ms(datetime(2026, 1, 2, 8, 34, 5, tzinfo=east)) == to_ms(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


def test_a_time_that_was_read_is_aware() -> None:
    assert from_ms(0).tzinfo is UTC
