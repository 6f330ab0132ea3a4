"""Names of options as the documentation spells them, by what takes them."""

from __future__ import annotations

from typing import Final

__all__ = ["CONNECTION_ALIASES", "CONNECTION_OPTIONS", "SINK_OPTIONS", "SOURCE_OPTIONS"]

CONNECTION_OPTIONS: Final = ("servers", "context", "credentialsFile", "bucket", "s3.endpoint", "s3.region")
"""Of sources and sinks alike."""
CONNECTION_ALIASES: Final = {"nats.servers": "servers"}
"""Other names for some of them."""

SOURCE_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "subject",
    "keyEquals",
    "keyEqualsHex",
    "includeHeaders",
    "failOnDataLoss",
    "minPartitions",
    "maxTasks",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxPollMs",
    "cold",
)
"""Of reading."""

SINK_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    "stream",
    "subject",
    "delivery",
    "txnAppId",
    "txnVersion",
    "stagingBytes",
    "stagingDirectory",
    "stagedReader",
    "failOnMismatch",
)
"""Of writing."""
