"""Limits and intervals of a node. One file, units in the names."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ACKS_TAKEN_TIMEOUT_S",
    "ACK_BUFFER_BYTES_MAX",
    "BATCH_VALUE_BYTES_MAX",
    "CHECKPOINT_INTERVAL_S",
    "CONFIRM_INTERVAL_S",
    "DEAF_AFTER_S",
    "DISK_CHECK_INTERVAL_S",
    "HTTP_CONNECTIONS_MAX",
    "INGEST_LINGER_BYTES_MAX",
    "INGEST_LINGER_S_MAX",
    "KNOCK_TIMEOUT_S",
    "LINGER_RUNS_MIN",
    "LOG_REPEAT_S",
    "MAINTENANCE_INTERVAL_S",
    "MOVE_OVERLAP_S",
    "OPEN_FILES_SPARE",
    "OWED_RECORDS_MAX",
    "PEER_BYTES_PER_S_MIN",
    "PULL_HELLO_BYTES_MAX",
    "PULL_NODES",
    "PULL_REQUESTS_MAX",
    "PULL_STRANGERS_MAX",
    "QUESTIONS_OPEN_MAX",
    "RELIEF_INTERVAL_S",
    "ROUTE_GRACE_S",
    "ROUTE_SILENT_S_MAX",
    "RUN_MESSAGES_PER_PARTITION_MIN",
    "SHORT_CONNECTION_S",
    "SILENT_QUESTIONS_MAX",
    "SPARE_DESCRIPTORS",
    "STALLED_S",
    "SUBSCRIBE_RETRY_S",
    "SWITCH_INTERVAL_S",
    "UNSUBSCRIBE_TIMEOUT_S",
    "UNSYNCED_BYTES_MAX",
]

BATCH_VALUE_BYTES_MAX: Final = 1024 * 1024  # a chunk's run is cut into batches of about this size
INGEST_LINGER_BYTES_MAX: Final = 8 * 1024 * 1024
INGEST_LINGER_S_MAX: Final = 0.1
LINGER_RUNS_MIN: Final = 8  # a pass over fewer subscriptions is never put off
RUN_MESSAGES_PER_PARTITION_MIN: Final = 256  # with fewer messages a batch, waiting for more costs less than cutting
UNSYNCED_BYTES_MAX: Final = 32 * 1024 * 1024  # beyond this the NATS socket is not read until the disk has caught up
OWED_RECORDS_MAX: Final = 1_000_000  # likewise until other nodes have what publishers wait for an ack of
ACK_BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024  # likewise for acks that the NATS server does not take

PULL_HELLO_BYTES_MAX: Final = 4 * 1024  # taken from a peer that has not shown the token
PULL_STRANGERS_MAX: Final = 256  # that have not said hello, half of them from one address; then the oldest goes
PULL_NODES: Final = 32  # other nodes that follow here, for whom descriptors are left
HTTP_CONNECTIONS_MAX: Final = 32  # half of them from one address; then the oldest goes
PULL_REQUESTS_MAX: Final = 16  # that wait for their turn on one connection; beyond it the socket is not read
OPEN_FILES_SPARE: Final = 128  # descriptors left for everything that is neither a segment nor a pull connection
SPARE_DESCRIPTORS: Final = 32  # of those, held for files that must be opened when others have taken the rest
PEER_BYTES_PER_S_MIN: Final = 256 * 1024  # a consumer slower than this is taken to be stuck

ACKS_TAKEN_TIMEOUT_S: Final = 5.0  # a node that stops waits this long for the NATS server to take its last acks
UNSUBSCRIBE_TIMEOUT_S: Final = 10.0  # a node that stops waits this long for what is on its way
RELIEF_INTERVAL_S: Final = 0.1  # while the NATS socket is not read, whether it can be is looked at this often
SUBSCRIBE_RETRY_S: Final = 10.0  # a subscription that the NATS server refuses is tried again this often
CONFIRM_INTERVAL_S: Final = 1.0  # a gap begins at most about this much before the first message that is missing
SILENT_QUESTIONS_MAX: Final = 3  # a NATS server that is silent for so many of these intervals is given up
MOVE_OVERLAP_S: Final = 0.5  # between two NATS servers, where marks do not tell when all has come from the old one
QUESTIONS_OPEN_MAX: Final = 1_000  # while the NATS socket is not read; beyond it nothing is asked
KNOCK_TIMEOUT_S: Final = 2.0  # a NATS server that lost its route is looked for this long, and this often
ROUTE_GRACE_S: Final = 3.0  # after a route between NATS servers is back, for both to know who subscribes to what
ROUTE_SILENT_S_MAX: Final = 90.0  # nats-server asks each 30 s, and gives a route up at the third without an answer
STALLED_S: Final = 0.5  # a NATS server that says nothing for so long to whoever connects stands still
SHORT_CONNECTION_S: Final = 2.0  # a NATS connection that lasted for less did not succeed
DEAF_AFTER_S: Final = 1.0  # without a connection to NATS a node hands over what others hear
CHECKPOINT_INTERVAL_S: Final = 5.0
MAINTENANCE_INTERVAL_S: Final = 10.0
DISK_CHECK_INTERVAL_S: Final = 1.0
LOG_REPEAT_S: Final = 10.0  # a message that would be logged for every refusal is logged this often

# A thread that returns from fdatasync waits this long at most for the interpreter; the default of 5 ms put the
# median of a group commit round at 7 ms under load, and some at half a second (docs/internals/decisions.md).
SWITCH_INTERVAL_S: Final = 0.0001
