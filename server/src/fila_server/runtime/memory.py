# SPDX-License-Identifier: AGPL-3.0-only
"""How the C library hands out memory and gives it back, and how much the process holds.

gRPC and RocksDB allocate on many threads. glibc would keep an arena for each, and keep in each what
was freed: 200 unfinished requests left 2.6 GB behind. Elsewhere than on glibc nothing happens here.
"""

from __future__ import annotations

import ctypes
import os
import resource

# From <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

# Bodies of large requests are mapped one by one, and so are given back when they are freed. glibc
# would raise this by itself with the first one.
_MMAP_BYTES = 256 * 1024
_TRIM_BYTES = 4 * 1024 * 1024
_ARENAS = 2

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _c_library() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def settle_allocator() -> None:
    """Keep the allocator frugal. Call before threads start."""
    library = _c_library()
    if library is not None:
        library.mallopt(_M_ARENA_MAX, _ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back() -> None:
    """Give back what was freed between pieces that are in use; for a thread of its own.

    Windows of large bodies are small pieces, and the arenas keep those until they are trimmed.
    """
    library = _c_library()
    if library is not None:
        library.malloc_trim(0)


def resident_bytes() -> int:
    """Return what the process holds of the machine's memory."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:  # not Linux: the most that it ever held
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
