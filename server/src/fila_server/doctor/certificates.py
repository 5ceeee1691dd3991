# SPDX-License-Identifier: AGPL-3.0-only
"""The certificate files: readable, a pair, for a server, and not about to expire.

What a certificate says is learned as a client learns it: by a handshake, here between two ends in
memory, of which the client trusts nothing but this very certificate.
"""

import ssl
import time
from collections.abc import Iterator

from fila_server.config import Config, ConfigError
from fila_server.doctor.finding import CRITICAL, OK, WARNING, Finding
from fila_server.transport.tls import read_certificates

# Let's Encrypt renews when 30 of 90 days are left; at 14 somebody should look.
_SOON_S = 14 * 86_400
_RENEW = "renew it, and send the broker SIGHUP: it takes new certificates without a restart"


def certificates(config: Config) -> Iterator[Finding]:
    """Whether TLS can start with the files, and for how long."""
    tls = config.tls
    if not tls.cert_file:
        return
    try:
        read_certificates(tls)
    except ConfigError as error:
        yield Finding("tls", CRITICAL, str(error), "correct the files, or turn TLS off")
        return
    try:
        expires = _expiry(tls.cert_file, tls.key_file)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        yield Finding("tls", CRITICAL, f"tls.cert_file: {tls.cert_file}: {why}", _RENEW)
        return
    left_s = expires - time.time()
    days = round(left_s / 86_400)
    text = f"{tls.cert_file} is valid for another {days} {'day' if days == 1 else 'days'}"
    if left_s < _SOON_S:
        yield Finding("tls", WARNING, text, _RENEW)
    else:
        yield Finding("tls", OK, text)


def _expiry(cert_file: str, key_file: str) -> float:
    """When the certificate expires, as seconds since 1970. Raises SSLCertVerificationError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert_file, key_file)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cert_file)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):  # a handshake takes two or three rounds
        try:
            one.do_handshake()
            break
        except ssl.SSLWantReadError:
            pass
        try:
            other.do_handshake()
        except ssl.SSLWantReadError:
            pass
    certificate = one.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))
