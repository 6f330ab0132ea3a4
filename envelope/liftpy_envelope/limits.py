"""Limits of everything that crosses a wire. One file, units in the names."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ACK_BYTES_MAX",
    "ACK_INBOX_BYTES_MAX",
    "ADMIN_ANSWER_ITEMS_MAX",
    "ADMIN_REQUEST_ITEMS_MAX",
    "BATCH_BYTES_MAX",
    "CORRELATION_ID_BYTES_MAX",
    "ENVELOPE_HEADERS_MAX",
    "ENVELOPE_RECORDS_MAX",
    "FETCH_BYTES_MAX",
    "FETCH_PARTITIONS_MAX",
    "FETCH_WAIT_MS_MAX",
    "KEY_BYTES_MAX",
    "LEAPS_MAX",
    "MESSAGE_ID_BYTES_MAX",
    "NAME_LENGTH_MAX",
    "NATS_PAYLOAD_BYTES_MAX",
    "REQUEST_FRAME_BYTES_MAX",
    "RESPONSE_BODY_BYTES_MAX",
    "RESPONSE_HEADER_BYTES_MAX",
    "STRANGER_FRAME_BYTES_MAX",
    "SUBJECT_BYTES_MAX",
]

NAME_LENGTH_MAX: Final = 128
SUBJECT_BYTES_MAX: Final = 4_096  # nats-server's default `max_control_line`
KEY_BYTES_MAX: Final = 1024 * 1024
MESSAGE_ID_BYTES_MAX: Final = 1_024
CORRELATION_ID_BYTES_MAX: Final = 1_024
ACK_INBOX_BYTES_MAX: Final = 1_024
ACK_BYTES_MAX: Final = 64 * 1024  # of an ack, or a refusal, as clients read them

NATS_PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024  # nats-server refuses a larger `max_payload`
BATCH_BYTES_MAX: Final = 128 * 1024 * 1024  # one record always fits
ENVELOPE_HEADERS_MAX: Final = 4_096  # names and values
ADMIN_REQUEST_ITEMS_MAX: Final = 50_000  # values in the JSON; NATS bounds its bytes
ADMIN_ANSWER_ITEMS_MAX: Final = 10_000_000
ENVELOPE_RECORDS_MAX: Final = 1_000_000

REQUEST_FRAME_BYTES_MAX: Final = 1024 * 1024
STRANGER_FRAME_BYTES_MAX: Final = 4 * 1024  # of a peer that has not shown the token
RESPONSE_HEADER_BYTES_MAX: Final = 4 * 1024 * 1024
RESPONSE_BODY_BYTES_MAX: Final = 256 * 1024 * 1024
FETCH_BYTES_MAX: Final = 64 * 1024 * 1024
FETCH_WAIT_MS_MAX: Final = 60_000
FETCH_PARTITIONS_MAX: Final = 10_000
LEAPS_MAX: Final = 16  # of the time of one log, that are remembered and told
