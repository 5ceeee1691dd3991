# SPDX-License-Identifier: AGPL-3.0-only
"""The container's health check: exit 0 when the broker in it serves, 1 when it does not.

Without TLS it asks the standard gRPC health service, which needs no API key. With TLS a handshake
has to do: the broker may want a client certificate, and this check has none.
"""

import os
import socket
import ssl
import sys

TIMEOUT_S = 4.0


def is_serving(address: str) -> bool:
    # Imported here, because with TLS it is not needed and takes most of the time.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def shakes_hands(address: str) -> bool:
    context = ssl.create_default_context()
    # It only asks whether somebody is there, and it is on the same machine.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as connection,
        context.wrap_socket(connection) as encrypted,
    ):
        return encrypted.selected_alpn_protocol() == "h2"


def main() -> int:
    port = os.environ.get("FILA_SERVER__LISTEN_ADDR", "127.0.0.1:5555").rpartition(":")[2]
    check = shakes_hands if os.environ.get("FILA_TLS__CERT_FILE") else is_serving
    try:
        return 0 if check(f"127.0.0.1:{port}") else 1
    except Exception as error:  # A traceback would fill the engine's health log.
        sys.stderr.write(f"{type(error).__name__}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
