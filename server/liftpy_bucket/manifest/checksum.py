"""The checksum of a manifest: its last field, of every byte before it. See `liftpy_log.storage.checked_json`.

It can be checked without reading the JSON, in any language. From format 2 on every manifest ends with it, but a
snapshot, whose name is the SHA-256 of its bytes.
"""

from __future__ import annotations

from typing import Final

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_log.storage.checked_json import CHECKSUM, find_checksum, with_checksum

__all__ = ["CHECKSUM", "PUT_BACK", "is_checked", "with_checksum"]

PUT_BACK: Final = "Put back the version of it that was there before it was changed"
"""What to do about a manifest that is not as it was written; nothing else says what it said."""


def is_checked(key: str, body: bytes) -> bool:
    """Whether a manifest ends with a checksum, which then is right.

    Args:
        key: of the manifest.
        body: its bytes.

    Raises:
        ManifestCorruptError: it ends with a wrong one.
    """
    found = find_checksum(body)
    if found is False:
        raise ManifestCorruptError(
            key, f"its checksum is not that of its bytes, so these are not what was written. {PUT_BACK}"
        )
    return found is True
