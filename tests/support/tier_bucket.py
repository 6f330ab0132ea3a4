"""A bucket in memory with what a cluster has left: roots, sets and a catalog, without the objects they name."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.manifest.root.changes import append, claim, create
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.changes import add
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.manifest.stream_sets.format import SetManifest
from liftpy_bucket.objects.pointers import Extent, SetMember, SetObjectPointer, StreamObjectPointer
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.tier.jobs.parts.context import Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.manifest.root.format import Root

CLUSTER = "c" * 32
NODE = "n1"


def config(name: str, **settings: Any) -> dict[str, Any]:
    """The settings of a stream, as a catalog has them."""
    subject = "" if name.startswith("__") else f"{name}.>"
    return StreamConfig(**{"name": name, "subject": subject} | settings).to_plain()


class Bucket:
    """See the module. Leaders of partitions are on node `n1`; a record is stored every ns."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        ids = count(1)
        self.new_id = lambda: f"id{next(ids)}"
        self.context = Context(
            self.store, new_id=self.new_id, now_ns=lambda: 7, memory_bytes_max=2**20, object_bytes=2**20
        )

    def file(self, uuid: str, partition: int = 0) -> RootFile:
        return RootFile(self.store, PartitionPath(uuid, partition), new_id=self.new_id)

    def root(self, uuid: str, partition: int = 0) -> Root:
        loaded = self.file(uuid, partition).load()
        assert loaded is not None
        return loaded.root

    def claim(self, uuid: str, partition: int = 0, *, epoch: int, start: int, node: str = NODE) -> None:
        """A leader begins to tier a partition, at `start`."""
        file = self.file(uuid, partition)
        loaded = file.load()
        if loaded is None:
            file.commit(None, create(file.path, epoch=epoch, node=node, start=start))
        else:
            file.commit(loaded, claim(loaded.root, epoch=epoch, node=node, start=start))

    def fragment(self, uuid: str, end: int, epochs: Sequence[tuple[int, int]], partition: int = 0) -> None:
        """A leader uploads everything up to `end`."""
        file = self.file(uuid, partition)
        loaded = file.load()
        assert loaded is not None
        root = loaded.root
        pointer = StreamObjectPointer(
            name=f"{root.end:020d}-{root.claims[-1].epoch}-{self.new_id()}.parquet",
            base=root.end,
            end=end,
            records=end - root.end,
            size=10 * (end - root.end),
            footer=1,
            digest="ab" * 32,
            first_timestamp=root.end,
            last_timestamp=end - 1,
            setsum=Setsum.of_digests(bytes(32)),
        )
        file.commit(loaded, append(root, pointer, epoch=root.claims[-1].epoch, epochs=epochs))

    def sets(self, members: Sequence[tuple[str, int, int, int, int]], node: str = NODE) -> None:
        """A node uploads ranges of partitions together: (uuid, partition, tier epoch, base, end) of each."""
        file = SetManifestFile(self.store, node, new_id=self.new_id)
        loaded = file.load()
        before = SetManifest(node=node, incarnation=1, version=0, sequence=1) if loaded is None else loaded.manifest
        made = tuple(
            SetMember(
                uuid=uuid,
                partition=partition,
                tier_epoch=epoch,
                base=base,
                end=end,
                records=end - base,
                extent=Extent(10, 5, "ab" * 32, start=10 * number),
                epochs=((epoch, base),),
                first_timestamp=base,
                last_timestamp=end - 1,
                setsum=Setsum(),
            )
            for number, (uuid, partition, epoch, base, end) in enumerate(sorted(members))
        )
        name = f"{before.sequence:020d}-{self.new_id()}.parquet"
        pointer = SetObjectPointer(name=name, size=100, footer=50, digest="ab" * 32, members=made)
        file.commit(loaded, add(before, pointer))

    def catalog(self) -> Catalog:
        loaded = CatalogFile(self.store, new_id=self.new_id).load()
        assert loaded is not None
        return loaded.catalog

    def put_catalog(self, cluster_id: str = CLUSTER, **streams: CatalogStream) -> None:
        """Write the catalog of a cluster; streams by uuid."""
        file = CatalogFile(self.store, new_id=self.new_id)
        loaded = file.load()
        version = 1 if loaded is None else loaded.catalog.version + 1
        file.commit(loaded, Catalog(cluster_id=cluster_id, version=version, streams=streams))


def stream(name: str, partitions: int = 1, *, deleted_ns: int | None = None, **settings: Any) -> CatalogStream:
    """What a catalog says of a stream."""
    plain = config(name, partitions=partitions, **settings)
    return CatalogStream(name=name, config=plain, partitions=partitions, created_ns=17, deleted_ns=deleted_ns)
