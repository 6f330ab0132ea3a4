"""What may become of a root: every commit is one of these, and all of them are pure.

A change is made from the root that was read and is committed over exactly that one (`RootFile.commit`), so that what
is checked here holds when it is written. Sums are carried along: what is appended is added, what goes moves into
`collected`, and the rest stays.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftpy_bucket.errors import LineageError, ManifestCorruptError, OvertakenError, SealedError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.lineage import check_lineage, cut_epochs, join_epochs
from liftpy_bucket.manifest.root.folding import fold
from liftpy_bucket.manifest.root.format import Claim, Root
from liftpy_bucket.manifest.root.producers import highest_of
from liftpy_bucket.manifest.root.rewriting import Rewriter, fragments_below
from liftpy_bucket.manifest.root.snapshot import homed
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.setsum import Setsum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from liftpy_bucket.manifest.root.producers import HighestBatch
    from liftpy_bucket.manifest.root.snapshot import Snapshot
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer

__all__ = ["Change", "advance_start", "append", "claim", "create", "fork", "replace", "seal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A root to be committed, and what that means for what it names.

    Attributes:
        root: The new one; its version is one more than that of the old one.
        snapshots: Drafts of the new ones that it names, lower ones first. They get their last name when they are
            committed.
        gone: Fragments that the old root named, directly or through snapshots, and the new one does not.
        gone_snapshots: Snapshots of which the same is true.
    """

    root: Root
    snapshots: tuple[Snapshot, ...] = ()
    gone: tuple[StreamObjectPointer, ...] = ()
    gone_snapshots: tuple[SnapshotPointer, ...] = ()


def _path(root: Root) -> PartitionPath:
    return PartitionPath(root.uuid, root.partition)


def _name(root: Root) -> str:
    return f"partition {root.partition} of stream {root.uuid}"


def _check_open(root: Root) -> None:
    if root.sealed:
        raise SealedError(f"{_name(root)} is sealed in the bucket at offset {root.end} and takes nothing more")


def create(
    path: PartitionPath, *, epoch: int, node: str, start: int, record_hash: RecordHash = RecordHash.BLAKE2B
) -> Change:
    """The first root of a partition, claimed.

    Args:
        path: Path of the partition.
        epoch: Leader epoch of the claimer.
        node: Id of the node.
        start: The first offset of the partition.
        record_hash: Hash of a record in all sums of the partition, from now on.
    """
    claims = (Claim(epoch=epoch, node=node, start=start),)
    root = Root(
        uuid=path.uuid,
        partition=path.partition,
        record_hash=record_hash,
        version=1,
        start=start,
        end=start,
        claims=claims,
    )
    return Change(root=root)


def claim(root: Root, *, epoch: int, node: str, start: int) -> Change:
    """End the claim in force and begin one. Who claims once more what it holds keeps the claim that it has.

    Args:
        root: Root as it was read.
        epoch: Leader epoch of the claimer.
        node: Id of the node.
        start: The first offset that it will tier: the end of what earlier claims hold (`resolving.resolve`). Claims
            that begin there or later hold nothing that anybody sees, and go.

    Raises:
        LineageError: the claim in force is of a later epoch, or of another node with this one; or `start` lies below
            the end of the root.
        SealedError: the partition is sealed.
    """
    _check_open(root)
    current = root.claims[-1]
    if epoch < current.epoch or (epoch == current.epoch and node != current.node):
        raise LineageError(
            f"{_name(root)} was claimed in the bucket by node {current.node} with leader epoch {current.epoch}; node "
            f"{node} with epoch {epoch} is not its leader any more"
        )
    if epoch == current.epoch:
        return Change(root=dataclasses.replace(root, version=root.version + 1))
    if start < root.end:
        raise LineageError(
            f"{_name(root)} can not be claimed from offset {start} on: the bucket holds it up to {root.end}"
        )
    claims = [each for each in root.claims if each.start < start]
    claims.append(Claim(epoch=epoch, node=node, start=start))
    return Change(root=_trimmed(dataclasses.replace(root, version=root.version + 1, claims=tuple(claims))))


