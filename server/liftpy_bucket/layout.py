"""Where things stand in the bucket; all keys are relative to the prefix of the store.

catalog.json                                               what streams there are
streams/<uuid>/<partition>/ROOT                            the root of a partition
streams/<uuid>/<partition>/snapshots/<sha256>.json         immutable lists of older pointers
streams/<uuid>/<partition>/fragments/<base:020d>-<epoch>-<nonce>.parquet
streams/<uuid>/<partition>/pins/<name>.json                cursors and pins
streams/<uuid>/<partition>/GARBAGE                         the collection in progress
streams/<uuid>/<partition>/BOUNDARY                        below it everything may have been collected
sets/<node>/ROOT                                           the set manifest of a node
sets/<node>/BOUNDARY                                       below it its stream-set objects may have been collected
sets/<node>/objects/<sequence:020d>-<nonce>.parquet        its stream-set objects
sets/<node>/pages/<version:020d>-<nonce>                   pages of its set manifest, one after the other
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

__all__ = [
    "CATALOG",
    "NOT_HISTORY",
    "SLOTS",
    "PartitionPath",
    "set_directory",
    "set_object_key",
    "set_pack_key",
    "set_root_key",
    "slot_of",
]

CATALOG: Final = "catalog.json"
NOT_HISTORY: Final = ("logs/", "spark/")
"""Where object logs and the sink of Spark keep what is theirs; they collect it themselves."""

SLOTS: Final = 2**32
"""How many slots there are, see `slot_of`."""


class PartitionPath(NamedTuple):
    """The directory of one partition.

    Attributes:
        uuid: UUID of the stream, as 32 hexadecimal digits.
        partition: Number of the partition.
    """

    uuid: str
    partition: int

    @property
    def directory(self) -> str:
        """With a slash behind it."""
        return f"streams/{self.uuid}/{self.partition}/"

    @property
    def home(self) -> str:
        """How pointers of forks name it: `<uuid>/<partition>`."""
        return f"{self.uuid}/{self.partition}"

    def at(self, home: str) -> PartitionPath:
        """Where a pointer's object lies: here, unless its `home` says otherwise."""
        if not home:
            return self
        uuid, _, partition = home.partition("/")
        return PartitionPath(uuid, int(partition))

    @property
    def root(self) -> str:
        """Key of the root."""
        return f"{self.directory}ROOT"

    @property
    def garbage(self) -> str:
        """Key of the collection in progress."""
        return f"{self.directory}GARBAGE"

    @property
    def boundary(self) -> str:
        """Key of the mark below which everything may have been collected."""
        return f"{self.directory}BOUNDARY"

    def snapshot(self, digest: str) -> str:
        """Key of the snapshot whose bytes have this SHA-256."""
        return f"{self.directory}snapshots/{digest}.json"

    def fragment(self, name: str) -> str:
        """Key of a fragment, by the name in its pointer."""
        return f"{self.directory}fragments/{name}"

    def pin(self, name: str) -> str:
        """Key of a cursor or pin."""
        return f"{self.directory}pins/{name}.json"


def slot_of(uuid: str, partition: int) -> int:
    """Where a partition stands among all others in a set manifest: CRC-32 of `<uuid>/<partition>`.

    So partitions are spread evenly, also those of one stream.
    """
    return crc32(f"{uuid}/{partition}".encode())


def set_directory(node_id: str) -> str:
    """Where the set manifest of a node is, and what belongs to it, with a slash behind it."""
    return f"sets/{node_id}/"


def set_root_key(node_id: str) -> str:
    """Key of the set manifest of a node."""
    return f"{set_directory(node_id)}ROOT"


def set_object_key(node_id: str, name: str) -> str:
    """Key of a stream-set object, by the name in the manifest."""
    return f"sets/{node_id}/objects/{name}"


def set_pack_key(node_id: str, name: str) -> str:
    """Key of pages of a set manifest, by the name in it."""
    return f"sets/{node_id}/pages/{name}"
