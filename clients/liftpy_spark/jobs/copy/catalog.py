"""Which streams are copied, and what the catalog of the destination then says. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.manifest.catalog import Catalog
from liftpy_spark.jobs.copy.roots import CopyRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_bucket.manifest.catalog import CatalogStream

__all__ = ["Choice", "choose", "entered", "is_internal"]

_INTERNAL_PREFIX: Final = "__"
_NAMES_SHOWN_MAX: Final = 5


class Choice(NamedTuple):
    """What is to be done with streams, by uuid.

    Attributes:
        copied: Those that are to be at the destination.
        kept: Those that another cluster has taken over there already; they are left as they are.
        notes: What one should know of it, for people.
    """

    copied: Mapping[str, CatalogStream]
    kept: Mapping[str, CatalogStream]
    notes: tuple[str, ...]


def is_internal(stream: CatalogStream) -> bool:
    """Whether it is liftpy's own."""
    return stream.name.startswith(_INTERNAL_PREFIX)


def choose(source: Catalog, target: Catalog | None, names: Sequence[str]) -> Choice:
    """Which streams are copied. Those of liftpy's own, as what groups have committed, go with any other.

    Args:
        source: The catalog of the source.
        target: Pointer in the destination; None where there is none.
        names: Names of streams, or their uuids; () for all.

    Raises:
        CopyRefusedError: there is no such stream, or the destination has another one of its name, or has deleted it.
    """
    live = {uuid: stream for uuid, stream in source.streams.items() if stream.deleted_ns is None}
    wanted = {uuid: each for uuid, each in live.items() if not names or is_internal(each)} | _named(live, names)
    there = {} if target is None else target.streams
    for uuid, stream in wanted.items():
        found = there.get(uuid)
        if found is not None and found.deleted_ns is not None:
            raise CopyRefusedError(f"stream {stream.name} ({uuid}) was deleted at the destination: it is not copied")
    has_own = any(
        uuid not in live and each.deleted_ns is None and not is_internal(each) for uuid, each in there.items()
    )
    notes = []
    for uuid, stream in [*wanted.items()]:
        other = _other_of_name(there, uuid, stream.name)
        if other is not None and not is_internal(stream):
            raise CopyRefusedError(
                f"the destination has another stream {stream.name}, with uuid {other}, so {uuid} is not copied there"
            )
        if is_internal(stream) and has_own and uuid not in there:
            del wanted[uuid]
            notes.append(
                f"{stream.name} is not copied: the cluster at the destination has streams, and one, of its own"
            )
    kept = {}
    if target is not None and target.cluster_id != source.cluster_id:
        kept = {uuid: stream for uuid, stream in wanted.items() if uuid in there}
        notes += [
            f"{stream.name} is left as it is: cluster {target.cluster_id} has it already" for stream in kept.values()
        ]
    return Choice({uuid: each for uuid, each in wanted.items() if uuid not in kept}, kept, tuple(notes))


def _named(live: Mapping[str, CatalogStream], names: Sequence[str]) -> dict[str, CatalogStream]:
    found = {}
    by_name = {stream.name: uuid for uuid, stream in live.items()}
    for name in names:
        uuid = name if name in live else by_name.get(name)
        if uuid is None:
            shown = sorted(each for each in by_name if not each.startswith(_INTERNAL_PREFIX))
            more = ", ..." if len(shown) > _NAMES_SHOWN_MAX else ""
            has = f"it has {', '.join(shown[:_NAMES_SHOWN_MAX])}{more}" if shown else "it has none"
            raise CopyRefusedError(f"the source has no stream {name!r:.100}: {has}")
        found[uuid] = live[uuid]
    return found


def _other_of_name(there: Mapping[str, CatalogStream], uuid: str, name: str) -> str | None:
    for other, stream in there.items():
        if other != uuid and stream.name == name and stream.deleted_ns is None:
            return other
    return None


def entered(target: Catalog | None, source: Catalog, copied: Mapping[str, CatalogStream]) -> Catalog | None:
    """The next catalog of the destination, with what was copied; None when nothing changes.

    Where there is none it is that of the source's cluster, from which another one takes it over by a restore.

    Args:
        target: Target as it was read; None where there was none.
        source: Where the histories are.
        copied: Streams that are at the destination now, by uuid.
    """
    if target is None:
        return Catalog(cluster_id=source.cluster_id, version=1, streams=dict(copied))
    streams = {**target.streams, **copied} if target.cluster_id == source.cluster_id else {**copied, **target.streams}
    return None if streams == target.streams else replace(target, version=target.version + 1, streams=streams)
