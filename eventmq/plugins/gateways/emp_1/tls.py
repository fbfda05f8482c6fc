"""Contexts of TLS from the options of a gateway or a client; certificates are files in PEM."""

from __future__ import annotations

import ssl

from eventmq.errors import PluginError

__all__ = ["client_context", "server_context"]


def server_context(cert: str, key: str, ca: str) -> ssl.SSLContext | None:
    """Return the context of a server, None without a certificate.

    Args:
        cert: File with the certificate, and the key where ``key`` is "".
        key: File with the key.
        ca: File with the authority whose certificates clients must show, "" to ask for none.

    Raises:
        PluginError: A file cannot be used.
    """
    if not cert:
        if key or ca:
            raise PluginError("tls_key and tls_ca go with tls_cert, the server's certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, cert, key)
    if ca:
        _load_authority(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(*, ca: str = "", cert: str = "", key: str = "") -> ssl.SSLContext:
    """Return the context of a client, which checks the server's certificate and name.

    Args:
        ca: File with the authority; else those of the system.
        cert: File with the client's own certificate, where the server asks for one.
        key: File with its key.

    Raises:
        PluginError: A file cannot be used.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_authority(context, ca)
    if cert:
        _load_own(context, cert, key)
    return context


def _load_own(context: ssl.SSLContext, cert: str, key: str) -> None:
    try:
        context.load_cert_chain(cert, key or None)
    except (OSError, ssl.SSLError) as error:
        named = f"{cert!r} with the key {key!r}" if key else f"{cert!r}"
        raise PluginError(f"the certificate {named} cannot be used: {error}") from error


def _load_authority(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise PluginError(f"the authority {ca!r} cannot be used: {error}") from error
