"""What a node and its compaction worker say to each other: one JSON object per line, over the worker's two pipes.

The node sends a pass (`plan`, `config`); the worker asks for swaps (`replace`, `save`), each of which is answered, says
now and then that it is `alive`, and ends the pass with a `report` or a `failure`. Both are of the same version.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from liftpy_log.compaction.compact import CompactionConfig, CompactionPlan
from liftpy_log.compaction.state import Cleaned, CleanedSegment, SealedSegment
from liftpy_server.workers.json_lines import to_line

__all__ = [
    "decode_cleaned",
    "decode_new_segment",
    "decode_pass",
    "decode_sealed",
    "encode_pass",
    "encode_replace",
    "encode_save",
]


def encode_pass(plan: CompactionPlan, config: CompactionConfig) -> bytes:
    """The line that begins a pass."""
    return to_line(
        {
            "directory": str(plan.directory),
            "segments": [_plain(segment) for segment in plan.segments],
            "cleaned": _plain_cleaned(plan.cleaned),
            "cuts": plan.cuts,
            "now": plan.now,
            "config": asdict(config),
        }
    )


def decode_pass(message: dict[str, Any]) -> tuple[CompactionPlan, CompactionConfig]:
    """What `encode_pass` was given."""
    plan = CompactionPlan(
        Path(message["directory"]),
        tuple(decode_sealed(message["segments"])),
        decode_cleaned(message["cleaned"]),
        message["cuts"],
        message["now"],
    )
    return plan, CompactionConfig(**message["config"])


def encode_replace(old: list[SealedSegment], new: CleanedSegment, cuts: int) -> bytes:
    """The line that asks for `LogOwner.replace_segments`."""
    return to_line({"ask": "replace", "old": [_plain(each) for each in old], "new": _plain(new), "cuts": cuts})


def encode_save(cleaned: Cleaned, cuts: int) -> bytes:
    """The line that asks for `LogOwner.save_cleaned`."""
    return to_line({"ask": "save", "cleaned": _plain_cleaned(cleaned), "cuts": cuts})


def decode_sealed(rows: list[list[Any]]) -> list[SealedSegment]:
    """Segments that grow no more."""
    return [SealedSegment(Path(path), *numbers) for path, *numbers in rows]


def decode_new_segment(row: list[Any]) -> CleanedSegment:
    """A segment that is to take the place of others."""
    path, *numbers = row
    return CleanedSegment(Path(path), *numbers)


def decode_cleaned(row: list[Any]) -> Cleaned:
    """How far a log is clean."""
    clean_end, delete_horizon, tombstones, passes = row
    return Cleaned(clean_end, delete_horizon, tombstones, tuple((end, time) for end, time in passes))


def _plain(segment: SealedSegment | CleanedSegment) -> list[Any]:
    return [str(segment.path), *segment[1:]]


def _plain_cleaned(cleaned: Cleaned) -> list[Any]:
    return [cleaned.clean_end, cleaned.delete_horizon, cleaned.tombstones, cleaned.passes]
