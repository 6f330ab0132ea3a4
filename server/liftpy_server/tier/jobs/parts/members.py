"""What set objects hold of a partition: merged with others, or moved into an object of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.layout import PartitionPath, set_object_key
from liftpy_bucket.manifest.json import INT64_MAX
from liftpy_bucket.manifest.lineage import cut_epochs
from liftpy_bucket.manifest.root.changes import Change, append
from liftpy_bucket.objects.merging import Source, member_source
from liftpy_bucket.objects.read import ObjectReader
from liftpy_server.tier.jobs.parts.memory_budget import WORK_BYTES
from liftpy_server.tier.jobs.parts.roots import check_in_force, commit, newest, resolved
from liftpy_server.tier.jobs.parts.stream_objects import Stored, drafted, put_draft

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.reading.resolving import ResolvedMember
    from liftpy_server.tier.jobs.parts.context import Context

__all__ = ["move_members", "size_of", "sources_of"]


def size_of(member: ResolvedMember) -> int:
    """How many bytes of its object are the member's."""
    return member.member.extent.size


def sources_of(context: Context, members: Sequence[ResolvedMember]) -> Iterator[Source]:
    """The ranges of members that count, in their order; nothing is fetched before it is wanted.

    Raises:
        ObjectCorruptError: an object is not what the set manifest says.
    """
    for each in members:
        key = set_object_key(each.node, each.pointer.name)
        reader = ObjectReader(context.store, key, each.member.extent)
        yield member_source(reader, each.member, each.start, each.end)


def move_members(context: Context, path: PartitionPath, epoch: int, until: int = INT64_MAX) -> tuple[int, bool]:
    """What sets hold of a partition becomes an object of its own. Says how many did, and whether some are left.

    Args:
        context: What the jobs of the worker share.
        path: Path of the partition.
        epoch: Leader epoch of its leader.
        until: What lies from this offset on stays where it is.

    Raises:
        LineageError: this leader has no claim in force.
        OvertakenError: others write this root; try again.
    """
    with context.roots.alone(path, context.progress):
        root = newest(context, path).root
        check_in_force(root, epoch)
        if root.sealed:
            return 0, False
        held = resolved(context, root)
        wanted = [each._replace(end=min(each.end, until)) for each in held.members if each.start < until]
        members = _some(wanted, context.object_bytes)
        if not members:
            return 0, False
        with context.memory.hold(sum(map(size_of, members)) + WORK_BYTES, context.progress):
            stored = _stored(context, root, members, epoch)
        epochs = cut_epochs(held.epochs, root.end, members[-1].end)

        def change_of(root: Root) -> Change:
            check_in_force(root, epoch)
            return append(root, stored.pointer, epoch=epoch, epochs=epochs)

        commit(context, path, change_of, stored.created)
    return len(members), members[-1].end < held.end


def _stored(context: Context, root: Root, members: Sequence[ResolvedMember], epoch: int) -> Stored:
    def store(*, keeps_replies: bool) -> Stored:
        draft = drafted(
            *(context, PartitionPath(root.uuid, root.partition), lambda: sources_of(context, members)),
            base=root.end,
            end=members[-1].end,
            epoch=epoch,
            keeps_replies=keeps_replies,
            record_hash=root.record_hash,
            expected_bytes=sum(map(size_of, members)),
        )
        with draft as made:
            return put_draft(context, root, made)

    try:
        return store(keeps_replies=False)
    except ValueError:  # there are replies
        return store(keeps_replies=True)


def _some(members: Sequence[ResolvedMember], bytes_max: int) -> list[ResolvedMember]:
    """The first members, as many as make an object of full size."""
    some: list[ResolvedMember] = []
    size = 0
    for member in members:
        size += size_of(member)
        if some and size > bytes_max:
            break
        some.append(member)
    return some
