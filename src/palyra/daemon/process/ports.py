"""Chooses the ports of the APIs: the configured one, or the default, or any free one."""

import os
import socket
import ssl

from palyra.gateway.grpc.server import PortInUse
from palyra.settings import HttpSettings, SettingsInvalid


def listen(host: str, port: int | None, *, usual: int) -> socket.socket:
    """Listen on the configured port, which must be free; without one, on the default port or any free one."""
    if port is not None:
        return _bind(host, port)
    try:
        return _bind(host, usual)
    except PortInUse:
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
        raise PortInUse(
            f"Port {port} of {host} cannot be used: {error.strerror}. Stop the program that uses it, or "
            "set another `port` in section [http] of the configuration."
        ) from error
    listener.setblocking(False)
    return listener


def address(listener: socket.socket, *, tls: bool) -> str:
    """Return the URL of a listener."""
    host, port = listener.getsockname()[:2]
    rows = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{rows}:{port}"


def tls_context(http: HttpSettings) -> ssl.SSLContext | None:
    """Load the certificate and its private key, if TLS is configured."""
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
    """Return the full paths of the certificate and key, if TLS is configured: clients may run in another folder."""
    if http.tls_certificate is None or http.tls_key is None:
        return None
    certificate, key = (os.path.abspath(os.path.expanduser(name)) for name in (http.tls_certificate, http.tls_key))
    return certificate, key
