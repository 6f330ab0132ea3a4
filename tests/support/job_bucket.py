"""A bucket on an S3 server with the history of a stream, as nodes leave it: for jobs that need no node."""

from __future__ import annotations

import io
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from liftpy_bucket.layout import PartitionPath, set_object_key, slot_of
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets import changes as set_changes
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.write_stream_set import SetWriter
from liftpy_bucket.reading.version import open_version
from liftpy_envelope.stream_config import StreamConfig
from support.tier_rows import records_of, rows_from, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.manifest.root.format import Root
    from support.s3_servers import S3Server
    from support.tier_rows import Record

__all__ = ["STREAM", "JobBucket"]

STREAM = "orders"
NODE = "n1"
_IDS = count(1)


def new_id() -> str:
    return f"{next(_IDS):032x}"


class JobBucket:
    """See the module. The stream is led by node `n1` in epoch 0.

    Args:
        server: where; each bucket has a prefix of its own.
        partitions: how many the stream has.

    Attributes:
        url: of the bucket.
        settings: of it.
        store: it.
        uuid: of the stream.
        paths: of its partitions.
    """

    def __init__(self, server: S3Server, partitions: int = 1) -> None:
        prefix = f"jobs/{uuid4().hex}"
        self.url = server.url(prefix)
        self.settings = server.settings(prefix)
        self.store = server.store(prefix)
        self.uuid = uuid4().hex
        self.paths = [PartitionPath(self.uuid, number) for number in range(partitions)]
        stream = CatalogStream(
            name=STREAM,
            config=StreamConfig(name=STREAM, subject=f"{STREAM}.>", partitions=partitions).to_plain(),
            partitions=partitions,
            created_ns=1,
        )
        catalog = Catalog(cluster_id="c" * 32, version=1, streams={self.uuid: stream})
        CatalogFile(self.store, new_id=new_id).commit(None, catalog)
        for path in self.paths:
            change = root_changes.create(path, epoch=0, node=NODE, start=0, record_hash=RecordHash.XXH3)
            self._file(path).commit(None, change)

    def _file(self, path: PartitionPath) -> RootFile:
        return RootFile(self.store, path, new_id=new_id)

    def root(self, partition: int = 0) -> Root:
        loaded = self._file(self.paths[partition]).load()
        assert loaded is not None
        return loaded.root

    def append(self, records: Sequence[Record], partition: int = 0, **options: Any) -> str:
        """Append an object; gives its key."""
        path, file = self.paths[partition], self._file(self.paths[partition])
        loaded = file.load()
        assert loaded is not None
        base, end, nonce = loaded.root.end, records[-1].offset + 1, new_id()
        rows = [rows_from(records)]
        options.setdefault("record_hash", loaded.root.record_hash)
        body, result = written(rows, uuid=path.uuid, partition=partition, nonce=nonce, **options)
        name = f"{base:020d}-0-{nonce}.parquet"
        self.store.create(path.fragment(name), body, nonce)
        pointer = result.pointer(name, base=base, end=end)
        file.commit(loaded, root_changes.append(loaded.root, pointer, epoch=0, epochs=((0, base),)))
        return path.fragment(name)

    def share(self, parts: dict[int, Sequence[Record]]) -> str:
        """Put what follows in partitions into an object that they share; gives its key."""
        sink, nonce = io.BytesIO(), new_id()
        writer = SetWriter(sink, node=NODE, nonce=nonce)
        for partition, records in sorted(parts.items(), key=lambda part: slot_of(self.uuid, part[0])):
            version = open_version(self.store, self.paths[partition])
            assert version is not None
            range_ = (0, version.end, records[-1].offset + 1)
            writer.begin(self.uuid, partition, *range_, record_hash=version.root.record_hash)
            writer.write(rows_from(records))
        written = writer.finish()
        file = SetManifestFile(self.store, NODE, new_id=new_id)
        loaded = file.load()
        manifest = loaded.manifest if loaded else set_changes.empty(NODE, 1)
        name = f"{manifest.sequence:020d}-{nonce}.parquet"
        self.store.create(set_object_key(NODE, name), sink.getvalue(), nonce)
        file.commit(loaded, set_changes.add(manifest, written.pointer(name)))
        return set_object_key(NODE, name)

    def records(self, partition: int = 0) -> list[Record]:
        """All that the bucket has of a partition."""
        version = open_version(self.store, self.paths[partition])
        assert version is not None
        return [record for rows in version.read() for record in records_of(rows)]

    def damage(self, key: str, at: int) -> None:
        """Flip bits of an object."""
        body = bytearray(self.store.get(key).body)
        body[at] ^= 0x10
        self.rewrite(key, bytes(body))

    def rewrite(self, key: str, body: bytes) -> None:
        """Put other bytes where an object is."""
        self.store.delete([key])
        self.store.create(key, body, new_id())
