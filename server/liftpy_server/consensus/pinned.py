"""Which pysyncobj this package was written against, and the check that it is that one.

The hardening overrides private methods by name. With any other version, or a patched copy, an override may silently
stop being called, so a node refuses to start instead.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pysyncobj
from pysyncobj.version import VERSION

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PinnedVersionError", "check_pinned"]

_VERSION: Final = "0.3.17"
_SHA256: Final = {
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
    "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
}


class PinnedVersionError(LiftError):
    """The installed pysyncobj is not the one that the hardening was written for."""


def check_pinned(folder: Path | None = None, *, version: str = VERSION, wanted: Mapping[str, str] = _SHA256) -> None:
    """Check version and sources of the consensus library.

    Args:
        folder: Where its sources are; the installed ones when None.
        version: What it says it is.
        wanted: SHA-256 in hex, by file name.

    Raises:
        PinnedVersionError: it is another version, or a file differs.
    """
    if version != _VERSION:
        raise PinnedVersionError(f"pysyncobj {_VERSION} is needed, and {version} is installed")
    folder = folder or Path(pysyncobj.__file__).parent
    for name, expected in wanted.items():
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise PinnedVersionError(f"{folder / name} can not be read: {error}") from error
        if found != expected:
            raise PinnedVersionError(f"{folder / name} is not that of pysyncobj {_VERSION}")
