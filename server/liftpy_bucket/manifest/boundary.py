"""The mark that keeps a writer from naming what a collector may have deleted.

An object is created first and named by a manifest later; a collector that finds it in between, too old to be somebody's
work in progress, deletes it. So that no writer, however long it was stalled, names it afterwards:

- BOUNDARY holds a version of the manifest and only grows. Before anything is deleted, a collector that worked from
  version v of the manifest moves it to v + 1, and after that commits version v + 1 itself; it deletes only what it
  listed before. When that commit is refused it deletes nothing and begins anew.
- A writer that created an object while it knew version b of the manifest, and commits over version b, or over one that
  it made itself from b on without reading the manifest in between, needs no look: had a collector been there, the
  commit would be refused. That is the usual case, and it costs no request.
- A writer that has read the manifest anew since it created the object, as after a refusal, calls `check` after that
  reading. A collector that can delete the object has moved BOUNDARY above b before the manifest that was read now.

Names must never be made twice, which their nonces see to; whoever is refused writes the object anew, by another name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.document import load_document, swap_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["boundary_key", "check", "move", "read_boundary"]

_FIELDS: Final = ("version",)


def boundary_key(directory: str) -> str:
    """Key of the boundary of a directory, which is as of `read_boundary`."""
    return f"{directory}BOUNDARY"


def read_boundary(store: ObjectStore, directory: str) -> int:
    """The boundary of a directory; objects created while the manifest had a lower version may be gone.

    Args:
        store: Where it is.
        directory: Directory of a partition (`PartitionPath.directory`) or of a node's sets, with a slash behind it.

    Raises:
        ManifestCorruptError: it can not be read.
    """
    document = load_document(store, boundary_key(directory), _FIELDS)
    return document.fields.number("version") if document else 0


def check(store: ObjectStore, directory: str, key: str, born: int) -> None:
    """Make sure that an object may still be named, see the module.

    Args:
        store: Where it is.
        directory: Directory, as in `read_boundary`.
        key: Key of the object.
        born: Version of the manifest that the writer knew when it began to create the object; 0 when there was none.

    Raises:
        OvertakenError: it may have been collected; write it anew, by another name.
    """
    version = read_boundary(store, directory)
    if version > born:
        raise OvertakenError(
            f"{key} waited so long to be committed that it may have been collected (it was begun at version {born}, "
            f"and what was begun before version {version} may be gone): it must be written anew"
        )


def move(store: ObjectStore, directory: str, version: int, new_id: Callable[[], str]) -> None:
    """Move the boundary of a directory up to `version`; no-op where it is there already.

    Raises:
        OvertakenError: another collector moves it at the same moment.
    """
    document = load_document(store, boundary_key(directory), _FIELDS)
    if document is None or document.fields.number("version") < version:
        swap_document(store, boundary_key(directory), {"version": version}, document.etag if document else None, new_id)
