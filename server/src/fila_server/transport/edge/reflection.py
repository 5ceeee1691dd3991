# SPDX-License-Identifier: AGPL-3.0-only
"""What the edge answers about the contract: every question that has an answer, and its answer.

Questions and answers are those of gRPC's reflection service; the edge puts an answer together with
the question that it is to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as pb

# The field of a question, its argument, and the field of the response that answers it, encoded.
Answer = tuple[int, str, bytes]

_FIELDS = pb.ServerReflectionRequest.DESCRIPTOR.fields_by_name
_FILE = _FIELDS["file_by_filename"].number
_SYMBOL = _FIELDS["file_containing_symbol"].number
_EXTENSIONS = _FIELDS["all_extension_numbers_of_type"].number
_SERVICES = _FIELDS["list_services"].number
_OWN = (
    health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    pb.DESCRIPTOR.services_by_name["ServerReflection"].full_name,
)


def answers(services: Iterable[str]) -> list[Answer]:
    """Return all that can be asked about services, those of gRPC itself included."""
    names = sorted((*services, *_OWN))
    listed = pb.ListServiceResponse(service=[pb.ServiceResponse(name=name) for name in names])
    found: list[Answer] = [
        (
            _SERVICES,
            "",
            pb.ServerReflectionResponse(list_services_response=listed).SerializeToString(),
        )
    ]
    pool: Any = descriptor_pool.Default()
    files: dict[str, Any] = {}
    for name in names:
        _collect(pool.FindFileContainingSymbol(name), files)
    for file in files.values():
        found += _about(file)
    return found


def _about(file: Any) -> Iterator[Answer]:
    needed: dict[str, Any] = {}
    _collect(file, needed)
    described = pb.FileDescriptorResponse(
        file_descriptor_proto=[_encoded(one) for one in needed.values()]
    )
    answer = pb.ServerReflectionResponse(file_descriptor_response=described).SerializeToString()
    yield _FILE, file.name, answer
    messages: list[Any] = []
    for message in file.message_types_by_name.values():
        messages += _with_nested(message)
    enums = [*file.enum_types_by_name.values(), *(it for one in messages for it in one.enum_types)]
    services = file.services_by_name.values()
    methods = [method for service in services for method in service.methods]
    for symbol in (*messages, *enums, *services, *methods):
        yield _SYMBOL, symbol.full_name, answer
    for message in messages:
        numbers = pb.ExtensionNumberResponse(base_type_name=message.full_name)
        response = pb.ServerReflectionResponse(all_extension_numbers_response=numbers)
        yield _EXTENSIONS, message.full_name, response.SerializeToString()


def _with_nested(message: Any) -> Iterator[Any]:
    yield message
    for nested in message.nested_types:
        yield from _with_nested(nested)


def _collect(file: Any, found: dict[str, Any]) -> None:
    """Add a file, and those that it needs."""
    if file.name not in found:
        found[file.name] = file
        for needed in file.dependencies:
            _collect(needed, found)


def _encoded(file: Any) -> bytes:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto.SerializeToString()
