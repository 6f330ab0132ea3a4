"""What may become of a set manifest. Pure; `SetManifestFile.commit` writes what comes out over what was read.

Pages stay as they are here: a commit has those changed whose members come or go (`paging`).

Sums are carried along as in `liftpy_bucket.manifest.root.changes`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from liftpy_bucket.errors import LineageError, ManifestCorruptError, OvertakenError
from liftpy_bucket.layout import set_root_key, slot_of
from liftpy_bucket.manifest.stream_sets.format import SEQUENCE_FIRST, SetManifest, sequence_of
from liftpy_bucket.objects.pointers import SetObject
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from liftpy_bucket.objects.pointers import SetObjectPointer

__all__ = ["add", "adopt", "begin", "drop", "empty", "listed", "replace", "sum_of"]


def empty(node: str, incarnation: int) -> SetManifest:
    """That of a node that has none yet: not written, the first version is made from it.

    Args:
        node: Id of the node.
        incarnation: Incarnation of the node's process.
    """
    return SetManifest(node=node, incarnation=incarnation, version=0, sequence=SEQUENCE_FIRST)


def begin(node: str, incarnation: int) -> SetManifest:
    """The first version, which names nothing: written before there is an object, so that none is without a manifest.

    Args:
        node: Id of the node.
        incarnation: Incarnation of the node's process.
    """
    return dataclasses.replace(empty(node, incarnation), version=1)


def adopt(manifest: SetManifest, incarnation: int) -> SetManifest:
    """Go on where the node's process before, or the node itself, left off. Costs no commit of its own.

    Raises:
        LineageError: a later incarnation has written.
    """
    if incarnation < manifest.incarnation:
        raise LineageError(
            f"node {manifest.node} has written its stream sets with incarnation {manifest.incarnation}: incarnation "
            f"{incarnation} is over"
        )
    return dataclasses.replace(manifest, incarnation=incarnation)


def _sum(objects: Collection[SetObject]) -> Setsum:
    return Setsum.total(each.setsum for each in objects)


def sum_of(written: SetObjectPointer) -> Setsum:
    """Setsum of an object that was just written, so that it is known of its members."""
    sums = [member.setsum for member in written.members if member.setsum is not None]
    assert len(sums) == len(written.members), f"{written.name} was read from pages"
    return Setsum.total(sums)


def listed(pointer: SetObjectPointer) -> SetObject:
    """What the list says of an object."""
    slots = [slot_of(member.uuid, member.partition) for member in pointer.members]
    return SetObject(
        name=pointer.name,
        size=pointer.size,
        footer=pointer.footer,
        digest=pointer.digest,
        members=len(pointer.members),
        records=sum(member.records for member in pointer.members),
        first=min(slots),
        last=max(slots),
        setsum=sum_of(pointer),
    )


def _check_new(manifest: SetManifest, sequence: int, added: SetObjectPointer) -> None:
    assert added.members, f"stream-set object {added.name} has no members"
    if sequence_of(added.name) < sequence:
        raise OvertakenError(f"{set_root_key(manifest.node)} gives out sequence {sequence} next; {added.name} is late")


def add(manifest: SetManifest, added: SetObjectPointer) -> SetManifest:
    """Name one more object.

    Args:
        manifest: Manifest as it was read.
        added: The object; its sequence is `manifest.sequence`, or greater.

    Raises:
        OvertakenError: its sequence was given to another one.
    """
    _check_new(manifest, manifest.sequence, added)
    entry = listed(added)
    return dataclasses.replace(
        manifest,
        version=manifest.version + 1,
        sequence=sequence_of(added.name) + 1,
        objects=(*manifest.objects, entry),
        setsum=manifest.setsum + entry.setsum,
        added=(*manifest.added, added),
    )


def drop(manifest: SetManifest, names: Collection[str], incarnation: int) -> SetManifest:
    """Name objects no more, none of whose members count any more.

    Args:
        manifest: Manifest as it was read.
        names: Names of the objects.
        incarnation: Incarnation of the process that does it.

    Raises:
        LineageError: a later incarnation has written.
        OvertakenError: one of them is not there any more.
    """
    gone = _named(manifest, names)
    collected = _sum(gone)
    return dataclasses.replace(
        adopt(manifest, incarnation),
        version=manifest.version + 1,
        objects=tuple(each for each in manifest.objects if each.name not in names),
        setsum=manifest.setsum - collected,
        collected=manifest.collected + collected,
        added=tuple(each for each in manifest.added if each.name not in names),
    )


def replace(
    manifest: SetManifest,
    names: Collection[str],
    added: Sequence[SetObjectPointer],
    *,
    collected: Setsum = NO_RECORDS,
) -> SetManifest:
    """Name other objects that hold the same members, merged; those that do not count may be left out.

    Args:
        manifest: Manifest as it was read.
        names: Names of the objects that go.
        added: Those that come, with sequences from `manifest.sequence` on, growing.
        collected: Sum of the members that were left out.

    Raises:
        OvertakenError: one that goes is not there any more, or a sequence was given to another one.
        ManifestCorruptError: the sums differ.
    """
    gone = _named(manifest, names)
    sequence = manifest.sequence
    for each in added:
        _check_new(manifest, sequence, each)
        sequence = sequence_of(each.name) + 1
    entries = [listed(each) for each in added]
    if _sum(gone) != _sum(entries) + collected:
        raise ManifestCorruptError(
            set_root_key(manifest.node), f"merging {sorted(names)} would not conserve the sum of their records"
        )
    at = min((manifest.objects.index(each) for each in gone), default=len(manifest.objects))
    before, after = manifest.objects[:at], manifest.objects[at:]
    return dataclasses.replace(
        manifest,
        version=manifest.version + 1,
        sequence=sequence,
        objects=(*before, *entries, *(each for each in after if each.name not in names)),
        setsum=manifest.setsum - collected,
        collected=manifest.collected + collected,
        added=(*(each for each in manifest.added if each.name not in names), *added),
    )


def _named(manifest: SetManifest, names: Collection[str]) -> list[SetObject]:
    found = [each for each in manifest.objects if each.name in names]
    missing = Counter(names) - Counter(each.name for each in found)
    if missing:
        raise OvertakenError(f"{set_root_key(manifest.node)} does not name {', '.join(sorted(missing))} any more")
    return found