def _trimmed(root: Root) -> Root:
    """Without claims that begin and end below the end of the root: they say nothing of what follows it."""
    behind = sum(later.start <= root.end for later in root.claims[1:])
    return dataclasses.replace(root, claims=root.claims[behind:])


def append(
    root: Root,
    fragment: StreamObjectPointer,
    *,
    epoch: int,
    epochs: Sequence[tuple[int, int]],
    producers: Iterable[HighestBatch] = (),
) -> Change:
    """Add a stream object behind all others.

    Args:
        root: Root as it was read.
        fragment: Pointer to the object, which begins where the root ends.
        epoch: Leader epoch of the writer, whose claim must be in force.
        epochs: (leader epoch, first offset), oldest first, as the leader's log has them: all, or as many as it takes
            to say of which epoch every offset of the fragment is.
        producers: Batches of ordered producers below the end of the fragment, as far as the writer knows of them.

    Raises:
        LineageError: the writer is not the leader any more, there would be a gap or something twice, or the bucket
            holds another history.
        SealedError: the partition is sealed.
    """
    _check_open(root)
    current = root.claims[-1]
    if epoch != current.epoch:
        raise LineageError(
            f"{_name(root)} is claimed in the bucket by node {current.node} with leader epoch {current.epoch}, not "
            f"with {epoch}: nothing of this leadership is added any more"
        )
    if fragment.base != root.end or fragment.end <= fragment.base or fragment.home:
        raise LineageError(
            f"{_name(root)} ends at offset {root.end} in the bucket: {fragment.name}, [{fragment.base}, "
            f"{fragment.end}), does not follow on it"
        )
    check_lineage(_name(root), root.epochs, epochs, root.start, root.end)
    added = cut_epochs(epochs, fragment.base, fragment.end)
    if not added or added[0][1] != fragment.base:
        raise LineageError(f"{_name(root)}: nobody says of which leader epoch offset {fragment.base} is")
    if added[-1][0] > epoch or (root.epochs and added[0][0] < root.epochs[-1][0]):
        raise LineageError(
            f"{_name(root)}: {fragment.name} has records of leader epochs {added[0][0]} to {added[-1][0]}, which can "
            f"not follow on {root.epochs[-1][0] if root.epochs else -1} and be uploaded in {epoch}"
        )
    appended = dataclasses.replace(
        root,
        version=root.version + 1,
        end=fragment.end,
        fragments=(*root.fragments, fragment),
        setsum=root.setsum + fragment.setsum,
        epochs=join_epochs(root.epochs, added),
        producers=highest_of((*root.producers, *producers)),
    )
    folded, snapshots = fold(_trimmed(appended))
    return Change(root=folded, snapshots=snapshots)


def replace(
    root: Root,
    old: Sequence[StreamObjectPointer],
    new: Sequence[StreamObjectPointer],
    *,
    collected: Setsum,
    snapshots: Mapping[str, Snapshot],
    delete_horizon: int | None = None,
    compacted_end: int | None = None,
) -> Change:
    """Name other fragments for a range: merged ones, or ones that have lost records to key compaction.

    Args:
        root: Root as it was read.
        old: Those that go, as `RootFile.fragments` gave them, without leaving one out.
        new: Those that come, oldest first, within the range of the old ones; () where nothing is left.
        collected: Sum of the records that are in `old` and not in `new`.
        snapshots: Snapshots by digest, those on the way to `old` (`RootFile.snapshots`).
        delete_horizon: Tombstones below this offset are gone now.
        compacted_end: Key compaction has looked at everything below this offset.

    Raises:
        OvertakenError: what the root names for the range are not `old` (any more).
        ManifestCorruptError: the sums differ.
    """
    name = _path(root).root
    if Setsum.total(each.setsum for each in old) != Setsum.total(each.setsum for each in new) + collected:
        raise ManifestCorruptError(name, "replacing fragments would not conserve the sum of their records")
    marked = dataclasses.replace(
        root,
        version=root.version + 1,
        delete_horizon=max(root.delete_horizon, delete_horizon or 0),
        compacted_end=max(root.compacted_end, compacted_end or 0),
    )
    if not old:
        assert not new, "what comes takes the place of something"
        return Change(root=marked)
    start, end = old[0].base, old[-1].end
    found = fragments_below(root.snapshots, snapshots, start, end)
    found += [each for each in root.fragments if each.end > start and each.base < end]
    if found != [*old]:
        raise OvertakenError(f"{name} names other fragments for offsets {start} to {end} by now")
    edges = [start, *(edge for each in new for edge in (each.base, each.end)), end]
    assert edges == sorted(edges), "what comes lies in order within what goes"
    coming, going = [*new], {each.name for each in old}

    def change(fragments: Sequence[StreamObjectPointer]) -> list[StreamObjectPointer]:
        left: list[StreamObjectPointer] = []
        for each in fragments:
            if each.name not in going:
                left.append(each)
            elif coming:  # what comes stands where the first one stood that goes
                left += coming
                coming.clear()
        return left

    changed = _rewritten(marked, Rewriter(_path(root), snapshots, start, end, change), change)
    gone = tuple(each for each in old if each not in new)
    return _collected(changed, gone, collected)


