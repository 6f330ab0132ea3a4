"""A partition in a bucket against a plain list of records: random histories of two leaders over a store that fails.

Objects are not written: `Bucket.held` says which records each one would hold. After every step the history is read anew
from the manifests, as somebody would who knows nothing else, and compared with the list.
"""

from __future__ import annotations

import dataclasses
import random
from functools import lru_cache
from itertools import pairwise

from liftpy_bucket.errors import (
    LineageError,
    ObjectMissingError,
    OutcomeUnknownError,
    OvertakenError,
    SealedError,
    StoreUnavailableError,
)
from liftpy_bucket.manifest.root.changes import advance_start, append, claim, create, fork, replace, seal
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.format import decode_root
from liftpy_bucket.manifest.stream_sets.changes import add, adopt, drop, empty
from liftpy_bucket.manifest.stream_sets.changes import replace as replace_sets
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from liftpy_bucket.reading.resolving import counts, resolve
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import Fault, FaultStore, plan_random
from support.manifest_kit import OTHER_PATH, PATH, digest_of, fragment, ids, member, set_object, sum_of

NODES = ("node-a", "node-b")
MAY_FAIL = (OvertakenError, OutcomeUnknownError, StoreUnavailableError)
FAULTS = [fault for fault in Fault if fault not in (Fault.SLOW, Fault.STALE)]


@lru_cache(16)
def read_root(body):
    return decode_root(PATH, body)


