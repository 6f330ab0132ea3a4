"""Pointers to stream objects and snapshots, as roots and snapshots write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.manifest.json import DIGEST, INT64_MIN, Fields
from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_bucket.manifest.json import Row

__all__ = [
    "DEPTH_MAX",
    "check_order",
    "fragment_plain",
    "fragments_of",
    "snapshot_plain",
    "snapshots_of",
]

DEPTH_MAX: Final = 8

_FRAGMENT_NAME: Final = re.compile(r"[0-9]{20}-[0-9]{1,10}-[A-Za-z0-9_-]{1,128}\.parquet")
_HOME: Final = re.compile(r"[0-9a-f]{32}/[0-9]{1,9}")
_BOTH: Final = ("base", "end", "records", "size", "first_timestamp", "last_timestamp", "setsum")
_FRAGMENT: Final = frozenset({*_BOTH, "name", "footer", "digest"})
_SNAPSHOT: Final = frozenset({*_BOTH, "digest", "depth", "fragments"})
_OPTIONAL: Final = ("home",)


def _plain(pointer: StreamObjectPointer | SnapshotPointer) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "base": pointer.base,
        "end": pointer.end,
        "records": pointer.records,
        "size": pointer.size,
        "first_timestamp": pointer.first_timestamp,
        "last_timestamp": pointer.last_timestamp,
        "setsum": pointer.setsum.hex(),
    }
    if pointer.home:
        plain["home"] = pointer.home
    return plain


def fragment_plain(pointer: StreamObjectPointer) -> dict[str, Any]:
    """What is written of a stream object."""
    return {**_plain(pointer), "name": pointer.name, "footer": pointer.footer, "digest": pointer.digest}


def snapshot_plain(pointer: SnapshotPointer) -> dict[str, Any]:
    """What is written of a snapshot."""
    return {**_plain(pointer), "digest": pointer.digest, "depth": pointer.depth, "fragments": pointer.fragments}


def _common(fields: Fields) -> dict[str, Any]:
    base = fields.number("base")
    return {
        "base": base,
        "end": fields.number("end", base + 1),
        "records": fields.number("records"),
        "size": fields.number("size"),
        "first_timestamp": fields.number("first_timestamp", INT64_MIN),
        "last_timestamp": fields.number("last_timestamp", INT64_MIN),
        "setsum": fields.setsum("setsum"),
        "home": fields.text("home", _HOME) if fields.has("home") else "",
    }


def fragments_of(parent: Row, name: str) -> tuple[StreamObjectPointer, ...]:
    """Read a list of pointers to stream objects.

    Raises:
        ManifestCorruptError: something in it is not what it must be.
    """
    return tuple(
        StreamObjectPointer(
            **(common := _common(fields)),
            name=fields.text("name", _FRAGMENT_NAME),
            footer=fields.number("footer", most=common["size"]),
            digest=fields.text("digest", DIGEST),
        )
        for fields in parent.objects(name, _FRAGMENT, _OPTIONAL)
    )


def snapshots_of(parent: Row, name: str, depth_max: int = DEPTH_MAX) -> tuple[SnapshotPointer, ...]:
    """Read a list of pointers to snapshots, of at most `depth_max`.

    Raises:
        ManifestCorruptError: something in it is not what it must be.
    """
    return tuple(
        SnapshotPointer(
            **_common(fields),
            digest=fields.text("digest", DIGEST),
            depth=fields.number("depth", 1, depth_max),
            fragments=fields.number("fragments", 1),
        )
        for fields in parent.objects(name, _SNAPSHOT, _OPTIONAL)
    )


def check_order(key: str, pointers: Iterable[StreamObjectPointer | SnapshotPointer], end: int) -> None:
    """Check that every pointer begins where the one before ends, or later, and none reaches beyond `end`.

    Raises:
        ManifestCorruptError: they do not.
    """
    reached = 0
    for pointer in pointers:
        if pointer.base < reached:
            raise ManifestCorruptError(
                key, f"what it names from offset {pointer.base} on is named up to {reached}, too"
            )
        reached = pointer.end
    if reached > end:
        raise ManifestCorruptError(key, f"it names offsets up to {reached}, but ends at {end}")
