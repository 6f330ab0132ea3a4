"""What a bucket in memory must hold of a partition: read anew after every step, and compared with the plain list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.layout import set_object_key, set_pack_key
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import keys_of, reach
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.read import ObjectReader
from liftpy_bucket.objects.record_hash import setsum_of
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.reading.resolving import continuing_nodes
from liftpy_bucket.reading.version import TierVersion, open_version
from liftpy_bucket.upkeep.auditing import audit
from liftpy_bucket.upkeep.verifying import verify
from liftpy_envelope.stream_config import StreamConfig
from support.tier_world_log import Row

if TYPE_CHECKING:
    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.manifest.root.format import Claim, Root
    from liftpy_bucket.reading.version import Piece
    from liftpy_bucket.store.memory import MemoryStore
    from support.tier_world import World
    from support.tier_world_log import WorldLog

COLUMNS = ("offset", "leader_epoch", "timestamp_ns", "key", "value")


class Reading:
    """See the module.

    Args:
        store: the bucket, without its faults.
        path: of the partition.
        log: what was published.

    Attributes:
        start, end: of what the bucket held at the last look.
        wanted_start: the greatest start that retention was told.
        may_compact: records that newer ones supersede may have gone since the last look.
        pins: that are in force: what they hold is there, whatever becomes of the rest.
        is_there: there is a root.
        sealed: it says so.
    """

    def __init__(self, store: MemoryStore, path: PartitionPath, log: WorldLog) -> None:
        self.store, self.path, self.log = store, path, log
        self.start = self.end = self.wanted_start = 0
        self.may_compact = self.is_there = self.sealed = False
        self.pins: list[Pin] = []
        self._acked = self._version = self._delete_horizon = self._root_end = 0
        self._claim: Claim | None = None
        self._holders: tuple[str, ...] = ()
        self._gone: set[int] = set()
        self._is_summable = True
        self._rows: dict[str, tuple[Piece, list[Row]]] = {}  # of objects, whose names are never written twice

    def acked(self, end: int) -> None:
        """A leader in force was told that everything below `end` is there."""
        self._acked = max(self._acked, end)

    def wants(self, start: int) -> None:
        """Retention is told of a start."""
        self.wanted_start = max(self.wanted_start, start)
        if start > self._file(self.path).load().root.end:
            self._is_summable = False  # what sets hold and nobody wants is never counted by the root

    def forked(self, path: PartitionPath, log: WorldLog, root: Root) -> Reading:
        """Of a fork, as it must be from now on."""
        other = Reading(self.store, path, log)
        other.end = other._acked = other._root_end = root.end
        other.start = other.wanted_start = root.start
        version = open_version(self.store, path)
        assert version is not None, "it was forked"
        there = {row.offset for piece in version.pieces() for row in other._rows_of(version, piece)}
        # It is of the root that was read first: what key compaction has dropped since is there.
        other._gone = {offset for offset in self._gone - there if root.start <= offset < root.end}
        other._delete_horizon, other.is_there = root.delete_horizon, True
        other.may_compact = True  # whatever went until the moment of the fork
        return other

    def check(self) -> None:
        """Read it, and compare."""
        version = open_version(self.store, self.path, nodes=self._holders)  # as they were at the last look
        self.is_there = version is not None
        if version is None:
            assert not self._acked, "a root is gone"
            return
        root = version.root
        assert root.version >= self._version, "P2: a root is older than before"
        assert self.start <= version.start <= self.wanted_start, f"P2: it begins at {version.start}"
        held = max(self._root_end, self._acked)
        assert held <= version.end, f"P2: what was in the bucket up to {held} is there up to {version.end} only"
        # What a deposed leader shares while another one is about to claim counts until that one does, see `confirm`.
        assert self.end <= version.end or root.claims[-1] != self._claim, f"P2: {self.end} is back at {version.end}"
        assert version.end <= self.log.end, f"P3: {version.end} is beyond what was published"
        assert root.delete_horizon >= self._delete_horizon, "P2: tombstones are back"
        self._delete_horizon, self.sealed = root.delete_horizon, root.sealed
        self.start, self.end, self._version = version.start, version.end, root.version
        self._holders = continuing_nodes(root) if root.claims else ()
        self._root_end, self._claim = root.end, root.claims[-1]
        for pin in self.pins:
            if pin.root is not None:
                for piece in TierVersion(self.store, self.path, pin.root, None).pieces():
                    self.store.head(piece.key)
            else:
                assert root.start <= pin.start, "what a pin holds is not wanted any more"
        rows = [row for piece in version.pieces() for row in self._rows_of(version, piece)]
        self._compare(rows, root)

    def _rows_of(self, version: TierVersion, piece: Piece) -> list[Row]:
        self.store.head(piece.key)
        kept = self._rows.get(piece.key)
        if kept is None or kept[0].pointer != piece.pointer:
            reader = version.reader(piece)
            batches = reader.rows(0, 2**62)
            kept = self._rows[piece.key] = (piece, [row for batch in batches for row in _plain(batch)])
        return [row for row in kept[1] if piece.start <= row.offset < piece.end]

    def _compare(self, rows: list[Row], root: Root) -> None:
        offsets = [row.offset for row in rows]
        assert offsets == sorted(set(offsets)), "records are doubled, or out of order"
        for row in rows:
            assert row == self.log.rows[row.offset], f"P2: record {row.offset} has changed"
        gone = set(range(self.start, self.end)) - set(offsets)
        before = {offset for offset in self._gone if offset >= self.start}
        assert before <= gone, f"records {before - gone} are back"
        if gone - before:
            assert self.may_compact, f"records {sorted(gone - before)} are lost"
            newest = {row.key: row.offset for row in self.log.rows[: self.end]}
            for offset in gone - before:
                row = self.log.rows[offset]
                is_superseded = row.key is not None and newest[row.key] > offset
                is_gone = row.value is None and row.key is not None and offset < root.delete_horizon
                assert is_superseded or is_gone, f"record {offset} is lost"
                assert not any(pin.start <= offset < (pin.until or 0) for pin in self.pins), f"pinned {offset} is gone"
        self._gone = gone
        self.may_compact = False

    def check_finally(self, world: World) -> None:
        """After everything nobody wants was collected: all sums balance, and there is nothing but what is named."""
        self.check()
        assert self.end == self.log.end or world.sealed
        for each in (self, *(fork.reading for fork in world.forks)):
            each.check()
            each.check_whole()
        self._check_sums()
        self._check_sets([node.name for node in world.nodes])
        self._check_directory(world.store.paths[1:])
        self._check_audit(world)

    def check_whole(self) -> None:
        """By the verifier, and by reading every byte as anybody would."""
        report = verify(self.store, self.path)
        assert (report.problems, report.orphans) == ([], []), self.path
        version = open_version(self.store, self.path)
        self._compare([row for batch in version.read() for row in _plain(batch)], version.root)

    def _check_sums(self) -> None:
        root = self._file(self.path).load().root
        if self._is_summable:
            assert root.setsum + root.collected == self.log.sum_until(
                root.end, lambda rows: setsum_of(rows, root.record_hash)
            )

    def _file(self, path: PartitionPath) -> RootFile:
        return RootFile(self.store, path, new_id=str)

    def _check_sets(self, nodes: list[str]) -> None:
        for node in nodes:
            loaded = SetManifestFile(self.store, node, new_id=str).load()
            objects = loaded.manifest.objects if loaded else ()
            there = {entry.key for entry in self.store.list(f"sets/{node}/objects/")}
            assert there == {set_object_key(node, each.name) for each in objects}
            there = {entry.key for entry in self.store.list(f"sets/{node}/pages/")}
            assert there == {set_pack_key(node, each.name) for each in (loaded.manifest.packs if loaded else ())}
            if loaded:
                pointers = SetManifestFile(self.store, node, new_id=str).pointers(loaded.manifest)
                for listed, each in zip(loaded.manifest.objects, pointers, strict=True):
                    key = set_object_key(node, each.name)
                    sums = [ObjectReader(self.store, key, member.extent).setsum for member in each.members]
                    assert Setsum.total(sums) == listed.setsum

    def _check_directory(self, forks: list[PartitionPath]) -> None:
        """What lies in the directory is what the root and the forks name."""
        named = set()
        for path in (self.path, *forks):
            file = self._file(path)
            if (loaded := file.load()) is not None:
                named |= set(keys_of(reach(loaded.root, file.snapshot), path, self.path))
        kinds = ("fragments/", "snapshots/")
        there = {entry.key for kind in kinds for entry in self.store.list(f"{self.path.directory}{kind}")}
        assert there == named

    def _check_audit(self, world: World) -> None:
        """The audit, which knows the bucket alone, finds nothing that nobody names."""
        config = StreamConfig(name="s", subject="s.>").to_plain()
        streams = {
            path.uuid: CatalogStream(name=path.uuid, config=config, partitions=1, created_ns=1)
            for path in world.store.paths
        }
        catalog = Catalog(cluster_id="c" * 32, version=1, streams=streams)
        CatalogFile(self.store, new_id=lambda: "audit").commit(None, catalog)
        assert audit(self.store, now_ns=world.now_ns).garbage == []


def _plain(batch) -> list[Row]:
    return [Row(*row) for row in zip(*[batch.column(name).to_pylist() for name in COLUMNS], strict=True)]
