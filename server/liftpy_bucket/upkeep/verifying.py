"""Verifying a partition in the bucket by its manifests and by listings; no data is read, that is what `scrubbing` does.

It sees that every manifest can be read and that its sum is that of its children, that ranges follow on one another and
epochs grow, that every object that a root, a set manifest that counts, or a pin names is there and has its size, and
names what nobody does. Others may go on working meanwhile: what looks wrong is looked at again when the root has moved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from liftpy_bucket.errors import BucketVersionError, ManifestCorruptError, ObjectMissingError, RootMissingError
from liftpy_bucket.layout import set_directory, set_object_key
from liftpy_bucket.manifest.boundary import boundary_key, read_boundary
from liftpy_bucket.manifest.garbage import load_garbage
from liftpy_bucket.manifest.pins.held import load_pin
from liftpy_bucket.manifest.root.reach import Reach, is_ours, keys_of
from liftpy_bucket.objects.read import fragment_key
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.resolving import counts, resolve
from liftpy_bucket.upkeep.missed import check_set_never_was

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.file import RootFile
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.store.object_store import Entry, ObjectStore

__all__ = ["Kind", "Problem", "Report", "hole_of", "verify"]

Kind = Literal["corrupt", "epochs", "gap", "manifest", "missing", "overlap", "pin", "size", "sum"]


def hole_of(offset: int) -> str:
    """What it means that an object can not be read, and what to do.

    Args:
        offset: The first one of the object.
    """
    return f"the partition has a hole from offset {offset} on until it is put back, as it was and under its name"


class Problem(NamedTuple):
    """Something that is not as it must be.

    Attributes:
        kind: What is wrong.
        key: Key of the object that the problem is about.
        offset: Offset from which on the partition is concerned; None where that can not be said.
        text: Text for people.
    """

    kind: Kind
    key: str
    offset: int | None
    text: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What was found.

    Attributes:
        version: Version of the root that was looked at; 0 where there was none that could be read.
        start: The first offset.
        end: The offset after the last one that is visible.
        objects: How many hold data.
        records: How many they hold, as the manifests say.
        size: Size of the objects, bytes.
        problems: What is wrong; empty when all is well.
        orphans: Keys that nobody names: work in progress, or not yet collected. They harm nobody.
    """

    version: int = 0
    start: int = 0
    end: int = 0
    objects: int = 0
    records: int = 0
    size: int = 0
    problems: list[Problem] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    def add(self, kind: Kind, key: str, offset: int | None, text: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(kind, key, offset, text))


_ATTEMPTS: Final = 4
_UNREADABLE: Final = (ManifestCorruptError, BucketVersionError)
_WITHOUT_GARBAGE: Final = (
    "Or delete it: it only announces what a collection was about to take, and the next one computes that anew. Until "
    "then nothing of this partition is collected"
)


def verify(
    store: ObjectStore, path: PartitionPath, *, progress: Callable[[int, int, str], None] | None = None
) -> Report:
    """Verify a partition.

    Args:
        store: Where it is.
        path: Path of the partition.
        progress: Called with (fragments looked at, fragments there are, what is being done).

    Raises:
        StoreError: the store could not be asked.
    """
    report = Report()
    for _ in range(_ATTEMPTS):
        looking = _Look(store, path, progress)
        report = looking.report
        if not looking.look() or not report.problems:
            break
    return report


