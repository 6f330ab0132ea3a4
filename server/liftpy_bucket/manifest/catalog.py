"""What streams there are: enough to have them again from the bucket alone.

One object for the cluster, swapped over the one that was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import ObjectMissingError
from liftpy_bucket.layout import CATALOG
from liftpy_bucket.manifest.json import ID, INT64_MIN, NODE, UUID, Fields, encode
from liftpy_bucket.store.swapping import swap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_bucket.store.object_store import ObjectStore, Stored

__all__ = ["Catalog", "CatalogFile", "CatalogStream", "LoadedCatalog", "decode_catalog", "encode_catalog"]

_FIELDS: Final = frozenset({"cluster_id", "version", "generation", "streams"})
_GENERATION_MAX: Final = 2**31 - 1
_STREAM: Final = frozenset({"uuid", "name", "config", "partitions", "created_ns", "deleted_ns"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogStream:
    """A stream, as the catalog has it.

    Attributes:
        name: Name under which users know the stream.
        config: Settings of the stream, as plain JSON.
        partitions: How many it has.
        created_ns: When it was created, ns since the epoch.
        deleted_ns: When it was deleted; None while it is there.
    """

    name: str
    config: Mapping[str, Any]
    partitions: int
    created_ns: int
    deleted_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Which streams there are in a bucket.

    Attributes:
        cluster_id: Cluster that the bucket belongs to.
        version: Grows by one with every commit.
        generation: How many clusters owned it before; a restore takes it over with the next one.
        streams: Streams by uuid, 32 hexadecimal digits.
    """

    cluster_id: str
    version: int
    generation: int = 0
    streams: Mapping[str, CatalogStream] = field(default_factory=dict)


class LoadedCatalog(NamedTuple):
    """A catalog as it stands in the store.

    Attributes:
        catalog: The catalog.
        etag: ETag that names this version of it.
    """

    catalog: Catalog
    etag: str


def encode_catalog(catalog: Catalog) -> bytes:
    """The bytes of a catalog.

    Raises:
        TierError: they are more than a manifest may have.
    """
    streams = [
        {
            "uuid": uuid,
            "name": stream.name,
            "config": stream.config,
            "partitions": stream.partitions,
            "created_ns": stream.created_ns,
            "deleted_ns": stream.deleted_ns,
        }
        for uuid, stream in sorted(catalog.streams.items())
    ]
    plain = {
        "cluster_id": catalog.cluster_id,
        "version": catalog.version,
        "generation": catalog.generation,
        "streams": streams,
    }
    return encode(CATALOG, plain)


def decode_catalog(body: bytes) -> Catalog:
    """Read a catalog.

    Raises:
        ManifestCorruptError: it makes no sense.
        BucketVersionError: it is newer than this program.
    """
    fields = Fields.of_body(CATALOG, body, _FIELDS)
    streams: dict[str, CatalogStream] = {}
    for each in fields.objects("streams", _STREAM):
        uuid = each.text("uuid", UUID)
        if uuid in streams:
            raise each.bad("uuid", "is that of another stream, too")
        streams[uuid] = CatalogStream(
            name=each.text("name", NODE),
            config=each.mapping("config"),
            partitions=each.number("partitions", 1),
            created_ns=each.number("created_ns", INT64_MIN),
            deleted_ns=None if each.is_null("deleted_ns") else each.number("deleted_ns", INT64_MIN),
        )
    return Catalog(
        cluster_id=fields.text("cluster_id", ID),
        version=fields.number("version", 1),
        generation=fields.number("generation", most=_GENERATION_MAX),
        streams=streams,
    )


class CatalogFile:
    """The catalog in the store. May be used from several threads.

    Args:
        store: Object store.
        new_id: Gives ids of attempts: each call another one, never given before by anybody.
    """

    def __init__(self, store: ObjectStore, *, new_id: Callable[[], str]) -> None:
        self._store = store
        self._new_id = new_id

    def load(self) -> LoadedCatalog | None:
        """The catalog, or None where there is none.

        Raises:
            ManifestCorruptError: it makes no sense.
            BucketVersionError: it is newer than this program.
        """
        try:
            stored = self._store.get(CATALOG)
        except ObjectMissingError:
            return None
        return LoadedCatalog(decode_catalog(stored.body), stored.head.etag)

    def commit(self, loaded: LoadedCatalog | None, catalog: Catalog) -> LoadedCatalog:
        """Write a catalog over the one that was read.

        Args:
            loaded: What was read before; None where there was none.
            catalog: The next version.

        Raises:
            OvertakenError: another writer was first, or wrote at the same time: look again.
            OutcomeUnknownError: it can not be told; `load` again before anything else.
        """
        assert catalog.version == (loaded.catalog.version if loaded else 0) + 1, "the change is of another catalog"
        body = encode_catalog(catalog)
        decode_catalog(body)  # whatever is refused when it is read must not be written
        nonce = self._new_id()

        def is_ours(stored: Stored) -> bool:
            return stored.head.nonce == nonce

        etag = loaded.etag if loaded else None
        return LoadedCatalog(catalog, swap(self._store, CATALOG, body, etag=etag, nonce=nonce, is_ours=is_ours)[0])
