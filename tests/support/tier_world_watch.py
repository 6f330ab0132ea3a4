"""The bucket of a `tier_world`, which looks at every write and at every deletion: is it one that may be?

Reading finds out what was harmed in the end. This finds out who did what nobody may do, at the moment it is done:

P4  what a leader does to a root is done under its claim, and a sealed partition does not grow
P5  the sum of a root is that of its children, and with what was collected it changes only where the history grows
P6  what is deleted nobody reaches, neither a root nor a pin; it lies below BOUNDARY; and what was never named is older
    than the grace period
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.layout import PartitionPath, set_object_key, set_pack_key
from liftpy_bucket.manifest.boundary import read_boundary
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.format import decode_root
from liftpy_bucket.manifest.root.reach import keys_of, reach
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.manifest.stream_sets.format import decode_set
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.reading.resolving import counting
from liftpy_bucket.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.stream_sets.format import SetManifest
    from support.tier_world_nodes import Job

__all__ = ["WatchedStore"]

FENCED = frozenset({"upload", "merge", "compact", "retain"})
WAITS = frozenset({"collect", "collect_sets"})  # what these delete without its having been named must be old enough


class WatchedStore(MemoryStore):
    """See the module.

    Args:
        clock: says when an object was written, ns since the epoch.
        grace_ns: how long what nobody names must lie around before it is collected.

    Attributes:
        paths: of all partitions that there are, or were to be, the one that is written first.
        pins: of that one; they are in force.
        jobs: by the ids that they gave.
        acting: the job that asks at this moment; None: somebody else does.
        denied: ids of commits of which it was said that nothing came of them.
    """

    def __init__(self, clock: Callable[[], int], grace_ns: int) -> None:
        super().__init__(clock)
        self._now_ns, self._grace_ns = clock, grace_ns
        self._born: dict[str, int] = {}  # versions of manifests when objects were created, by key
        self._named: set[str] = set()  # shared objects that a manifest names, or named
        self._begun: set[str] = set()  # commits that began a set manifest, and named nothing: they stand for themselves
        self.paths: list[PartitionPath] = []
        self.pins: list[Pin] = []
        self.jobs: dict[str, Job] = {}
        self.acting: Job | None = None
        self.denied: set[str] = set()

    def create(self, key: str, body: bytes | memoryview, nonce: str) -> str:
        self._look_at(key, bytes(body), is_new=True)
        etag = super().create(key, body, nonce)
        if "/objects/" in key or "/fragments/" in key or "/snapshots/" in key:
            self._born[key] = self._version(_directory_of(key))
        return etag

    def replace(self, key: str, body: bytes, etag: str, nonce: str) -> str:
        there = self._objects.get(key)
        if there is not None and there.head.etag == etag:
            self._look_at(key, body, is_new=False)
        return super().replace(key, body, etag, nonce)

    def delete(self, keys: Sequence[str]) -> None:
        there = [key for key in keys if key in self._objects]
        for directory in sorted({_directory_of(key) for key in there}):
            some = [key for key in there if key.startswith(directory)]
            live = self._live(directory)
            assert not live.intersection(some), f"P6: deleted, and somebody reaches it: {live.intersection(some)}"
            for key in some:
                self._look_at_death(directory, key)
        super().delete(keys)

    def deny(self, job: Job) -> None:
        """A job was refused: what it wanted to commit is not there, and never will be."""
        wanted = job.ids - self._begun
        self.denied |= wanted
        for key, stored in self._objects.items():
            if key.endswith("/ROOT"):
                manifest = self._decoded(key, stored.body)
                assert wanted.isdisjoint(manifest.commits), f"{job.name} was refused, but {key} has what it did"

    # -- writes

    def _look_at(self, key: str, body: bytes, *, is_new: bool) -> None:
        if not key.endswith("/ROOT") or (is_new and key in self._objects):
            return
        old = None if is_new else self._decoded(key, self._objects[key].body)
        new = self._decoded(key, body)
        if new.commits:
            assert new.commits[-1] not in self.denied, f"what was refused is written to {key} all the same"
        if key.startswith("sets/"):
            self._look_at_set(old, new)
        else:
            self._look_at_root(old, new)

    def _look_at_root(self, old: Root | None, new: Root) -> None:
        total = Setsum.total(each.setsum for each in (*new.snapshots, *new.fragments))
        assert total == new.setsum, "P5: the sum of a root is not that of its children"
        if old is None:
            return
        job = self.jobs.get(new.commits[-1])
        if job is not None and job.name in FENCED:
            claim = old.claims[-1]
            assert claim.epoch == job.epoch, f"P4: {job.name} of epoch {job.epoch} under a claim of {claim.epoch}"
        if new.end == old.end:
            assert new.setsum + new.collected == old.setsum + old.collected, "P5: records come or go unaccounted for"
        end = max(old.end, new.start)  # retention may take of what stream sets hold behind a sealed root
        assert not old.sealed or (new.end == end and new.sealed), "P4: a sealed partition grows"

    def _look_at_set(self, old: SetManifest | None, new: SetManifest) -> None:
        self._named |= {set_object_key(new.node, each.name) for each in new.objects}
        self._named |= {set_pack_key(new.node, each.name) for each in new.packs}
        if old is None:
            assert not new.objects, "a set manifest begins with an object that was there before it"
            self._begun.add(new.commits[-1])
            return
        job = self.jobs[new.commits[-1]]
        if job.name == "collect_sets":
            assert new.setsum + new.collected == old.setsum + old.collected, "P5: records come or go unaccounted for"
        before, after = ({each.name for each in manifest.objects} for manifest in (old, new))
        file = SetManifestFile(self, old.node, new_id=str)
        there = [member for each in file.pointers(new, after - before) for member in each.members]
        for member in [member for each in file.pointers(old, before - after) for member in each.members]:
            path = PartitionPath(member.uuid, member.partition)
            same = [
                each for each in there if (each.uuid, each.partition, each.tier_epoch) == (*path, member.tier_epoch)
            ]
            for root in self._roots(path):
                counted = counting(member, new.node, root)
                assert counted is None or any(each.base <= counted[0] and counted[1] <= each.end for each in same), (
                    "P6: what a set held is let go, and a root counts on it"
                )

    # -- deletions

    def _look_at_death(self, directory: str, key: str) -> None:
        if "/pages/" in key:
            version = int(key.rsplit("/", maxsplit=1)[-1][:20])
            assert version <= self._version(directory), f"P6: {key} is deleted, and may be work in progress"
        if key not in self._born:
            return  # a pin, or what a test has put there
        boundary = read_boundary(self, directory)
        assert boundary > self._born[key], f"P6: {key} is deleted before BOUNDARY has moved beyond its birth"
        is_old = self._objects[key].head.modified_ns + self._grace_ns <= self._now_ns()
        waits = self.acting is not None and self.acting.name in WAITS
        assert is_old or not waits or key in self._named, f"P6: {key} is deleted, and may be work in progress"

    def _live(self, directory: str) -> set[str]:
        """Keys in a directory that somebody reaches at this moment."""
        if directory.startswith("sets/"):
            manifest = self._decoded(f"{directory}ROOT", self._objects[f"{directory}ROOT"].body)
            packs = {set_pack_key(manifest.node, each.name) for each in manifest.packs}
            return packs | {set_object_key(manifest.node, each.name) for each in manifest.objects}
        home = next(path for path in self.paths if path.directory == directory)
        live: set[str] = set()
        for path in self.paths:
            for root in self._roots(path):
                live |= set(keys_of(reach(root, RootFile(self, path, new_id=str).snapshot), path, home))
        return live

    def _roots(self, path: PartitionPath) -> list[Root]:
        """That of a partition, and those that are pinned."""
        loaded = RootFile(self, path, new_id=str).load()
        roots = [loaded.root] if loaded else []
        return roots + [pin.root for pin in self.pins if pin.root is not None and path == self.paths[0]]

    # -- manifests

    def _decoded(self, key: str, body: bytes) -> Root | SetManifest:
        if key.startswith("sets/"):
            node = key.split("/")[1]
            return SetManifestFile(self, node, new_id=str).manifest_of(decode_set(node, body))
        path = next(path for path in self.paths if path.root == key)
        return decode_root(path, body)

    def _version(self, directory: str) -> int:
        stored = self._objects.get(f"{directory}ROOT")
        return 0 if stored is None else self._decoded(f"{directory}ROOT", stored.body).version


def _directory_of(key: str) -> str:
    """Of a partition, or of the sets of a node."""
    parts = key.split("/")
    return "/".join(parts[: 2 if parts[0] == "sets" else 3]) + "/"
