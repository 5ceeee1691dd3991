# SPDX-License-Identifier: AGPL-3.0-only
"""The runner's own way to a broker: any RPC of the contract, its request and answer as JSON.

It uses the generated stubs and no SDK, so that a case's set-up and its checks do not depend on what
is being checked.
"""

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from fila.v1 import admin_pb2, service_pb2
from fila_conformance.broker import API_KEY, KINDS, Broker
from fila_conformance.layout import CERTS

_TIMEOUT_S = 20.0
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_SERVICES = (
    service_pb2.DESCRIPTOR.services_by_name["FilaService"],
    admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"],
)
METHODS = {method.name: method for service in _SERVICES for method in service.methods}


class AdminError(Exception):
    """The broker refused what the runner asked of it."""

    def __init__(self, method: str, code: str, reason: str | None, text: str) -> None:
        super().__init__(f"{method} failed with {code} ({reason}): {text}")
        self.reason = reason


def method_name(verb: str) -> str:
    """`get_stats` as the contract spells it."""
    return "".join(word.capitalize() for word in verb.split("_"))


def request_type(method: str) -> type[Message]:
    return message_factory.GetMessageClass(METHODS[method].input_type)


def response_type(method: str) -> type[Message]:
    return message_factory.GetMessageClass(METHODS[method].output_type)


def path_of(method: str) -> str:
    return f"/{METHODS[method].containing_service.full_name}/{method}"


def as_json(message: Message) -> dict[str, Any]:
    """A message with the contract's names, and numbers as numbers."""
    data = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return dict(_with_numbers(data, message.DESCRIPTOR))


def _with_numbers(data: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    # Protobuf's JSON writes 64-bit numbers as text.
    found: dict[str, Any] = {}
    for name, value in data.items():
        field = descriptor.fields_by_name[name]
        kind = field.message_type
        if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            found[name] = [int(v) for v in value] if isinstance(value, list) else int(value)
        elif kind is None or kind.GetOptions().map_entry or not kind.full_name.startswith("fila."):
            found[name] = value
        elif isinstance(value, list):
            found[name] = [_with_numbers(element, kind) for element in value]
        else:
            found[name] = _with_numbers(value, kind)
    return found


def credentials_of(kind: str) -> grpc.ChannelCredentials | None:
    files = KINDS[kind].files
    if not files:
        return None
    is_mutual = "FILA_TLS__CA_FILE" in files
    return grpc.ssl_channel_credentials(
        (CERTS / "ca.pem").read_bytes(),
        (CERTS / "client.key").read_bytes() if is_mutual else None,
        (CERTS / "client.pem").read_bytes() if is_mutual else None,
    )


def channel_to(broker: Broker) -> grpc.Channel:
    """A channel with the rights to do everything, which soon finds a broker that comes back."""
    options = [
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
        # Channels to one target would share a connection that may still be in a long backoff.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    credentials = credentials_of(broker.kind)
    if credentials is None:
        return grpc.insecure_channel(broker.target, options)
    return grpc.secure_channel(broker.target, credentials, options)


class Admin:
    """Calls to one broker."""

    def __init__(self, broker: Broker) -> None:
        self._channel = channel_to(broker)
        has_key = "FILA_AUTH__BOOTSTRAP_APIKEY" in KINDS[broker.kind].env
        self._metadata = (("authorization", f"Bearer {API_KEY}"),) if has_key else ()

    def call(self, verb: str, request: Mapping[str, Any] | None) -> dict[str, Any]:
        """Calls an RPC by its name in snake case; of a stream it waits for the headers alone.

        Raises AdminError.
        """
        method = method_name(verb)
        message = json_format.ParseDict(dict(request or {}), request_type(method)())
        is_stream = METHODS[method].server_streaming
        stub: Any = (self._channel.unary_stream if is_stream else self._channel.unary_unary)(
            path_of(method),
            request_serializer=lambda sent: bytes(sent.SerializeToString()),
            response_deserializer=response_type(method).FromString,
        )
        settings = {"timeout": _TIMEOUT_S, "metadata": self._metadata, "wait_for_ready": True}
        try:
            answer = stub(message, **settings)
            return _headers(answer) if is_stream else as_json(answer)
        except grpc.RpcError as error:
            trailers: Any = error.trailing_metadata() or ()
            reason = next((value for key, value in trailers if key == "fila-reason"), None)
            raise AdminError(method, error.code().name, reason, error.details() or "") from error

    def close(self) -> None:
        self._channel.close()


def _headers(stream: Any) -> dict[str, Any]:
    """What a stream says before its first message. Raises the stream's error."""
    headers = {key: str(value) for key, value in stream.initial_metadata() or ()}
    if not stream.is_active():
        raise stream
    stream.cancel()
    return {"headers": headers}