def advance_start(root: Root, start: int, *, snapshots: Mapping[str, Snapshot]) -> Change:
    """Let go of what is not wanted any more: fragments that end at or below an offset, and offsets below it.

    A start beyond the end of the root moves that, too: what stream sets hold below it does not count any more.

    Args:
        root: Root as it was read.
        start: The first offset that is wanted still; the start never goes back.
        snapshots: Snapshots by digest, all that begin below `start` (`RootFile.snapshots(root, end=start)`).
    """
    start = max(start, root.start)
    passed = sum(first <= start for _, first in root.epochs[1:])
    marked = dataclasses.replace(
        root, version=root.version + 1, start=start, end=max(root.end, start), epochs=root.epochs[passed:]
    )

    def change(fragments: Sequence[StreamObjectPointer]) -> list[StreamObjectPointer]:
        return [each for each in fragments if each.end > start]

    gone = tuple(
        each for each in (*fragments_below(root.snapshots, snapshots, 0, start), *root.fragments) if each.end <= start
    )
    changed = _rewritten(_trimmed(marked), Rewriter(_path(root), snapshots, 0, start, change), change)
    return _collected(changed, gone, Setsum.total(each.setsum for each in gone))


def _rewritten(
    root: Root, rewriter: Rewriter, change: Callable[[Sequence[StreamObjectPointer]], Sequence[StreamObjectPointer]]
) -> Change:
    rewritten = rewriter.rewrite(root.snapshots)
    folded, snapshots = fold(dataclasses.replace(root, snapshots=rewritten, fragments=tuple(change(root.fragments))))
    return Change(root=folded, snapshots=(*rewriter.drafts, *snapshots), gone_snapshots=tuple(rewriter.gone))


def _collected(change: Change, gone: tuple[StreamObjectPointer, ...], collected: Setsum) -> Change:
    root = dataclasses.replace(
        change.root, setsum=change.root.setsum - collected, collected=change.root.collected + collected
    )
    return dataclasses.replace(change, root=root, gone=gone)


def seal(root: Root) -> Change:
    """Take nothing more, for good.

    Raises:
        SealedError: that is so already.
    """
    _check_open(root)
    return Change(root=dataclasses.replace(root, version=root.version + 1, sealed=True))


def fork(root: Root, path: PartitionPath, *, epoch: int, node: str) -> Change:
    """The first root of a partition that begins with what another one has; no object is copied.

    Args:
        root: Root of the other one, as it was read. What set manifests hold behind it is not taken along.
        path: Path of the new partition.
        epoch: Leader epoch of the claimer of the new partition; not below the epochs of the records.
        node: Id of the node.

    Raises:
        LineageError: `epoch` is below that of a record.
    """
    home = _path(root).home
    if root.epochs and epoch < root.epochs[-1][0]:
        raise LineageError(
            f"a fork of {_name(root)} needs a leader epoch of {root.epochs[-1][0]} at least, not {epoch}"
        )
    forked = dataclasses.replace(
        root,
        uuid=path.uuid,
        partition=path.partition,
        version=1,
        snapshots=tuple(homed(each, home) for each in root.snapshots),
        fragments=tuple(homed(each, home) for each in root.fragments),
        claims=(Claim(epoch=epoch, node=node, start=root.end),),
        sealed=False,
        commits=(),
    )
    return Change(root=forked)
