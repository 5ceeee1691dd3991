# SPDX-License-Identifier: AGPL-3.0-only
"""Certificates and keys as gRPC wants them: PEM, from memory or from files, which may be replaced
while a client lives. Nothing here connects."""

import os
from contextlib import suppress
from typing import NamedTuple

from fila.options import Pem, TlsOptions

_BEGIN = b"-----BEGIN "

# Of a file: when it was changed, how large it is, and which one it is.
_Stamp = tuple[int, int, int]


class Material(NamedTuple):
    """What a TLS connection is made with."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


class Certificates:
    """What TLS options name, read again when a file was replaced."""

    def __init__(self, options: TlsOptions) -> None:
        self._each: dict[str, Pem | None] = {
            "ca": options.ca,
            "cert": options.cert,
            "key": options.key,
        }
        self._files = [os.fspath(it) for it in self._each.values() if it and _is_path(it)]
        self._stamps = self._look()
        self.material = self._read()

    @property
    def may_change(self) -> bool:
        return bool(self._files)

    def refresh(self) -> Material:
        """What it is now; as it was while files cannot be read, as may happen half-way."""
        stamps = self._look()
        if stamps != self._stamps:
            with suppress(ValueError, OSError):
                material = self._read()
                self._check()
                self.material = material
                self._stamps = stamps
        return self.material

    def _check(self) -> None:
        """Raises OSError for files that gRPC could not use: of one that is still being written, or
        while only one of a certificate and its key was replaced."""
        import ssl  # which few clients need, and which takes longer to import than a call

        ca, cert, key = (self._each[name] for name in ("ca", "cert", "key"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca and _is_path(ca):
            context.load_verify_locations(cafile=ca)
        if cert and key and _is_path(cert) and _is_path(key):
            context.load_cert_chain(cert, key, password="")

    def _look(self) -> list[_Stamp | None]:
        return [_stamp(path) for path in self._files]

    def _read(self) -> Material:
        return Material(*(_content(name, it) for name, it in self._each.items()))


def _is_path(pem: Pem) -> bool:
    if isinstance(pem, bytes):
        return False
    return not (isinstance(pem, str) and _BEGIN.decode() in pem)


def _stamp(path: str | bytes) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _content(name: str, pem: Pem | None) -> bytes | None:
    if pem is None:
        return None
    if isinstance(pem, bytes) or not _is_path(pem):
        content = pem if isinstance(pem, bytes) else str(pem).encode()
        if _BEGIN not in content:
            raise ValueError(f"tls {name} is neither a file's path nor PEM")
        return content
    try:
        with open(pem, "rb") as file:
            content = file.read()
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f'cannot read tls {name} "{os.fspath(pem)}": {why.lower()}') from error
    # gRPC reports a file of another kind only in its own log, and then fails to connect.
    if _BEGIN not in content:
        raise ValueError(f'tls {name} "{os.fspath(pem)}" is not a PEM file')
    return content
