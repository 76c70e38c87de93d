"""Who fails too often in a row is left alone, and tried again by one."""

from datetime import timedelta

from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.circuit_breaker import FAILURES, OPEN_SECONDS, CircuitBreakers
from tests.support.clock import FakeClock


def broken(clock: FakeClock) -> CircuitBreakers:
    breakers = CircuitBreakers(clock)
    for _ in range(FAILURES):
        breakers.failed("a", ProviderFailed(kind=FailureKind.NETWORK))
    return breakers


def test_a_few_failures_are_forgiven() -> None:
    breakers = CircuitBreakers(FakeClock())
    for _ in range(FAILURES - 1):
        breakers.failed("a", ProviderFailed(kind=FailureKind.NETWORK))
    assert breakers.retry_in_seconds("a") == 0
    breakers.answered("a")
    breakers.failed("a", ProviderFailed(kind=FailureKind.NETWORK))
    assert breakers.unavailable() == {}


def test_many_in_a_row_open_the_circuit_of_that_provider_alone() -> None:
    breakers = broken(FakeClock())
    assert breakers.unavailable() == {"a": OPEN_SECONDS}
    assert breakers.retry_in_seconds("b") == 0


def test_what_speaks_of_the_request_opens_nothing() -> None:
    breakers = CircuitBreakers(FakeClock())
    for _ in range(FAILURES * 2):
        breakers.failed("a", ProviderFailed(kind=FailureKind.CONTEXT_TOO_LONG))
    assert breakers.unavailable() == {}


def test_a_request_that_is_turned_down_opens_nothing() -> None:
    breakers = CircuitBreakers(FakeClock())
    for _ in range(FAILURES * 2):
        breakers.failed("a", ProviderFailed(kind=FailureKind.MALFORMED, refused=True))
    assert breakers.unavailable() == {}


def test_what_a_model_writes_badly_opens_nothing() -> None:
    breakers = CircuitBreakers(FakeClock())
    for _ in range(FAILURES * 2):
        breakers.failed("a", ProviderFailed(kind=FailureKind.MALFORMED, is_well=True))
    assert breakers.unavailable() == {}


def test_after_the_rest_one_tries_and_the_others_wait_for_it() -> None:
    clock = FakeClock()
    breakers = broken(clock)
    clock.advance(timedelta(seconds=OPEN_SECONDS))
    assert breakers.retry_in_seconds("a") == 0
    breakers.note_attempt("a")
    assert breakers.retry_in_seconds("a") > 0
    breakers.answered("a")
    assert breakers.retry_in_seconds("a") == 0


def test_a_trial_that_fails_doubles_the_rest() -> None:
    clock = FakeClock()
    breakers = broken(clock)
    clock.advance(timedelta(seconds=OPEN_SECONDS))
    breakers.note_attempt("a")
    breakers.failed("a", ProviderFailed(kind=FailureKind.TIMEOUT))
    assert breakers.retry_in_seconds("a") == OPEN_SECONDS * 2


def test_many_who_fail_at_once_are_one_outage() -> None:
    clock = FakeClock()
    breakers = CircuitBreakers(clock)
    for _ in range(64):
        breakers.note_attempt("a")
    for _ in range(64):
        breakers.failed("a", ProviderFailed(kind=FailureKind.NETWORK))
    assert breakers.retry_in_seconds("a") == OPEN_SECONDS
    clock.advance(timedelta(seconds=OPEN_SECONDS))
    breakers.note_attempt("a")
    breakers.failed("a", ProviderFailed(kind=FailureKind.NETWORK))
    breakers.failed("a", ProviderFailed(kind=FailureKind.NETWORK))
    assert breakers.retry_in_seconds("a") == OPEN_SECONDS * 2
