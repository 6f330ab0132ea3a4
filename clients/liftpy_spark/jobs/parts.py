"""Pieces of a partition that go to a task, and how the task reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.reading.version import TierVersion
from liftpy_spark.jobs.access import store_of

if TYPE_CHECKING:
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.reading.version import Piece
    from liftpy_bucket.store.s3_settings import S3Settings

__all__ = ["Part", "bare_root", "version_of"]


class Part(NamedTuple):
    """Pieces of one partition.

    Attributes:
        root: Root of the partition, without what it names, as `bare_root` makes it.
        pieces: Pieces of the partition, in order.
    """

    root: Root
    pieces: tuple[Piece, ...]


def bare_root(version: TierVersion) -> Root:
    """The root of a version without what it names, which may be much, and with the epochs of all of the version."""
    return replace(version.root, epochs=version.epochs, snapshots=(), fragments=())


def version_of(settings: S3Settings, part: Part) -> TierVersion:
    """What reads the pieces of a part, and only those."""
    path = PartitionPath(part.root.uuid, part.root.partition)
    return TierVersion(store_of(settings), path, part.root, None)
