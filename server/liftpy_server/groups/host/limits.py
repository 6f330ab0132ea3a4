"""Limits and intervals of group hosting, units in the names."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BATCH_RECORDS_MAX",
    "COMMIT_WAIT_S_MAX",
    "CREATE_WAIT_S",
    "LOOK_S",
    "PAUSE_S_MIN",
    "QUEUED_MAX",
    "READ_BYTES_MAX",
    "RETRY_S",
    "SLICE_GROUPS",
    "SLICE_REQUESTS",
    "SLICE_ROWS",
    "TICK_S_MAX",
    "UPKEEP_INTERVAL_S",
    "WAITING_MAX",
]

READ_BYTES_MAX: Final = 4 * 1024 * 1024  # of the log that are in memory at once while it is replayed
SLICE_ROWS: Final = 2_048  # applied without a look at anything else: two or three milliseconds
SLICE_REQUESTS: Final = 256  # likewise, of what was asked; the next pass takes the others
SLICE_GROUPS: Final = 256  # likewise, of what is to be done to all groups
BATCH_RECORDS_MAX: Final = 4_096  # of several steps that are appended as one batch; one step is never split
QUEUED_MAX: Final = 20_000  # requests of one partition that wait for a step or a commit; more are told to come again
WAITING_MAX: Final = 20_000  # heartbeats of one partition that wait for news; others are answered at once
LOOK_S: Final = 0.05  # how often a leader that is not settled looks whether it is
RETRY_S: Final = 1.0
TICK_S_MAX: Final = 1.0  # a timer that is late tells that the node stood still, so there always is one
PAUSE_S_MIN: Final = 0.25  # lateness below this is the machine's usual
COMMIT_WAIT_S_MAX: Final = 30.0  # replication has decided long before: see replica_lag_max_s
CREATE_WAIT_S: Final = 3.0  # for nodes that are starting to register
UPKEEP_INTERVAL_S: Final = 60.0
