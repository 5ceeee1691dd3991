# SPDX-License-Identifier: AGPL-3.0-only
"""What travels through a pipeline, as bytes: a call's request or answer, and a head that names the
call.

Protobuf would make objects of all that is inside before anybody could count it. So the head is
taken off by hand, and what is inside is left to whoever reads that call's requests anyway.
"""

from __future__ import annotations

from fila.v1.service_pb2 import PipelineRequest, PipelineResponse
from fila_server.core.wire.answers import item_error
from fila_server.core.wire.varint import read_varint, varint
from fila_server.errors import FilaError, InvalidArgument

# The calls' fields by name; an answer has the number of its request.
CALLS: dict[str, int] = {field.name: field.number for field in PipelineRequest.DESCRIPTOR.fields}
_NUMBERS = frozenset(CALLS.values())
_ERROR: int = PipelineResponse.DESCRIPTOR.fields_by_name["error"].number

# One is enough; a newer contract may add a few. Millions would take seconds to pass over.
_FIELDS_MAX = 16
# Of protobuf's encoding: the longest number, and what follows a tag by the kind of its field.
_VARINT_BYTES = 10
_NUMBER, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}


def cut_request(encoded: bytes) -> tuple[int, bytes]:
    """Return the number of the call that a PipelineRequest names, and that call's encoded request.

    As protobuf has it, the last call wins, and what is said twice of it is put together. Raises
    InvalidArgument for bytes that are no request, or name no call.
    """
    call = 0
    content = b""
    at = 0
    end = len(encoded)
    try:
        for _ in range(_FIELDS_MAX):
            if at >= end:
                break
            tag, used = read_varint(encoded[at : at + _VARINT_BYTES], 0)
            at += used
            kind = tag & 7
            if kind == _LENGTH:
                size, used = read_varint(encoded[at : at + _VARINT_BYTES], 0)
                at += used
                number = tag >> 3
                if number in _NUMBERS:
                    content = (content if number == call else b"") + encoded[at : at + size]
                    call = number
                at += size
            elif kind == _NUMBER:
                at += read_varint(encoded[at : at + _VARINT_BYTES], 0)[1]
            elif kind in _FIXED_BYTES:
                at += _FIXED_BYTES[kind]
            else:
                break
    except IndexError:
        at = end + 1
    if at != end:
        raise InvalidArgument("the request cannot be decoded: it is no PipelineRequest")
    if not call:
        raise InvalidArgument("the request names no call")
    return call, content


def encode_answer(call: int, content: bytes) -> bytes:
    """Encode the PipelineResponse that holds a call's encoded response."""
    return b"".join((varint(call << 3 | _LENGTH), varint(len(content)), content))


def encode_refusal(error: FilaError) -> bytes:
    """Encode the PipelineResponse to a request that was refused as a whole."""
    return encode_answer(_ERROR, item_error(error).SerializeToString())
