"""The list of a node's stream-set objects: a page by itself, for those who write and collect them. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.layout import SLOTS, set_root_key
from liftpy_bucket.manifest.json import DIGEST, NODE, Fields, encode_named_by_digest
from liftpy_bucket.manifest.stream_sets.compressed import compressed, decompressed_page
from liftpy_bucket.manifest.stream_sets.format import OBJECT_NAME, SetManifest, sequence_of
from liftpy_bucket.objects.pointers import SetObject
from liftpy_bucket.objects.setsum import Setsum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.manifest.json import Row
    from liftpy_bucket.manifest.stream_sets.format import SetRoot

__all__ = ["decode_listing", "encode_listing", "whole"]

_FIELDS: Final = frozenset({"node", "objects"})
_VALUES: Final = 9


def encode_listing(key: str, node: str, objects: Sequence[SetObject]) -> bytes:
    """The bytes of a list.

    Args:
        key: Key of the pack that it is for.
        node: Id of the node.
        objects: Objects of the node, oldest first.

    Raises:
        TierError: they are more than a manifest may have.
    """
    plain = {"node": node, "objects": [_plain_of(each) for each in objects]}
    return compressed(encode_named_by_digest(key, plain))


def _plain_of(each: SetObject) -> list[Any]:
    sums = each.setsum.hex()
    return [*(each.name, each.size, each.footer, each.digest, each.members, each.records, each.first, each.last, sums)]


def decode_listing(key: str, node: str, digest: str, body: bytes) -> tuple[SetObject, ...]:
    """Read a list, and see that it makes sense.

    Args:
        key: Key of the pack.
        node: Id of the node that it must be of.
        digest: Digest of the list, as the root of the set manifest says.
        body: Bytes of the list.

    Raises:
        ManifestCorruptError: it does not.
        BucketVersionError: it is newer than this program.
    """
    fields = Fields.of_body(key, decompressed_page(key, digest, body), _FIELDS, is_named_by_digest=True)
    if fields.text("node", NODE) != node:
        raise ManifestCorruptError(key, "the list of objects in it is another node's")
    return tuple(_object_of(row) for row in fields.rows("objects", _VALUES))


def _object_of(row: Row) -> SetObject:
    size = row.number(1)
    first = row.number(6, most=SLOTS - 1)
    return SetObject(
        name=row.text(0, OBJECT_NAME),
        size=size,
        footer=row.number(2, most=size),
        digest=row.text(3, DIGEST),
        members=row.number(4, 1),
        records=row.number(5),
        first=first,
        last=row.number(7, first, SLOTS - 1),
        setsum=row.setsum(8),
    )


def whole(root: SetRoot, objects: tuple[SetObject, ...]) -> SetManifest:
    """A manifest of its root and its list.

    Raises:
        ManifestCorruptError: they are not of one manifest, or its sum does not balance.
    """
    key = set_root_key(root.node)
    sequences = [sequence_of(each.name) for each in objects]
    if len({*sequences}) < len(sequences) or any(sequence >= root.sequence for sequence in sequences):
        raise ManifestCorruptError(key, "its list of objects has a sequence twice, or one that is not given out yet")
    if sum(each.members for each in objects) != sum(page.members for page in root.pages):
        raise ManifestCorruptError(key, "its pages do not have as many members as the objects that it lists")
    total = Setsum.total(each.setsum for each in objects)
    if total != root.setsum:
        raise ManifestCorruptError(key, f"its sum is {root.setsum.hex()}, but that of its objects is {total.hex()}")
    fields = {each.name: getattr(root, each.name) for each in dataclasses.fields(root)}
    return SetManifest(**fields, objects=objects)
