"""How a caller makes sure that it is the daemon of its home that answers.

`ssl` is imported where it is needed: few daemons speak TLS to their own machine, and every start would pay for it.
"""

from typing import TYPE_CHECKING

from palyra.gateway.remote import DaemonUnreachable, reason_of
from palyra.gateway.target import Target

if TYPE_CHECKING:
    from ssl import SSLContext


def context_for(target: Target) -> "SSLContext":
    """Return what a door must show: the very certificate that the home names, or any valid one if it names none."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=target.certificate)
    except OSError as error:
        raise DaemonUnreachable(
            f"The daemon's certificate {target.certificate} can not be read: {reason_of(error)}."
        ) from error
    if target.certificate is not None:
        # The very certificate that the home names is asked for; its names are those that other machines use.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    return context
