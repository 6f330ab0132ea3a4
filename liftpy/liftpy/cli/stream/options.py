"""The settings of a stream, as options of `liftpy stream add` and `liftpy stream edit`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from liftpy.cli.units import parse_bytes, parse_duration

__all__ = [
    "AckPolicyOption",
    "Acks",
    "Compact",
    "CompactionLag",
    "CompressionOption",
    "DedupeIds",
    "DedupeWindow",
    "DeleteRetention",
    "DirtyRatio",
    "Group",
    "KeepReplies",
    "LocalMaxAge",
    "LocalMaxBytes",
    "MaxAge",
    "MaxBytes",
    "MaxMessageSize",
    "MaxMessages",
    "MinIsr",
    "SegmentAge",
    "SegmentBytes",
    "Subject",
    "Sync",
    "Tier",
    "UncleanElection",
    "given_settings",
]

_SIZE = {"metavar": "SIZE", "show_default": False}
_SPAN = {"metavar": "SPAN", "show_default": False}

Subject = Annotated[str | None, typer.Option("--subject", help="NATS subject to store, wildcards included.")]
Group = Annotated[str | None, typer.Option(help="NATS queue group to join; an empty name leaves it.")]
Acks = Annotated[str | None, typer.Option(help="Where acks go: reply (subject), envelope (if it asks), or off.")]
AckPolicyOption = Annotated[
    str | None, typer.Option("--ack-policy", help="When the ack is sent: all (committed), leader, or none.")
]
Sync = Annotated[str | None, typer.Option(help="When records are fsynced: always (before the ack), interval or never.")]
MaxAge = Annotated[str | None, typer.Option("--max-age", help="Delete records older than this; 0 keeps them.", **_SPAN)]
MaxBytes = Annotated[
    str | None, typer.Option("--max-bytes", help="Delete the oldest records beyond this, per partition.", **_SIZE)
]
MaxMessages = Annotated[
    int | None, typer.Option("--max-msgs", help="Delete the oldest records beyond this, per partition.")
]
MaxMessageSize = Annotated[str | None, typer.Option("--max-msg-size", help="Refuse larger messages.", **_SIZE)]
DedupeWindow = Annotated[
    str | None, typer.Option("--dupe-window", help="Time for which message ids are remembered.", **_SPAN)
]
DedupeIds = Annotated[int | None, typer.Option("--dupe-ids", help="Number of message ids remembered per partition.")]
SegmentBytes = Annotated[
    str | None, typer.Option("--segment-bytes", help="Size at which a segment is closed.", **_SIZE)
]
Compact = Annotated[
    bool | None, typer.Option("--compact/--no-compact", help="Keep the last record of every key.", show_default=False)
]
CompactionLag = Annotated[
    str | None, typer.Option("--min-compaction-lag", help="Do not compact records younger than this.", **_SPAN)
]
DeleteRetention = Annotated[
    str | None, typer.Option("--delete-retention", help="Time for which tombstones are kept.", **_SPAN)
]
DirtyRatio = Annotated[
    float | None,
    typer.Option(
        "--min-dirty-ratio", help="Fraction of uncompacted log that starts a compaction, 0 to 1.", show_default=False
    ),
]
UncleanElection = Annotated[
    bool | None,
    typer.Option(
        "--unclean-leader-election/--no-unclean-leader-election",
        help="Elect the best log left without an operator, where acknowledged messages may be lost.",
        show_default=False,
    ),
]
Tier = Annotated[
    bool | None,
    typer.Option("--tier/--no-tier", help="Upload the stream to the cluster's bucket.", show_default=False),
]
LocalMaxAge = Annotated[
    str | None,
    typer.Option(
        "--local-max-age", help="Delete older records from disk once they are in the bucket; 0 keeps them.", **_SPAN
    ),
]
LocalMaxBytes = Annotated[
    str | None,
    typer.Option(
        "--local-max-bytes", help="Delete the oldest beyond this, per partition, from disk once in the bucket.", **_SIZE
    ),
]
SegmentAge = Annotated[str | None, typer.Option("--segment-age", help="Age at which a segment is closed.", **_SPAN)]
CompressionOption = Annotated[str | None, typer.Option("--compression", help="none, lz4 or zstd.")]
KeepReplies = Annotated[bool | None, typer.Option("--keep-replies/--drop-replies", help="Store reply subjects.")]
MinIsr = Annotated[
    int | None,
    typer.Option(
        "--min-isr", help="Fewest in-sync replicas that accept messages; by default a majority.", show_default=False
    ),
]


def given_settings(
    *, max_age: str | None, max_bytes: str | None, max_message_size: str | None, dedupe_window: str | None,
    segment_bytes: str | None, segment_age: str | None, compaction_lag: str | None, delete_retention: str | None,
    local_max_age: str | None, local_max_bytes: str | None,
    **plain: Any,
) -> dict[str, Any]:  # fmt: skip
    """The settings that were given on the command line, in the stream configuration's own names and units."""
    settings = dict(plain)
    for name, text, parse in (
        ("retention_age_s", max_age, parse_duration),
        ("retention_bytes", max_bytes, parse_bytes),
        ("message_bytes_max", max_message_size, parse_bytes),
        ("dedupe_window_s", dedupe_window, parse_duration),
        ("segment_bytes", segment_bytes, parse_bytes),
        ("segment_age_s", segment_age, parse_duration),
        ("min_compaction_lag_s", compaction_lag, parse_duration),
        ("delete_retention_s", delete_retention, parse_duration),
        ("local_retention_age_s", local_max_age, parse_duration),
        ("local_retention_bytes", local_max_bytes, parse_bytes),
    ):
        settings[name] = None if text is None else parse(text)
    return {name: value for name, value in settings.items() if value is not None}
