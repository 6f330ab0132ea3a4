"""Which partition a record belongs to when its stream is spread by hash."""

from __future__ import annotations

import google_crc32c

__all__ = ["partition_of"]


def partition_of(key_or_subject: bytes, partition_count: int) -> int:
    """CRC-32C of the key, or of the subject where there is no key, modulo the number of partitions.

    The function is part of the format: publishers, nodes and the Spark sink must agree on it for ever.
    """
    return int(google_crc32c.value(key_or_subject)) % partition_count
