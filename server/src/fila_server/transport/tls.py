# SPDX-License-Identifier: AGPL-3.0-only
"""The broker's certificate, and whom it lets in: from files to what a transport listens with.

A transport looks at certificates when a port is opened, and then says only that it could not. So
they are tried here first, where what is wrong with which file can be told.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from fila_server.config import ConfigError, TlsConfig


class Certificates(NamedTuple):
    """What a port with TLS shows and asks for, in PEM form."""

    chain: bytes
    key: bytes
    clients_ca: bytes | None  # given, clients need a certificate of it


def read_certificates(tls: TlsConfig) -> Certificates | None:
    """Return what the files hold, None where TLS is off.

    Raises ConfigError if they cannot be used; its one line names the setting and the file.
    """
    if not tls.cert_file:
        return None
    chain = _read("cert_file", tls.cert_file)
    key = _read("key_file", tls.key_file)
    clients_ca = _read("ca_file", tls.ca_file) if tls.ca_file else None
    _try(tls)
    return Certificates(chain, key, clients_ca)


def _read(setting: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        why = (error.strerror or "it cannot be opened").lower()
        raise ConfigError(f"tls.{setting}: cannot read {path}: {why}") from error


def _try(tls: TlsConfig) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    asked = False

    def no_password() -> str:
        nonlocal asked
        asked = True
        return ""

    for setting, path in (("cert_file", tls.cert_file), ("ca_file", tls.ca_file)):
        try:
            if path:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
        except ssl.SSLError as error:
            raise ConfigError(f"tls.{setting}: {path} holds no certificate in PEM form") from error
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, no_password)
    except ssl.SSLError as error:
        if asked:
            why = "is encrypted; the broker needs a key without a passphrase"
        elif error.reason == "KEY_VALUES_MISMATCH":
            why = f"does not belong to the certificate in {tls.cert_file}"
        else:
            why = f"and {tls.cert_file} cannot be used: {_reason(error)}"
        raise ConfigError(f"tls.key_file: {tls.key_file} {why}") from error


def _reason(error: ssl.SSLError) -> str:
    if error.reason is None or error.reason == "PEM_LIB":
        return "no private key in PEM form"
    return error.reason.lower().replace("_", " ")
