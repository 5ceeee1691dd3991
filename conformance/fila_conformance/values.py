# SPDX-License-Identifier: AGPL-3.0-only
"""Turns what a case writes into the value it means: variables, payload notations, computed values.

$first.message_id           a saved reply, by path; `*` goes through a list
${queue}.dlq                the same inside a text, or inside a mapping's key
payload: {utf8: hi}         bytes, as base64: utf8, json, hex, or fill (one byte, in hex) and size
                            or size_relative_to_limit
{$now_plus_ms: 500}         a time
{$concat: [a, b]}           lists, one after the other
{$repeat: {count: 3, item: {payload: {utf8: "m${i}"}}}}
{$entries: {count: 3, key: "k${i}", value: "v${i}"}}       a mapping
"""

import json
import re
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

# The broker's limit, which the runner sets on every broker that it starts. It is the default, and
# is below gRPC's 4 MiB as the contract demands.
PAYLOAD_BYTES_MAX = 3 * 1024 * 1024

_VARIABLE = re.compile(r"\$([a-z_]\w*(?:\.[\w*-]+)*)")
_INSIDE = re.compile(r"\$\{([a-z_]\w*(?:\.[\w*-]+)*)\}")
_PAYLOAD_NOTATIONS = (
    *({"utf8"}, {"json"}, {"hex"}, {"base64"}),
    *({"fill", "size"}, {"fill", "size_relative_to_limit"}),
)

Variables = Mapping[str, Any]


class UnknownVariable(Exception):
    """The case names something that no step saved."""


def resolve(value: Any, variables: Variables, key: str = "") -> Any:
    """The value that is meant. Raises UnknownVariable."""
    if isinstance(value, str):
        return _text(value, variables)
    if isinstance(value, list):
        return [resolve(element, variables) for element in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) in _PAYLOAD_NOTATIONS and key == "payload":
        return _payload({name: resolve(part, variables) for name, part in value.items()})
    if set(value) == {"$repeat"}:
        count, item = resolve(value["$repeat"]["count"], variables), value["$repeat"]["item"]
        return [resolve(item, {**variables, "i": i}, key) for i in range(count)]
    if set(value) == {"$entries"}:
        given = value["$entries"]
        scopes = [{**variables, "i": i} for i in range(given["count"])]
        return {resolve(given["key"], s): resolve(given["value"], s) for s in scopes}
    resolved = {
        _inside(name, variables): resolve(part, variables, name) for name, part in value.items()
    }
    if set(resolved) == {"$now_plus_ms"}:
        return int(time.time() * 1000) + resolved["$now_plus_ms"]
    if set(resolved) == {"$concat"}:
        return [element for part in resolved["$concat"] for element in part]
    return resolved


def lookup(path: str, variables: Variables) -> Any:
    """What a path such as `first.messages.*.id` leads to."""
    name, *steps = path.split(".")
    if name not in variables:
        raise UnknownVariable(f"nothing is saved as {name!r}")
    return _walk(variables[name], steps, path)


def _walk(value: Any, steps: list[str], path: str) -> Any:
    for position, step in enumerate(steps):
        if step == "*":
            return [_walk(element, steps[position + 1 :], path) for element in value]
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise UnknownVariable(f"{path!r} leads nowhere at {step!r}") from error
    return value


def _text(text: str, variables: Variables) -> Any:
    if whole := _VARIABLE.fullmatch(text):
        return lookup(whole[1], variables)
    return _inside(text, variables)


def _inside(text: str, variables: Variables) -> str:
    return _INSIDE.sub(lambda found: str(lookup(found[1], variables)), text)


def _payload(notation: Mapping[str, Any]) -> str:
    if "utf8" in notation:
        data = str(notation["utf8"]).encode()
    elif "json" in notation:
        data = json.dumps(notation["json"]).encode()
    elif "hex" in notation:
        data = bytes.fromhex(str(notation["hex"]))
    elif "base64" in notation:
        return str(notation["base64"])
    else:
        relative = notation.get("size_relative_to_limit")
        size = notation["size"] if relative is None else PAYLOAD_BYTES_MAX + relative
        data = bytes.fromhex(str(notation["fill"])) * size
    return b64encode(data).decode()
