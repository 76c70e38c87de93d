"""Circuit breakers, one for each provider: who has failed too often in a row is left alone for a while.

After that one turn tries it again. If it answers, all may; if not, it is left alone for twice as long.
"""

import logging
from dataclasses import dataclass

from palyra.core.clock import Clock
from palyra.providers.base import FailureKind, ProviderFailed

FAILURES = 5
"""How many failures in a row open the circuit."""
REST_SECONDS = 15.0
LONGEST_REST_SECONDS = 300.0
TRIAL_SECONDS = 60.0
"""How long a trial keeps others away, if nobody says how it ended."""
OUTAGES = frozenset({FailureKind.NETWORK, FailureKind.TIMEOUT, FailureKind.UNAVAILABLE, FailureKind.MALFORMED})
"""What speaks of the provider. The rest speaks of the request or of the key."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    rest_seconds: float = 0.0
    open_until: float = 0.0
    tried: bool = False
    """Somebody asks it while it is, or was, left alone."""


class Breakers:
    """What is known of the providers' health. It is forgotten with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._circuits: dict[str, _Circuit] = {}

    def rests_seconds(self, provider: str) -> float:
        """Return how long the provider is left alone yet; 0 if it may be asked."""
        circuit = self._circuits.get(provider)
        return max(0.0, circuit.open_until - self._clock.monotonic()) if circuit is not None else 0.0

    def asked(self, provider: str) -> None:
        """Note that the provider is asked: if it was left alone until now, nobody else tries it meanwhile."""
        circuit = self._circuits.get(provider)
        if circuit is not None and circuit.failures >= FAILURES:
            circuit.tried = True
            circuit.open_until = self._clock.monotonic() + TRIAL_SECONDS

    def answered(self, provider: str) -> None:
        """Note that it is well."""
        circuit = self._circuits.pop(provider, None)
        if circuit is not None and circuit.failures >= FAILURES:
            log.warning(
                "provider %s answers again after %d failures in a row",
                provider,
                circuit.failures,
                extra={"provider": provider, "code": "provider_recovered", "failures": circuit.failures},
            )

    def failed(self, provider: str, error: ProviderFailed) -> None:
        """Note that it gave no answer."""
        spoke = error.is_well or (error.kind is FailureKind.MALFORMED and error.refused)
        if error.kind not in OUTAGES or spoke:
            # It spoke: whatever is wrong, it is there.
            self.answered(provider)
            return
        circuit = self._circuits.setdefault(provider, _Circuit())
        circuit.failures += 1
        # One who was asked before the circuit opened says nothing new: many fail together, and that is one outage.
        if circuit.failures == FAILURES or (circuit.failures > FAILURES and circuit.tried):
            circuit.tried = False
            circuit.rest_seconds = min(circuit.rest_seconds * 2 or REST_SECONDS, LONGEST_REST_SECONDS)
            circuit.open_until = self._clock.monotonic() + circuit.rest_seconds
            log.warning(
                "provider %s failed %d times in a row; it is not asked for %.0f s",
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
        """Let it be asked again: somebody has mended it, or wants to know."""
        self._circuits.pop(provider, None)

    def resting(self) -> dict[str, float]:
        """Return the providers that are left alone, and for how long yet."""
        left = {provider: self.rests_seconds(provider) for provider in self._circuits}
        return {provider: seconds for provider, seconds in left.items() if seconds > 0}
