"""How often a principal may knock."""

from datetime import timedelta

import pytest

from palyra.gateway import rate_limit
from palyra.gateway.error_status import GRPC_STATUS, HTTP_STATUS, nearest
from palyra.gateway.rate_limit import RateLimiter, RequestRateExceeded
from tests.support.builders import ANA
from tests.support.clock import FakeClock
from tests.support.world import BEN


def taken(limit: RateLimiter, *, most: int = 100) -> int:
    """Return how many requests are let through at once."""
    for number in range(most):
        try:
            limit.take(ANA)
        except RequestRateExceeded:
            return number
    return most


def test_a_burst_is_let_through_and_then_no_more() -> None:
    assert taken(RateLimiter(FakeClock(), lambda: (10, 4))) == 4


def test_what_was_taken_comes_back_with_time_and_never_beyond_the_burst() -> None:
    clock = FakeClock()
    limit = RateLimiter(clock, lambda: (10, 4))
    taken(limit)

    clock.advance(timedelta(milliseconds=200))
    assert taken(limit) == 2
    clock.advance(timedelta(days=1))
    assert taken(limit) == 4


@pytest.mark.parametrize("jump", [timedelta(days=9 * 365), timedelta(days=-9 * 365)])
def test_a_clock_that_jumps_gives_nothing_back_and_takes_nothing_away(jump: timedelta) -> None:
    clock = FakeClock()
    limit = RateLimiter(clock, lambda: (10, 4))
    taken(limit)
    clock.sleep(jump)
    assert taken(limit) == 0
    clock.advance(timedelta(milliseconds=200))
    assert taken(limit) == 2


def test_a_refusal_says_when_there_is_room_again() -> None:
    clock = FakeClock()
    limit = RateLimiter(clock, lambda: (10, 1))
    limit.take(ANA)

    with pytest.raises(RequestRateExceeded) as refused:
        limit.take(ANA)

    assert refused.value.retry_after == timedelta(milliseconds=100)
    clock.advance(refused.value.retry_after)
    limit.take(ANA)


def test_refused_requests_do_not_put_off_the_next_one() -> None:
    clock = FakeClock()
    limit = RateLimiter(clock, lambda: (10, 1))
    limit.take(ANA)
    for _ in range(50):
        assert taken(limit) == 0

    clock.advance(timedelta(milliseconds=100))
    assert taken(limit) == 1


def test_one_principal_does_not_take_from_another() -> None:
    limit = RateLimiter(FakeClock(), lambda: (1, 1))
    limit.take(ANA)
    limit.take(BEN)
    with pytest.raises(RequestRateExceeded):
        limit.take(BEN)


def test_changed_limits_hold_at_once() -> None:
    limits = (1, 4)
    clock = FakeClock()
    limit = RateLimiter(clock, lambda: limits)
    assert taken(limit) == 4

    limits = (1000, 2)
    clock.advance(timedelta(seconds=1))
    assert taken(limit) == 2


def test_the_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MAX_BUCKETS", 3)
    limit = RateLimiter(FakeClock(), lambda: (1, 1))
    for number in range(100):
        limit.take(type(ANA)(f"user:{number}"))
    assert len(limit._buckets) <= 3


def test_both_doors_answer_with_a_status_that_means_too_many() -> None:
    error = RequestRateExceeded()
    assert nearest(HTTP_STATUS, error) == 429
    assert nearest(GRPC_STATUS, error).name == "RESOURCE_EXHAUSTED"
