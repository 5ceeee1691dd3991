# SPDX-License-Identifier: AGPL-3.0-only
"""Runtime configuration: entries that the scheduler and hooks read, as requests. No I/O."""

from collections.abc import Mapping

from fila._answers import nothing
from fila._endpoint import Call
from fila.admin import METHOD
from fila.v1 import admin_pb2


def set_config(key: str, value: str) -> Call[None]:
    request = admin_pb2.SetConfigRequest(key=key, value=value)
    return Call(METHOD + "SetConfig", request, admin_pb2.SetConfigResponse, nothing)


def set_config_all(entries: Mapping[str, str]) -> Call[None]:
    request = admin_pb2.SetConfigRequest(
        entries=[admin_pb2.ConfigEntry(key=key, value=value) for key, value in entries.items()]
    )
    return Call(METHOD + "SetConfig", request, admin_pb2.SetConfigResponse, nothing)


def get_config(key: str) -> Call[str]:
    return Call(
        METHOD + "GetConfig",
        admin_pb2.GetConfigRequest(key=key),
        admin_pb2.GetConfigResponse,
        lambda response: str(response.value),
    )


def delete_config(key: str) -> Call[None]:
    request = admin_pb2.DeleteConfigRequest(key=key)
    return Call(METHOD + "DeleteConfig", request, admin_pb2.DeleteConfigResponse, nothing)


def list_config(prefix: str) -> Call[dict[str, str]]:
    return Call(
        METHOD + "ListConfig",
        admin_pb2.ListConfigRequest(prefix=prefix),
        admin_pb2.ListConfigResponse,
        lambda response: {entry.key: entry.value for entry in response.entries},
    )
