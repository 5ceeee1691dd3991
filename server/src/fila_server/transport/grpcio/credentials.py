# SPDX-License-Identifier: AGPL-3.0-only
"""Certificates as grpcio listens with them. It asks anew at every handshake."""

from __future__ import annotations

import grpc

from fila_server.transport.tls import Certificates


class Credentials:
    """What handshakes use from now on."""

    def __init__(self, certificates: Certificates) -> None:
        self._first = _configuration(certificates)
        self._asks_clients = certificates.clients_ca is not None
        self._fresh: grpc.ServerCertificateConfiguration | None = None

    def listening(self) -> grpc.ServerCredentials:
        """Return what to listen with."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._fetch,  # type: ignore[arg-type]  # None means that nothing changed
            self._asks_clients,
        )

    def reload(self, certificates: Certificates) -> None:
        self._fresh = _configuration(certificates)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        fresh, self._fresh = self._fresh, None
        return fresh


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    chain, key, clients_ca = certificates
    return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=clients_ca)
