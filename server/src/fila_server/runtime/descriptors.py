# SPDX-License-Identifier: AGPL-3.0-only
"""File descriptors: as many as the system allows, shared between connections and the store.

A store that cannot open its next file fails for good, and takes every message with it until a
restart. A connection that is refused costs one client one attempt. So the store's come first.
"""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

# What the store may open (RocksDB's max_open_files and its logs), and pollers, pipes and log files.
_STORE = 640
# Where the limit is so low that the store alone would need all of it, it gets most.
_CONNECTIONS_SHARE = 4
# In the system's table of sockets.
_ESTABLISHED = "01"


def raise_limit() -> None:
    """Raise the soft limit to the hard one, as every server does; 1024 is for programs that use
    select.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # macOS refuses "unlimited"
            log.warning("the limit of %d open files cannot be raised: %s", soft, error)


def connections(wanted: int, others: int = 0) -> int:
    """Return how many connections to take, of as many as wanted, beside those of other ports."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return wanted
    spare = share(limit, wanted, others)
    if spare < wanted:
        log.info(
            "%d connections at most, not limits.max_connections (%d): the system allows %d open"
            " files; raise it (ulimit -n, LimitNOFILE)",
            spare,
            wanted,
            limit,
        )
    return spare


def established(port: int) -> int:
    """Return how many connections to a port of this machine are open; 0 where nobody can tell."""
    count = 0
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                lines = file.readlines()
        except OSError:
            continue
        for line in lines[1:]:
            fields = line.split(maxsplit=4)
            count += fields[1].endswith(wanted) and fields[3] == _ESTABLISHED
    return count


def share(limit: int, wanted: int, others: int = 0) -> int:
    """Return how many of so many descriptors are for connections, of as many as wanted, when some
    are kept back for others.
    """
    return min(max(limit - _STORE - others, limit // _CONNECTIONS_SHARE), wanted)
