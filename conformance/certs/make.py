# SPDX-License-Identifier: AGPL-3.0-only
"""Makes the test certificates in this folder: `python certs/make.py`. It needs `cryptography`.

They are committed and valid for a hundred years, so nobody has to run this. The keys of the two
authorities are thrown away; the other keys protect nothing but tests.
"""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FOLDER = Path(__file__).parent
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
END = BEGIN + timedelta(days=36_525)


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates."""

    def __init__(self, subject: str, file: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = name(subject)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        write(file, builder.add_extension(usage, True).sign(self._key, hashes.SHA256()))

    def issue(self, subject: str, file: str, hosts: tuple[str, ...], *, is_server: bool) -> None:
        """Writes a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        use = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(name(subject), key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
        if hosts:
            names = [
                x509.IPAddress(ipaddress.ip_address(host))
                if host[0].isdigit()
                else x509.DNSName(host)
                for host in hosts
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        write(file + ".pem", builder.sign(self._key, hashes.SHA256()))
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (FOLDER / f"{file}.key").write_bytes(pem)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(BEGIN).not_valid_after(END)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        return builder.add_extension(identifier, False)


def write(file: str, certificate: x509.Certificate) -> None:
    (FOLDER / file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def main() -> None:
    local = ("localhost", "127.0.0.1")
    trusted = Authority("Fila conformance CA", "ca.pem")
    trusted.issue("fila broker", "server", local, is_server=True)
    trusted.issue("fila broker elsewhere", "wrong_host", ("broker.invalid",), is_server=True)
    trusted.issue("fila client", "client", (), is_server=False)
    other = Authority("Fila conformance CA that nobody trusts", "untrusted_ca.pem")
    other.issue("fila broker", "untrusted", local, is_server=True)
    other.issue("fila client", "untrusted_client", (), is_server=False)


if __name__ == "__main__":
    main()
