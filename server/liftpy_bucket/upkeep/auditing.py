"""An audit of the whole bucket: every object is named by something, or it is garbage. Nothing is changed.

A bucket is listed once, before anything is read, so that what is named is what nobody may delete. Work in progress is
among the garbage: an object that is written before something names it, or one that was just replaced. What object logs
and the sink of Spark keep beside the history is no garbage: only they can tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.layout import (
    CATALOG,
    NOT_HISTORY,
    PartitionPath,
    set_directory,
    set_object_key,
    set_pack_key,
    set_root_key,
)
from liftpy_bucket.manifest.boundary import boundary_key
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_bucket.manifest.pins.pin import is_in_force
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.reading.resolving import counts
from liftpy_bucket.store.probe import PROBES
from liftpy_bucket.upkeep.forking import names_objects_of
from liftpy_bucket.upkeep.live import held_keys, named_keys

if TYPE_CHECKING:
    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import SetMember
    from liftpy_bucket.store.object_store import Entry, ObjectStore

__all__ = ["Audit", "Extra", "audit"]

_PARTITION: Final = re.compile(r"streams/([0-9a-f]{32})/([0-9]{1,9})/")
_SET: Final = re.compile(r"sets/([^/]+)/")


class Extra(NamedTuple):
    """An object that nothing names.

    Attributes:
        key: Key of the object.
        size: Bytes of it.
        age_s: Age since the object was written, by the clock of the store, seconds.
        text: What it is, for people.
    """

    key: str
    size: int
    age_s: float
    text: str


@dataclass(slots=True, kw_only=True)
class Audit:
    """What was found.

    Attributes:
        objects: How many there are.
        size: Size of the objects, bytes.
        garbage: Those that nothing names.
    """

    objects: int = 0
    size: int = 0
    garbage: list[Extra] = field(default_factory=list)


def audit(store: ObjectStore, *, now_ns: int) -> Audit:
    """Audit a bucket.

    Args:
        store: The bucket.
        now_ns: The time, ns since the epoch: it decides which pins have expired, and says how old an object is.

    Raises:
        StoreError: the store could not be asked.
        ManifestCorruptError, BucketVersionError: a manifest can not be read, so nobody knows what it names.
    """
    return _Look(store, now_ns).run()


class _Look:
    """One look at a bucket."""

    def __init__(self, store: ObjectStore, now_ns: int) -> None:
        self._store = store
        self._now_ns = now_ns
        self._roots: dict[PartitionPath, Root | None] = {}
        self._why: dict[str, str] = {}  # of directories: what lies there and is not named

    def run(self) -> Audit:
        entries = list(self._store.list(""))
        loaded = CatalogFile(self._store, new_id=_no_id).load()
        streams = frozenset() if loaded is None else frozenset(loaded.catalog.streams)
        named = {CATALOG}
        partitions = {
            PartitionPath(found[1], int(found[2])) for each in entries if (found := _PARTITION.match(each.key))
        }
        for path in sorted(partitions):
            named |= self._partition(path, is_known=path.uuid in streams)
        for node in sorted({found[1] for each in entries if (found := _SET.match(each.key))}):
            named |= self._set(node)
        garbage = [
            self._extra(each) for each in entries if each.key not in named and not each.key.startswith(NOT_HISTORY)
        ]
        return Audit(objects=len(entries), size=sum(each.size for each in entries), garbage=garbage)

    def _extra(self, entry: Entry) -> Extra:
        directory = (_PARTITION.match(entry.key) or _SET.match(entry.key) or [""])[0]
        if entry.key.startswith(PROBES):
            text = "of a probe that was interrupted: one that a node makes after a day deletes it"
        else:
            text = self._why.get(directory, "not of liftpy" if not directory else "nothing names it")
        return Extra(entry.key, entry.size, max(0.0, (self._now_ns - entry.modified_ns) / 1e9), text)

    def _root(self, path: PartitionPath) -> Root | None:
        if path not in self._roots:
            loaded = RootFile(self._store, path, new_id=_no_id).load()
            self._roots[path] = None if loaded is None else loaded.root
        return self._roots[path]

    def _partition(self, path: PartitionPath, *, is_known: bool) -> set[str]:
        file = RootFile(self._store, path, new_id=_no_id)
        loaded = file.load()
        self._roots[path] = None if loaded is None else loaded.root
        pins = load_pins(self._store, path)
        holding = [pin for pin in pins if is_in_force(pin, self._now_ns) and self._holds(path, pin)]
        named = {path.root, path.garbage, boundary_key(path.directory)}
        named |= {path.pin(pin.name) for pin in pins if pin in holding or pin.kind == "cursor"}
        named = named.union(*held_keys(self._store, file, holding).values())
        if loaded is None:
            self._why[path.directory] = "there is no root that could name it"
        elif is_known or any(pin.kind != "version" for pin in holding):
            named |= named_keys(file, loaded)
        else:
            self._why[path.directory] = "of a stream that was deleted, and that the catalog does not name"
        return named

    def _holds(self, path: PartitionPath, pin: Pin) -> bool:
        """Whether a pin may hold something: that of a fork that names nothing here any more does not."""
        if not pin.target:
            return True
        target = RootFile(self._store, path.at(pin.target), new_id=_no_id)
        loaded = target.load()
        if loaded is None:  # it is being made
            return True
        pinned = [each.root for each in load_pins(self._store, target.path) if not each.target and not each.dropped]
        roots = [loaded.root, *(root for root in pinned if root is not None)]
        return any(names_objects_of(path, root, target) for root in roots)

    def _set(self, node: str) -> set[str]:
        named = {set_root_key(node), boundary_key(set_directory(node))}
        file = SetManifestFile(self._store, node, new_id=_no_id)
        loaded = file.load_root()
        if loaded is None:
            self._why[set_directory(node)] = "there is no set manifest that could name it"
            return named
        self._why[set_directory(node)] = "nothing of it counts, or no set manifest names it"
        named |= {set_pack_key(node, each.name) for each in loaded.root.packs}
        for part in file.parts(loaded.root):
            for pointer in part.objects:
                key = set_object_key(node, pointer.name)
                if key not in named and any(self._counts(member, node) for member in pointer.members):
                    named.add(key)
        return named

    def _counts(self, member: SetMember, node: str) -> bool:
        """Whether a root or a pinned version may make use of a member; without a root nobody knows."""
        path = PartitionPath(member.uuid, member.partition)
        root = self._root(path)
        if root is None or counts(member, node, root):
            return True
        pins = (pin for pin in load_pins(self._store, path) if is_in_force(pin, self._now_ns) and not pin.target)
        return any(pin.root is not None and counts(member, node, pin.root) for pin in pins)


def _no_id() -> str:
    raise AssertionError("what only reads needs no ids")
