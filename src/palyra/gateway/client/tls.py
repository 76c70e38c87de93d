"""How a client verifies that its home's daemon answers.

`ssl` is imported where it is needed: few daemons use TLS on their own machine, and every start would pay for it.
"""

from typing import TYPE_CHECKING

from palyra.gateway.client.errors import DaemonUnreachable, reason_of
from palyra.gateway.client.target import DaemonTarget

if TYPE_CHECKING:
    from ssl import SSLContext


def context_for(target: DaemonTarget) -> "SSLContext":
    """Return the TLS context: it requires the certificate that the home names, or any valid one if it names none."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=target.certificate)
    except OSError as error:
        raise DaemonUnreachable(
            f"The daemon's certificate {target.certificate} cannot be read: {reason_of(error)}."
        ) from error
    if target.certificate is not None:
        # The exact certificate that the home names is required; its names are those that other machines use.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    return context
