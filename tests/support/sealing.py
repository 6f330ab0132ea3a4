"""Publisher envelopes around any body, with a right checksum or without one, packed from the byte diagram."""

import google_crc32c

_COOKIE = b"\xc1LPY"


def sealed(kind, body):
    """An envelope with a right checksum."""
    fixed = bytes((1, 1, kind, 12))
    return _COOKIE + fixed + google_crc32c.value(fixed + body).to_bytes(4, "little") + body


def unsealed(kind, body):
    """An envelope without a checksum."""
    return _COOKIE + bytes((1, 0, kind, 8)) + body
