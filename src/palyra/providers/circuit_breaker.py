"""Circuit breakers, one for each provider: after too many failures in a row it is not used for a while.

After that, one turn tries it again. If it succeeds, the circuit closes; if not, it stays open for twice as long.
"""

import logging
from dataclasses import dataclass

from palyra.core.clock import Clock
from palyra.providers.base import FailureKind, ProviderFailed

FAILURES = 5
"""How many failures in a row open the circuit."""
OPEN_SECONDS = 15.0
MAX_OPEN_SECONDS = 300.0
TRIAL_SECONDS = 60.0
"""How long a trial request blocks others, if its result is never reported."""
OUTAGES = frozenset({FailureKind.NETWORK, FailureKind.TIMEOUT, FailureKind.UNAVAILABLE, FailureKind.MALFORMED})
"""The failures that count against the provider. Others are about the request or the key."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    rest_seconds: float = 0.0
    open_until: float = 0.0
    tried: bool = False
    """A trial request is in progress or was made."""


class CircuitBreakers:
    """The health of the providers, in memory only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._circuits: dict[str, _Circuit] = {}

    def retry_in_seconds(self, provider: str) -> float:
        """Return how long the provider's circuit stays open; 0 if it may be used."""
        circuit = self._circuits.get(provider)
        return max(0.0, circuit.open_until - self._clock.monotonic()) if circuit is not None else 0.0

    def note_attempt(self, provider: str) -> None:
        """Record a request: if the circuit was open until now, this is the only trial request."""
        circuit = self._circuits.get(provider)
        if circuit is not None and circuit.failures >= FAILURES:
            circuit.tried = True
            circuit.open_until = self._clock.monotonic() + TRIAL_SECONDS

    def answered(self, provider: str) -> None:
        """Record a success."""
        circuit = self._circuits.pop(provider, None)
        if circuit is not None and circuit.failures >= FAILURES:
            log.warning(
                "provider %s works again after %d failures in a row",
                provider,
                circuit.failures,
                extra={"provider": provider, "code": "provider_recovered", "failures": circuit.failures},
            )

    def failed(self, provider: str, error: ProviderFailed) -> None:
        """Record a failure."""
        spoke = error.is_well or (error.kind is FailureKind.MALFORMED and error.refused)
        if error.kind not in OUTAGES or spoke:
            # It responded: whatever is wrong, it is reachable.
            self.answered(provider)
            return
        circuit = self._circuits.setdefault(provider, _Circuit())
        circuit.failures += 1
        # A request from before the circuit opened does not extend it: many fail together, and that is one outage.
        if circuit.failures == FAILURES or (circuit.failures > FAILURES and circuit.tried):
            circuit.tried = False
            circuit.rest_seconds = min(circuit.rest_seconds * 2 or OPEN_SECONDS, MAX_OPEN_SECONDS)
            circuit.open_until = self._clock.monotonic() + circuit.rest_seconds
            log.warning(
                "provider %s failed %d times in a row; it is not used for %.0f s",
                provider,
                circuit.failures,
                circuit.rest_seconds,
                extra={
                    "provider": provider,
                    "code": "provider_suspended",
                    "failures": circuit.failures,
                    "seconds": circuit.rest_seconds,
                },
            )

    def forget(self, provider: str) -> None:
        """Close the circuit: someone has fixed the provider, or wants to test it."""
        self._circuits.pop(provider, None)

    def unavailable(self) -> dict[str, float]:
        """Return the providers with an open circuit, and for how long it stays open."""
        left = {provider: self.retry_in_seconds(provider) for provider in self._circuits}
        return {provider: seconds for provider, seconds in left.items() if seconds > 0}
