# SPDX-License-Identifier: AGPL-3.0-only
"""How RocksDB is set up, and what disk space that set-up can take at a time.

Everything is measured in write buffers, so that a small volume can have small ones: they bound the
log, the files and the merges of files. This module opens nothing.
"""

from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
)

KIB = 1024
MIB = 1024 * KIB

# How long a call waits for RocksDB to write out its buffers, or for descriptors, before the disk
# counts as failed. By then the deadlines of all callers have passed several times over.
STALL_LIMIT_S = 30.0
STALL_PAUSE_S = 0.001

# Above this size RocksDB begins another manifest, with what the store has then.
MANIFEST_BYTES = 16 * MIB

# A volume holds this many write buffers at least, so that what has to stay free for the log, for
# writing out and for merging is a small part of it.
_BUFFERS_PER_VOLUME = 128
_BUFFER_MIN_BYTES = 64 * KIB

# An open's own files: a manifest, RocksDB's own log, copies of its options.
_OPEN_BYTES = 4 * MIB

# In write buffers.
_LOG = 4  # all logs together, when a flush is called for
_BASE_LEVEL = 4  # RocksDB's default proportion
_MERGE = 12  # below the base level; RocksDB's default is 25
_LOG_AHEAD = 1.1  # RocksDB takes this much for a new log, and for a new table, before it writes


def fit_buffer(write_buffer_bytes: int, volume_bytes: int) -> int:
    """Return the size of write buffers for a volume: what was asked for, or less on a small one."""
    fitting = max(_BUFFER_MIN_BYTES, volume_bytes // _BUFFERS_PER_VOLUME)
    return min(write_buffer_bytes, fitting)


def open_bytes(log_bytes: int) -> int:
    """Return what an open may take on the volume before it gives such a log back."""
    return log_bytes + _OPEN_BYTES


def reserve_bytes(write_buffer_bytes: int) -> int:
    """Return what lets any open succeed."""
    return open_bytes(_LOG * write_buffer_bytes)


def merging_bytes(write_buffer_bytes: int, levels: list[list[int]]) -> int:
    """Return what work in the background can take before it gives anything back.

    `levels` are the bytes in each level of each column. Level 0 is merged with the first level
    below that holds anything, all of both at worst; further down a merge is bounded. One runs at a
    time, and its inputs are deleted when its outputs are there.
    """
    largest = 0
    for newest, *lower in levels:
        below = [size for size in lower if size]
        first = below[0] if below else 0
        deeper = min(sum(below), _MERGE * write_buffer_bytes) if len(below) > 1 else 0
        largest = max(largest, newest + first, deeper)
    return largest + int(2 * _LOG_AHEAD * write_buffer_bytes)


def make_options(
    path: Path, block_cache_bytes: int, write_buffer_bytes: int, check_logs: bool
) -> Options:
    """Return the options of the database and of every column alike."""
    options = _with_log_check(path) if check_logs else Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_atomic_flush(True)

    # A write that RocksDB holds back holds the interpreter lock too, so the marks at which it slows
    # and stops writers are far above what background work falls behind by.
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(6)
    options.set_db_write_buffer_size(3 * write_buffer_bytes)
    options.set_max_total_wal_size(_LOG * write_buffer_bytes)
    options.set_max_bytes_for_level_base(_BASE_LEVEL * write_buffer_bytes)
    options.set_target_file_size_base(write_buffer_bytes)
    options.set_max_compaction_bytes(_MERGE * write_buffer_bytes)
    options.set_level_zero_slowdown_writes_trigger(40)
    options.set_level_zero_stop_writes_trigger(80)
    # One writes buffers out, one merges.
    options.set_max_background_jobs(2)
    options.set_avoid_unnecessary_blocking_io(True)
    # Written out bit by bit; otherwise the log's fsync waits for a whole flush of another file.
    options.set_bytes_per_sync(MIB)

    # Queues leave deleted keys behind: rewrite a file in which half of 10,000 neighbours are.
    options.add_compact_on_deletion_collector_factory(10_000, 5000, 0.5)
    options.set_compression_type(DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(block_cache_bytes))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)

    # Bounded: file handles, RocksDB's own log, its manifest.
    options.set_max_open_files(512)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(8 * MIB)
    options.set_max_manifest_file_size(MANIFEST_BYTES)
    return options


def _with_log_check(path: Path) -> Options:
    """Options under which RocksDB notes each finished log in its manifest, and misses a lost one.

    The watermark cannot tell that a log is gone while a later one is there. rocksdict has no call
    for this option, but it reads option files.
    """
    folder = path / "options"
    folder.mkdir(exist_ok=True)
    (folder / "rocksdict-config.json").write_text('{"raw_mode":true,"prefix_extractors":{}}')
    (folder / "OPTIONS-000001").write_text(_LOG_CHECK)
    options, _ = Options.load_latest(str(folder))
    return options


_LOG_CHECK = """\
[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
"""
