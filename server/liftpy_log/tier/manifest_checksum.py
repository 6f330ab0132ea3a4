"""The checksum of a manifest: its last field, of every byte before it.

    {"format":2,...,"checksum":"<64 hexadecimal digits>"}
    `-- SHA-256 of these --'

It is of bytes, not of values, so that it can be checked without reading the JSON, in any language. From format 2 on
every manifest ends with it, but a snapshot, whose name is the SHA-256 of its bytes.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from liftpy_log.tier.errors import ManifestCorruptError

__all__ = ["CHECKSUM", "PUT_BACK", "is_checked", "with_checksum"]

CHECKSUM: Final = "checksum"
"""The name of the field."""

PUT_BACK: Final = "Put back the version of it that was there before it was changed"
"""What to do about a manifest that is not as it was written; nothing else says what it said."""

_DIGITS: Final = 64
_END: Final = re.compile(rb',"checksum":"([0-9a-f]{%d})"\}' % _DIGITS)
_END_BYTES: Final = len(b',"checksum":""}') + _DIGITS


def with_checksum(body: bytes) -> bytes:
    """A manifest with its checksum.

    Args:
        body: a JSON object with a field at least, and no space behind it.
    """
    assert body.endswith(b"}"), "a manifest is a JSON object"
    return b'%b,"checksum":"%b"}' % (body[:-1], sha256(body[:-1]).hexdigest().encode())


def is_checked(key: str, body: bytes) -> bool:
    """Whether a manifest ends with a checksum, which then is right.

    Args:
        key: of the manifest.
        body: its bytes.

    Raises:
        ManifestCorruptError: it ends with a wrong one.
    """
    end = _END.fullmatch(body, max(0, len(body) - _END_BYTES))
    if end is None:
        return False
    if sha256(memoryview(body)[: end.start()]).hexdigest().encode() != end[1]:
        raise ManifestCorruptError(
            key, f"its checksum is not that of its bytes, so these are not what was written. {PUT_BACK}"
        )
    return True
