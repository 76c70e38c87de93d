"""Secrets on their way out: a call that would carry one off is riskier, and the secret is not shown.

What looks like a secret is found by its shape, also in Base64 or hexadecimal. It is a signal: what has no such shape
passes, and is stopped by nothing but the question that is asked about every call that leaves.
"""

import msgspec

from palyra.core.effect import Effect
from palyra.core.redact import redact
from palyra.core.tool import JsonObject, Risk, Runtime
from palyra.policy.risk import highest


def guard(effect: Effect, arguments: JsonObject, *, runtime: Runtime = Runtime.INTERNAL) -> Effect:
    """Return the effect of a call as it is judged and shown, with what looks like a secret in mind.

    A file that holds a secret stays where it is; what goes to a host, to a server or onto a command line does not.
    """
    leaves = effect.hosts or effect.command or runtime is Runtime.MCP
    if not leaves or not _carries_secret(arguments):
        return effect
    return msgspec.structs.replace(
        effect,
        risk=highest([Risk.HIGH], at_least=effect.risk),
        summary=redact(effect.summary),
        detail=redact(effect.detail),
        carries_secret=True,
        # Nobody allows for longer what he must look at each time.
        kind="",
    )


def _carries_secret(arguments: JsonObject) -> bool:
    # Imported when something leaves: most calls do not, and the expressions are large.
    from palyra.core.scan import carries_secret

    return carries_secret(arguments)
