"""JSON of set manifests, compressed as zlib does (RFC 1950): a reader takes no more than a manifest may have."""

from __future__ import annotations

import zlib
from hashlib import sha256

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.manifest.json import MANIFEST_BYTES_MAX

__all__ = ["compressed", "decompressed", "decompressed_page"]


def compressed(plain: bytes) -> bytes:
    """The bytes to be stored."""
    return zlib.compress(plain)


def decompressed(key: str, body: bytes, what: str = "it") -> bytes:
    """What was compressed.

    Args:
        key: Key of the object.
        body: Bytes that are stored.
        what: What of the object they are, for messages.

    Raises:
        ManifestCorruptError: it can not be decompressed, or is longer than a manifest may be.
    """
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(body, MANIFEST_BYTES_MAX)
    except zlib.error as error:
        raise ManifestCorruptError(key, f"{what} cannot be decompressed ({error})") from error
    if not unpacking.eof or unpacking.unused_data:
        raise ManifestCorruptError(key, f"{what} is longer than a manifest may be, or not whole")
    return plain


def decompressed_page(key: str, digest: str, body: bytes) -> bytes:
    """What was compressed into a page that a set manifest names by its digest.

    Raises:
        ManifestCorruptError: it is another page, or as `decompressed`.
    """
    if (found := sha256(body).hexdigest()) != digest:
        raise ManifestCorruptError(key, f"the SHA-256 of a page in it is {found}; the set manifest says {digest}")
    return decompressed(key, body, "a page in it")
