"""Limits and intervals of the log. One file, units in the names."""

from __future__ import annotations

from typing import Final

__all__ = [
    "AGAIN_S",
    "DIRECT_SYNC_PARTITIONS_MAX",
    "INDEX_FLUSH_ENTRIES",
    "INDEX_INTERVAL_BYTES",
    "OPEN_FILES_MAX",
    "ROUND_TIMEOUT_S",
    "SCAN_WINDOW_BYTES",
    "UNSYNCED_AGE_NS_MAX",
    "VERIFY_ON_OPEN_BYTES_MAX",
    "WAL_FILE_BYTES_MAX",
]

INDEX_INTERVAL_BYTES: Final = 16 * 1024
INDEX_FLUSH_ENTRIES: Final = 1_024  # at most 16 MiB or so of a segment are scanned again after a crash
SCAN_WINDOW_BYTES: Final = 16 * 1024
OPEN_FILES_MAX: Final = 512

# Up to this many dirty partitions are made durable by an fdatasync each; beyond it a round goes through the node's
# write-ahead log. Measured: 1 file 0.11 ms, 10 files 1.8 ms, 1,000 files 174 ms; through the write-ahead log 0.1 to
# 0.8 ms whatever the number (docs/internals/decisions.md).
DIRECT_SYNC_PARTITIONS_MAX: Final = 3
WAL_FILE_BYTES_MAX: Final = 128 * 1024 * 1024

# What others took for a moment, as open files, may be back after this.
AGAIN_S: Final = 0.05

# Who cuts a log waits for the round that is at work on it; a disk that takes longer is as good as broken.
ROUND_TIMEOUT_S: Final = 30.0

# No write waits longer than this for its fdatasync, unless the disk is broken: what was followed by other records for
# longer was durable, and is damaged rather than torn when it is not well.
UNSYNCED_AGE_NS_MAX: Final = 60 * 10**9

# After an unclean stop every batch in this much of a partition's newest segment is checked, whatever the index says.
VERIFY_ON_OPEN_BYTES_MAX: Final = 64 * 1024 * 1024