class _Look:
    """One look at a partition."""

    def __init__(
        self, store: ObjectStore, path: PartitionPath, progress: Callable[[int, int, str], None] | None
    ) -> None:
        self._store = store
        self._path = path
        self._progress = progress
        self._cache = ReadingCache(store)
        self._file = self._cache.root_file(path)
        self._listings: dict[str, dict[str, Entry]] = {}
        self._noted: set[tuple[Kind, str]] = set()
        self.report = Report()

    def look(self) -> bool:
        """Fill the report; says whether the root has moved meanwhile."""
        try:
            loaded = self._file.load()
        except _UNREADABLE as error:
            self._note("manifest", self._path.root, None, str(error))
            return False
        if loaded is None:
            self._note("missing", self._path.root, None, "the bucket has no root of this partition")
            return False
        root = loaded.root
        self.report.version, self.report.start, self.report.end = root.version, root.start, root.end
        reached = self._walk(self._file, root)
        self._check_fragments(root, reached.fragments)
        named = set(keys_of(reached, self._path, self._path))
        self._check_sets(root)
        named |= self._check_pins()
        self._check_collection()
        listing = self._listing(self._path.directory)
        self.report.orphans = sorted(key for key in listing if key not in named and is_ours(self._path, key))
        try:
            return self._file.load_newer(loaded) is not None
        except (ObjectMissingError, *_UNREADABLE) as error:
            self._note("manifest", self._path.root, None, str(error))
            return False

    def _note(self, kind: Kind, key: str, offset: int | None, text: str) -> None:
        """Note a problem, once: the root and pins may name the same object."""
        if (kind, key) not in self._noted:
            self._noted.add((kind, key))
            self.report.add(kind, key, offset, text)

    def _listing(self, directory: str) -> dict[str, Entry]:
        if directory not in self._listings:
            self._listings[directory] = {entry.key: entry for entry in self._store.list(directory)}
        return self._listings[directory]

    def _walk(self, root_file: RootFile, root: Root) -> Reach:
        """What a root names, as far as it can be read."""
        snapshots: list[SnapshotPointer] = []
        fragments: list[StreamObjectPointer] = []
        waiting = list(reversed(root.snapshots))
        while waiting:
            pointer = waiting.pop()
            snapshots.append(pointer)
            key = root_file.path.at(pointer.home).snapshot(pointer.digest)
            try:
                snapshot = root_file.snapshot(pointer)
            except ObjectMissingError:
                lost = (
                    f"snapshot {key} is missing: what it names of offsets {pointer.base} to {pointer.end} is not "
                    "found. Put it back, as it was and under its name"
                )
                self._note("missing", key, pointer.base, lost)
            except _UNREADABLE as error:
                self._note("manifest", key, pointer.base, str(error))
            else:
                fragments += snapshot.fragments
                waiting += reversed(snapshot.snapshots)
        return Reach(tuple(snapshots), (*fragments, *root.fragments))

    def _check_fragments(self, root: Root, fragments: tuple[StreamObjectPointer, ...]) -> None:
        report, reached = self.report, 0
        for number, pointer in enumerate(fragments):
            key = fragment_key(self._path, pointer)
            if pointer.base < reached:
                self._note("overlap", key, pointer.base, f"it begins at {pointer.base}, but others reach to {reached}")
            reached = max(reached, pointer.end)
            self._check_object(key, pointer.size, pointer.base, self._path.at(pointer.home).directory)
            report.objects, report.records = report.objects + 1, report.records + pointer.records
            report.size += pointer.size
            if self._progress is not None:
                self._progress(number + 1, len(fragments), f"verifying {self._path.directory}")
        total = Setsum.total(pointer.setsum for pointer in fragments)
        if total != root.setsum and not any(each.kind in ("missing", "manifest") for each in report.problems):
            self._note("sum", self._path.root, None, f"its sum is {root.setsum.hex()}, that below it {total.hex()}")
        records_from = next((pointer.base for pointer in fragments if pointer.records), None)
        if records_from is not None and (not root.epochs or root.epochs[0][1] > max(records_from, root.start)):
            self._note("epochs", self._path.root, records_from, "it does not say of which epoch its first records are")

    def _check_object(self, key: str, size: int, offset: int, directory: str) -> None:
        entry = self._listing(directory).get(key)
        if entry is None:
            self._note("missing", key, offset, f"{key} is missing; {hole_of(offset)}")
        elif entry.size != size:
            self._note("size", key, offset, f"{key} has {entry.size} bytes, and must have {size}; {hole_of(offset)}")

    def _check_sets(self, root: Root) -> None:
        parts = {}
        for node in sorted({claim.node for claim in root.claims}):
            self._check_boundary(set_directory(node))
            try:
                part = self._cache.set_part(node, self._path)
            except _UNREADABLE as error:
                self._note("manifest", getattr(error, "key", f"sets/{node}/ROOT"), root.end, str(error))
                continue
            if part is not None:
                parts[node] = part
                continue
            try:
                check_set_never_was(self._store, node)
            except RootMissingError as error:
                self._note("missing", error.key, root.end, str(error))
        resolved = resolve(root, parts)
        self.report.end = resolved.end
        for member in resolved.members:
            key = set_object_key(member.node, member.pointer.name)
            self._check_object(key, member.pointer.size, member.start, f"sets/{member.node}/objects/")
            self.report.objects, self.report.records = (
                self.report.objects + 1,
                self.report.records + member.member.records,
            )
        for ignored in resolved.ignored:
            if ignored.member.base > resolved.end and counts(ignored.member, ignored.node, root):
                key = set_object_key(ignored.node, ignored.pointer.name)
                self._note(
                    "gap", key, resolved.end, f"offsets {resolved.end} to {ignored.member.base}, before it, are nowhere"
                )

    def _check_pins(self) -> set[str]:
        """See that what pinned versions hold is there; gives its keys."""
        prefix, suffix = f"{self._path.directory}pins/", ".json"
        held: set[str] = set()
        for key in [key for key in self._listing(self._path.directory) if key.startswith(prefix)]:
            name = key.removeprefix(prefix).removesuffix(suffix)
            try:
                pin = load_pin(self._store, self._path, name)
            except _UNREADABLE as error:
                self._note("pin", key, None, str(error))
                continue
            if pin is None or pin.dropped or pin.root is None:
                continue
            target = self._path.at(pin.target)
            reached = self._walk(self._cache.root_file(target), pin.root)
            keys = set(keys_of(reached, target, self._path))
            held |= keys
            for lost in sorted(keys - self._listing(self._path.directory).keys()):
                self._note("missing", lost, None, f"{lost} is missing, which pin {name} holds")
        return held

    def _check_collection(self) -> None:
        """See that what collectors go by can be read: until it can, they delete nothing."""
        listing, path = self._listing(self._path.directory), self._path
        if path.garbage in listing:
            try:
                load_garbage(self._store, path)
            except _UNREADABLE as error:
                self._note("corrupt", path.garbage, None, f"{error}. {_WITHOUT_GARBAGE}")
        if path.boundary in listing:
            self._check_boundary(path.directory)

    def _check_boundary(self, directory: str) -> None:
        try:
            read_boundary(self._store, directory)
        except _UNREADABLE as error:
            self._note("corrupt", boundary_key(directory), None, str(error))