class History:
    """See the module.

    Args:
        seed: of everything that is random.
        fault_rate: share of the requests that fail.
    """

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.rng = random.Random(seed)
        self.store = MemoryStore()
        self.faulty = FaultStore(self.store, plan_random(self.rng, fault_rate, FAULTS))
        self.new_id = ids(f"history {seed}")
        self.files = {node: RootFile(self.faulty, PATH, new_id=self.new_id) for node in NODES}
        self.sets = {node: SetManifestFile(self.faulty, node, new_id=self.new_id) for node in NODES}
        self.held: dict[str, list[int]] = {}  # by object name: offsets of its records
        self.epoch, self.leader = 1, NODES[0]
        self.epochs = [(1, 0)]
        self.seen = dict.fromkeys(NODES)  # the root as a node saw it last
        self.seen_sets = dict.fromkeys(NODES)
        self.wanted: list[tuple[int, bytes]] = []  # the model
        self.appended = NO_RECORDS  # sum of all that ever went into fragments
        self.start = 0
        self.sealed = False
        self.steps: list[str] = []

    # -- reading, without faults

    def root(self):
        body = self.body(PATH.root)
        return body and read_root(body)

    def manifests(self):
        found = {node: SetManifestFile(self.store, node, new_id=ids()).load() for node in NODES}
        return {node: loaded.manifest for node, loaded in found.items() if loaded}

    def pointers(self, node, names=None):
        """Objects of a node with their members, of the pages as they stand."""
        manifest = self.manifests().get(node)
        return SetManifestFile(self.store, node, new_id=ids()).pointers(manifest, names) if manifest else []

    def parts(self):
        found = self.manifests()
        return {node: SetManifestFile(self.store, node, new_id=ids()).part(each, PATH) for node, each in found.items()}

    def body(self, key):
        try:
            return self.store.get(key).body
        except ObjectMissingError:
            return None

    def resolved(self):
        return resolve(self.root(), self.parts())

    def fragments(self):
        return [*RootFile(self.store, PATH, new_id=ids()).fragments(self.root())]

    # -- steps

    def step(self):
        names = ["append"] * 4 + ["upload_set"] * 4 + ["move_set"] * 2 + ["merge", "compact", "merge_sets"]
        names += ["advance", "elect", "stale_append", "stale_set", "collect_sets", "fork"]
        name = self.rng.choice(names) if self.rng.random() < 0.99 else "seal"
        self.steps.append(name)
        getattr(self, name)()
        self.check()

    def committed(self, node, make):
        """Have a node commit what `make(root)` gives. Returns whether it stands."""
        before = self.root()
        try:
            loaded = self.seen[node] or self.files[node].load()
            change = make(loaded and loaded.root)
            self.seen[node] = self.files[node].commit(loaded, change)
            told = True
        except MAY_FAIL as failure:
            self.seen[node] = None
            told = False if isinstance(failure, OvertakenError) else None  # None: it can not be told
        self.faulty.deliver_late()
        stands = self.root() != before
        assert told in (None, stands)
        return stands

    def claimed(self):
        """Whether the leader holds the claim; it tries to get it."""
        root = self.root()
        if root is None:
            return self.committed(self.leader, lambda _root: create(PATH, epoch=self.epoch, node=self.leader, start=0))
        if (root.claims[-1].epoch, root.claims[-1].node) == (self.epoch, self.leader):
            return True
        self.seen[self.leader] = None
        end = self.resolved().end
        try:
            return self.committed(self.leader, lambda root: claim(root, epoch=self.epoch, node=self.leader, start=end))
        except SealedError:
            assert self.sealed
            return False

    def add_fragment(self, node, epoch, end, offsets):
        def make(root):
            made.append(fragment(root.end, end, epoch=epoch, nonce=self.new_id(), offsets=offsets))
            return append(root, made[-1], epoch=epoch, epochs=self.epochs)

        made = []
        before = self.root().end
        if self.committed(node, make):
            assert self.root().end == end > before
            self.held[made[-1].name] = offsets
            self.appended += sum_of(offsets)
            return True
        return False

    def append(self):
        if not self.claimed():
            return
        for _ in range(self.rng.choice([1, 5, 25])):
            resolved = self.resolved()
            if resolved.end > self.root().end:  # the sets first
                self.move_set()
                return
            end = resolved.end + self.rng.randint(1, 6)
            offsets = [*range(resolved.end, end)]
            try:
                added = self.add_fragment(self.leader, self.epoch, end, offsets)
            except SealedError:
                assert self.sealed
                return
            if added:
                self.wanted += [(offset, digest_of(offset)) for offset in offsets]

    def move_set(self):
        if self.root() is None or not self.claimed():
            return
        root, resolved = self.root(), self.resolved()
        if not resolved.members:
            return
        end = self.rng.choice(resolved.members).end
        offsets = [offset for offset, _ in self.wanted if root.end <= offset < end]
        self.add_fragment(self.leader, self.epoch, end, offsets)

    def upload_set(self):
        if self.root() is None or not self.claimed() or self.sealed:
            return
        base = self.resolved().end
        end = base + self.rng.randint(1, 6)
        if self.put_set(self.leader, member(base, end, tier_epoch=self.epoch, epochs=self.cut(base, end))):
            self.wanted += [(offset, digest_of(offset)) for offset in range(base, end)]

    def cut(self, base, end):
        current = max((row for row in self.epochs if row[1] <= base), key=lambda row: row[1])
        return [(current[0], base), *(row for row in self.epochs if base < row[1] < end)]

    def put_set(self, node, *members):
        def make(manifest):
            return add(manifest, set_object(manifest.sequence, *members, nonce=self.new_id()))

        return self.committed_set(node, make)

    def committed_set(self, node, make):
        before = self.manifests().get(node)
        try:
            loaded = self.seen_sets[node] or self.sets[node].load()
            manifest = make(adopt(loaded.manifest, 1) if loaded else empty(node, 1))
            self.seen_sets[node] = self.sets[node].commit(loaded, manifest)
            told = True
        except MAY_FAIL as failure:
            self.seen_sets[node] = None
            told = False if isinstance(failure, OvertakenError) else None  # None: it can not be told
        self.faulty.deliver_late()
        stands = self.manifests().get(node) != before
        assert told in (None, stands)
        return stands

    def merge_sets(self):
        node = self.rng.choice(NODES)
        manifest = self.manifests().get(node)
        if manifest is None or len(manifest.objects) < 2:
            return
        first = self.rng.randrange(len(manifest.objects) - 1)
        old = manifest.objects[first : first + 2]
        names = [each.name for each in old]
        members = [each for pointer in self.pointers(node, names) for each in pointer.members]
        members = [dataclasses.replace(each, setsum=sum_of(range(each.base, each.end))) for each in members]
        merged = set_object(manifest.sequence, *members, nonce=self.new_id())
        self.seen_sets[node] = None
        self.committed_set(node, lambda manifest: replace_sets(manifest, names, [merged]))

    def collect_sets(self):
        node, root = self.rng.choice(NODES), self.root()
        manifest = self.manifests().get(node)
        if manifest is None:
            return
        pointers = self.pointers(node)
        names = [each.name for each in pointers if not any(counts(share, node, root) for share in each.members)]
        if names:
            self.seen_sets[node] = None
            self.committed_set(node, lambda manifest: drop(manifest, names, 1))

    def run_of_fragments(self):
        found = self.fragments() if self.root() else []
        if not found:
            return []
        first = self.rng.randrange(len(found))
        return found[first : first + self.rng.randint(1, 30)]

    def replaced(self, offsets, dropped):
        old = self.run
        new = fragment(old[0].base, old[-1].end, nonce=self.new_id(), offsets=offsets)
        node = self.rng.choice(NODES)
        self.seen[node] = None

        def make(root):
            snapshots = RootFile(self.store, PATH, new_id=ids()).snapshots(root, old[0].base, old[-1].end)
            return replace(root, old, [new], collected=sum_of(dropped), snapshots=snapshots)

        if self.committed(node, make):
            self.held[new.name] = offsets
            return True
        return False

    def merge(self):
        self.run = self.run_of_fragments()
        if self.run:
            self.replaced([offset for each in self.run for offset in self.held[each.name]], [])

    def compact(self):
        self.run = self.run_of_fragments()
        if not self.run:
            return
        offsets = [offset for each in self.run for offset in self.held[each.name]]
        dropped = [offset for offset in offsets if self.rng.random() < 0.3]
        kept = [offset for offset in offsets if offset not in {*dropped}]
        if self.replaced(kept, dropped):
            self.wanted = [row for row in self.wanted if row[0] not in {*dropped}]

    def advance(self):
        root = self.root()
        if root is None:
            return
        start = self.rng.randint(root.start, max(root.start, self.resolved().end))
        if self.rng.random() < 0.7:
            start = min(start, root.start + 15)
        gone = [each for each in self.fragments() if each.end <= start]
        node = self.rng.choice(NODES)
        self.seen[node] = None

        def make(root):
            snapshots = RootFile(self.store, PATH, new_id=ids()).snapshots(root, end=start)
            change = advance_start(root, start, snapshots=snapshots)
            assert [*change.gone] == gone
            return change

        if self.committed(node, make):
            self.start = max(self.start, start)

    def elect(self):
        self.epoch += 1
        self.leader = self.rng.choice(NODES)
        end = self.resolved().end if self.root() else 0
        self.epochs.append((self.epoch, end))
        if self.epochs[-2][1] == end:
            del self.epochs[-2]

    def stale_append(self):
        """A leader of an earlier epoch wakes up, with the root in its hands that it saw last, or the newest."""
        root = self.root()
        if root is None or self.epoch == 1 or root.claims[-1].epoch < self.epoch:
            return
        node = self.rng.choice(NODES)
        if self.rng.random() < 0.5:
            self.seen[node] = None
        try:
            added = self.add_fragment(node, self.epoch - 1, root.end + 3, [*range(root.end, root.end + 3)])
        except (LineageError, SealedError):
            self.seen[node] = None
            return
        assert not added, "a deposed leader added something"

    def stale_set(self):
        """A deposed leader's object lands in its set after the next one claimed; its range was not resolved then."""
        root = self.root()
        if root is None or root.claims[-1].epoch < self.epoch or self.epoch == 1:
            return
        node = self.rng.choice([each for each in NODES if each != self.leader])
        base = self.rng.randint(root.claims[-1].start, root.claims[-1].start + 10)
        self.put_set(node, member(base, base + 7, tier_epoch=self.rng.randrange(self.epoch)))

    def fork(self):
        root = self.root()
        if root is None:
            return
        target = RootFile(self.store, OTHER_PATH, new_id=self.new_id)
        self.store.delete([OTHER_PATH.root])
        forked = target.commit(None, fork(root, OTHER_PATH, epoch=self.epoch, node="node-c")).root
        ours, theirs = self.fragments(), [*target.fragments(forked)]
        assert [dataclasses.replace(each, home="") for each in theirs] == ours
        assert all(each.home == PATH.home for each in theirs)
        if len(theirs) > 1:
            new = fragment(theirs[0].base, theirs[1].end, nonce=self.new_id(), offsets=())
            new = dataclasses.replace(new, setsum=theirs[0].setsum + theirs[1].setsum)
            snapshots = target.snapshots(forked, theirs[0].base, theirs[1].end)
            change = replace(forked, theirs[:2], [new], collected=NO_RECORDS, snapshots=snapshots)
            merged = target.commit(target.load(), change).root
            assert [*target.fragments(merged)] == [new, *theirs[2:]]
            assert self.fragments() == ours

    def seal(self):
        root = self.root()
        if root is None or self.sealed or self.resolved().end > root.end:
            return
        node = self.rng.choice(NODES)
        self.seen[node] = None
        self.sealed = self.committed(node, seal)

    # -- what must hold

    def check(self):
        root = self.root()
        if root is None:
            assert self.wanted == []
            return
        fragments = self.fragments()
        assert root.setsum == Setsum.total(each.setsum for each in fragments)
        assert root.setsum + root.collected == self.appended
        assert all(one.end <= other.base for one, other in pairwise(fragments))
        for each in fragments:
            assert sum_of(self.held[each.name]) == each.setsum
        resolved = self.resolved()
        offsets = [offset for each in fragments for offset in self.held[each.name]]
        offsets += [offset for each in resolved.members for offset in range(each.start, each.end)]
        assert root.start == self.start
        found = [offset for offset in offsets if offset >= self.start]
        assert found == [offset for offset, _ in self.wanted if offset >= self.start]
        assert resolved.end >= root.end
        for node, manifest in self.manifests().items():
            shares = [sum_of(range(share.base, share.end)) for each in self.pointers(node) for share in each.members]
            assert manifest.setsum == Setsum.total(shares)
        for offset in self.rng.sample(offsets, min(3, len(offsets))):
            self.check_lookup(root, fragments, offset)

    def check_lookup(self, root, fragments, offset):
        found = RootFile(self.store, PATH, new_id=ids()).find(root, offset)
        expected = next((each for each in fragments if each.base <= offset < each.end), None)
        assert found == expected
