# SPDX-License-Identifier: AGPL-3.0-only
"""The console script: where `fila` begins and ends, and both quickly.

Loading modules makes many objects and no garbage, and taking an interpreter down piece by piece
gives nothing that the system does not take back at once. Together they were a third of a command.
Some parts of the libraries are loaded by others whether or not anybody uses them, and took another:
they are loaded when somebody does.
"""

import gc
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Objects made before anybody looks for garbage; the broker has a like number.
_OBJECTS = 200_000
# asyncio, and gRPC for it, of which a command makes no use, and protobuf in Python, which is for
# machines that have none in C.
_SELDOM = ("asyncio", "grpc.aio", "google.protobuf.internal.python_message")


def main() -> None:
    gc.set_threshold(_OBJECTS, 50, 100)
    for name in _SELDOM:
        _load_when_used(name)
    from fila_server.cli.app import run

    code = run()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # whoever read it has gone
        pass
    os._exit(code)


class _Later(ModuleType):
    """A module that is loaded when something in it is first asked for.

    importlib's own lazy loader is at work as soon as its module is imported a second time.
    """

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = self.__spec__
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(self)
        return getattr(self, name)


def _load_when_used(name: str) -> None:
    """Put a module in place that is loaded when it is used. Nothing is imported for that."""
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        where = None if spec is None else spec.submodule_search_locations
        spec = PathFinder.find_spec(".".join(parts[:count]), where)
        if spec is None:
            return
    assert spec is not None
    later = sys.modules[name] = _Later(name)
    later.__spec__ = spec
    later.__loader__ = spec.loader
    later.__file__ = spec.origin
    later.__package__ = spec.parent
    if spec.submodule_search_locations is not None:
        later.__path__ = spec.submodule_search_locations
