"""What a pin is, and what it holds; no store in here, see `held` for that.

    streams/<uuid>/<partition>/pins/<name>.json

- A *cursor* holds the records from its position on, a *range* those in [start, until): retention does not move the
  start of the partition above them, and key compaction drops none of them. Merging may still move them to other
  objects: whoever reads by a current root finds them.
- A *version* holds the objects that one version of the root names, for a long read or a fork. The pin is a copy of that
  root, so that what it holds can be told by walking it as one walks the root itself.

Cursors stay until they are dropped. The others may expire; then a collector buries them by compare-and-swap before it
takes anything that they held, so that renewing one either comes first or is refused. The names of ranges and versions
are unique per attempt and are deleted once buried; that of a cursor is its user's, and a dropped one stays as a note of
some hundred bytes, as no store deletes an object only if it is still the one that was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.errors import ManifestCorruptError, TierError
from liftpy_bucket.manifest.root.format import decode_root, encode_root

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.json import Fields
    from liftpy_bucket.manifest.root.format import Root

__all__ = [
    "PIN_FIELDS",
    "Pin",
    "PinRefusedError",
    "check_name",
    "decode_pin",
    "encode_pin",
    "floor_of",
    "held_ranges",
    "is_in_force",
]

PIN_FIELDS: Final = ("kind", "start", "until", "version", "root", "target", "expires_ns", "dropped")
_KIND: Final = re.compile("cursor|range|version")
_NAME: Final = re.compile(r"(forks/)?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_TARGET: Final = re.compile(r"([0-9a-f]{32}/[0-9]{1,9})?")
_ROOT: Final = re.compile(r"(\{.*\})?", re.DOTALL)
_NEVER: Final = -1  # what is written for `until` and `expires_ns` where they are None


class PinRefusedError(TierError):
    """What is to be pinned is not there any more, or the pin is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What holds records of a partition, or the objects of one version of it.

    Attributes:
        name: Key without directory and suffix.
        kind: What it holds.
        start: Position of a cursor, first offset of a range; otherwise 0.
        until: Offset after the last one of a range; otherwise None.
        version: Version of the root when it was made.
        root: Root of a version; otherwise None.
        target: For a fork, `<uuid>/<partition>` of the partition that names the objects held; otherwise "".
        expires_ns: When it ends, ns since the epoch; None: never.
        dropped: Whether it holds nothing any more.
        etag: Witness for the next swap.
        modified_ns: When it was written, by the clock of the store.
    """

    name: str
    kind: Literal["cursor", "range", "version"]
    start: int = 0
    until: int | None = None
    version: int = 0
    root: Root | None = None
    target: str = ""
    expires_ns: int | None = None
    dropped: bool = False
    etag: str = ""
    modified_ns: int = 0


def check_name(name: str) -> None:
    """Refuse a name that can not be part of a key.

    Raises:
        PinRefusedError: it can not.
    """
    if _NAME.fullmatch(name) is None:
        raise PinRefusedError(
            f"{name!r:.100} is no name for a pin: use 1 to 200 letters, digits, '_', '-' and '.', not '.' first"
        )


def encode_pin(pin: Pin) -> dict[str, Any]:
    """What is written of a pin; a dropped one lets go of its root."""
    root = None if pin.dropped else pin.root
    return {
        "kind": pin.kind,
        "start": pin.start,
        "until": _NEVER if pin.until is None else pin.until,
        "version": pin.version,
        "root": encode_root(root).decode() if root is not None else "",
        "target": pin.target,
        "expires_ns": _NEVER if pin.expires_ns is None else pin.expires_ns,
        "dropped": pin.dropped,
    }


def decode_pin(path: PartitionPath, name: str, fields: Fields, *, etag: str = "", modified_ns: int = 0) -> Pin:
    """Read a pin.

    Args:
        path: Path of the partition in whose directory it lies.
        name: Name of the pin.
        fields: What its document says.
        etag: ETag of the document.
        modified_ns: Time of the last write of the document, ns since the epoch.

    Raises:
        ManifestCorruptError: it is not a pin.
    """
    kind = fields.text("kind", _KIND)
    target = fields.text("target", _TARGET)
    dropped = fields.flag("dropped")
    text = fields.text("root", _ROOT)
    root = decode_root(path.at(target), text.encode()) if text else None
    if kind == "version" and root is None and not dropped:
        raise ManifestCorruptError(path.pin(name), "it pins a version, but has no root")
    return Pin(
        name=name,
        kind=kind,  # type: ignore[arg-type]  # the pattern allows nothing else
        start=fields.number("start"),
        until=_number_or_none(fields, "until"),
        version=fields.number("version"),
        root=root,
        target=target,
        expires_ns=_number_or_none(fields, "expires_ns"),
        dropped=dropped,
        etag=etag,
        modified_ns=modified_ns,
    )


def is_in_force(pin: Pin, now_ns: int) -> bool:
    """Whether a pin holds anything at `now_ns`."""
    return not pin.dropped and (pin.expires_ns is None or now_ns < pin.expires_ns)


def held_ranges(pins: Iterable[Pin], now_ns: int) -> tuple[tuple[int, int | None], ...]:
    """Ranges [start, until) of offsets whose records must stay; None for `until`: without end.

    Returns:
        in ascending order, without overlaps.
    """
    ranges = sorted(
        ((pin.start, pin.until) for pin in pins if pin.kind != "version" and is_in_force(pin, now_ns)),
        key=lambda each: each[0],
    )
    merged: list[tuple[int, int | None]] = []
    for start, until in ranges:
        if merged and (merged[-1][1] is None or start <= merged[-1][1]):
            last = merged[-1][1]
            merged[-1] = (merged[-1][0], None if last is None or until is None else max(last, until))
        else:
            merged.append((start, until))
    return tuple(merged)


def floor_of(pins: Iterable[Pin], now_ns: int) -> int | None:
    """The first offset that a pin holds, below which retention may go; None when no pin holds any."""
    held = held_ranges(pins, now_ns)
    return held[0][0] if held else None


def _number_or_none(fields: Fields, name: str) -> int | None:
    number = fields.number(name, _NEVER)
    return None if number == _NEVER else number
