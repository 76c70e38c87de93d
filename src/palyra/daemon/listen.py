"""Where the doors stand: the port that is set, or the usual one, or any that is free."""

import os
import socket
import ssl

from palyra.core.errors import Unavailable
from palyra.settings import HttpSettings, SettingsInvalid


class PortTaken(Unavailable):
    """The port is taken by another program."""


def listen(host: str, port: int | None, *, usual: int) -> socket.socket:
    """Take the port that is set, which must be free; without one, the usual port or any other."""
    if port is not None:
        return _bind(host, port)
    try:
        return _bind(host, usual)
    except PortTaken:
        return _bind(host, 0)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"Port {port} of {host} can not be had: {error.strerror}. "
            "Stop the program that has it, or set another as `port` in section [http] of the configuration."
        ) from error
    listener.setblocking(False)
    return listener


def address(listener: socket.socket, *, tls: bool) -> str:
    """Return where a listener is, as a URL."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def tls_context(http: HttpSettings) -> ssl.SSLContext | None:
    """Take the certificate and its private key, if the doors are to speak TLS."""
    files = tls_files(http)
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(*files)
    except OSError as error:
        raise SettingsInvalid(f"The TLS certificate or its key cannot be read: {error}.") from error
    return context


def tls_files(http: HttpSettings) -> tuple[str, str] | None:
    """Return the files of the certificate and of its key if the doors speak TLS, in full: clients stand elsewhere."""
    if http.tls_certificate is None or http.tls_key is None:
        return None
    certificate, key = (os.path.abspath(os.path.expanduser(name)) for name in (http.tls_certificate, http.tls_key))
    return certificate, key
