"""What set objects hold of a partition, as something that is merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.layout import set_object_key
from liftpy_bucket.objects.merging import Source, member_source
from liftpy_bucket.objects.read import ObjectReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy_bucket.reading.resolving import ResolvedMember
    from liftpy_server.tier.jobs.parts.context import Context

__all__ = ["size_of", "sources_of"]


def size_of(member: ResolvedMember) -> int:
    """About how many bytes of its object are the member's."""
    records = sum(each.records for each in member.pointer.members)
    return member.pointer.size * member.member.records // max(1, records)


def sources_of(context: Context, members: Sequence[ResolvedMember]) -> Iterator[Source]:
    """The ranges of members that count, in their order; nothing is fetched before it is wanted.

    Raises:
        ObjectCorruptError: an object is not what the set manifest says.
    """
    for each in members:
        key = set_object_key(each.node, each.pointer.name)
        reader = ObjectReader(context.store, key, each.pointer.size, each.pointer.footer)
        yield member_source(reader, each.member, each.start, each.end)
