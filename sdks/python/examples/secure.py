# SPDX-License-Identifier: AGPL-3.0-only
"""TLS, a client certificate and an API key; each only if its variable is set.

FILA_CA names the CA's certificate, FILA_CERT and FILA_KEY the client's own, FILA_API_KEY the key.
"""

import os
import uuid

import fila


def connect() -> fila.Client:
    ca, cert, key = (os.environ.get(name) for name in ("FILA_CA", "FILA_CERT", "FILA_KEY"))
    tls = fila.TlsOptions(ca, cert, key) if ca or cert else None
    return fila.Client(
        os.environ.get("FILA_ADDR", "127.0.0.1:5555"),
        tls=tls,
        api_key=os.environ.get("FILA_API_KEY"),
    )


with connect() as client:
    queue = f"secure-{uuid.uuid4().hex[:8]}"
    try:
        client.create_queue(queue)
    except fila.UnauthenticatedError as error:
        raise SystemExit(f"the broker does not accept the API key: {error}") from None
    except fila.UnavailableError as error:
        raise SystemExit(f"no broker, or none with the right certificate: {error}") from None

    client.enqueue(queue, {}, b"for your eyes only")
    (message,) = client.receive(queue, wait_ms=2_000)
    print(f"received {message.payload.decode()!r}")
    message.ack()
    client.delete_queue(queue)
