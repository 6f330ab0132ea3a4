"""Tier jobs in this process, on any store, and a look at what they left that does not use their code."""

from __future__ import annotations

from itertools import count, pairwise
from typing import TYPE_CHECKING

from liftpy_bucket.layout import PartitionPath, set_object_key
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.manifest.stream_sets.format import SetPart
from liftpy_bucket.objects.read import ObjectReader, fragment_key
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.reading.resolving import resolve
from liftpy_server.tier.jobs.parts.context import Context
from support.plain_worker import do_plain

if TYPE_CHECKING:
    from support.tier_slices import LogFile

UUID = "0123456789abcdef" * 2
PATH = PartitionPath(UUID, 0)
_IDS = count(1)


def new_id():
    return f"{next(_IDS):032x}"


class Worker:
    """A tier worker of a node, without its process.

    Args:
        store: the bucket.
        node: its id.
    """

    def __init__(self, store, node="n1", *, object_bytes=1 << 20, memory_bytes_max=1 << 30):
        self.node = node
        self._hashes = {}
        self.context = Context(
            store,
            new_id=new_id,
            now_ns=count(2 * 10**18).__next__,
            memory_bytes_max=memory_bytes_max,
            object_bytes=object_bytes,
            grace_ns=0,
        )

    def call(self, job, **arguments):
        return do_plain(self.context, job, arguments)

    def claim(self, epoch=0, epochs=(), log_start=0, path=PATH, *, create=True, **options):
        answer = self.call(
            "claim",
            **path._asdict(),
            epoch=epoch,
            node=self.node,
            log_start=log_start,
            epochs=[list(row) for row in epochs or [(epoch, log_start)]],
            create=create,
            **options,
        )
        self._hashes[path] = answer["record_hash"]
        return answer

    def upload(self, log: LogFile, base, end, epoch=0, epochs=(), path=PATH, *, further=()):
        """Of `further`, each is the end of one more object."""
        return self.call(
            "upload",
            **path._asdict(),
            epoch=epoch,
            epochs=[list(row) for row in epochs or [(epoch, 0)]],
            base=base,
            end=end,
            slices=log.slices(base, end),
            further=[{"end": stop, "slices": log.slices(start, stop)} for start, stop in pairwise((end, *further))],
            keeps_replies=False,
        )

    def upload_set(self, members, incarnation=1):
        """Members are (log, base, end, epoch[, path])."""
        return self.call(
            "upload_set",
            node=self.node,
            incarnation=incarnation,
            members=[
                {
                    **(path[0] if path else PATH)._asdict(),
                    "tier_epoch": epoch,
                    "base": base,
                    "end": end,
                    "slices": log.slices(base, end),
                    "keeps_replies": False,
                    "record_hash": self._hashes.get(path[0] if path else PATH, RecordHash.BLAKE2B),
                }
                for log, base, end, epoch, *path in members
            ],
        )

    def asked(self):
        """Requests since this was called last, by kind, without those that were not made."""
        counts = self.context.store.counts
        asked = {kind: number for kind, number in counts.items() if number}
        for kind in counts:
            counts[kind] = 0
        return asked


def root_of(store, path=PATH):
    return RootFile(store, path, new_id=new_id).load().root


def sets_of(store, root):
    found = {node: SetManifestFile(store, node, new_id=new_id).load() for node in {claim.node for claim in root.claims}}
    return {
        node: SetPart(node, tuple(SetManifestFile(store, node, new_id=new_id).pointers(loaded.manifest)))
        for node, loaded in found.items()
        if loaded
    }


def history(store, path=PATH):
    """(offset, leader epoch, value) of every record that the bucket holds of a partition; everything is checked."""
    file = RootFile(store, path, new_id=new_id)
    root = file.load().root
    rows, total = [], root.collected - root.collected
    for pointer in file.fragments(root):
        reader = ObjectReader(store, fragment_key(path, pointer), pointer.extent)
        reader.check_fragment(path, pointer)
        rows += reader.rows(pointer.base, pointer.end)
        total += pointer.setsum
    assert total == root.setsum
    held = resolve(root, sets_of(store, root))
    for each in held.members:
        key = set_object_key(each.node, each.pointer.name)
        reader = ObjectReader(store, key, each.member.extent)
        reader.check_member(each.member)
        rows += reader.rows(each.start, each.end)
    names = ("offset", "leader_epoch", "value")
    found = [row for piece in rows for row in zip(*[piece.column(name).to_pylist() for name in names], strict=True)]
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    assert not found or found[-1][0] < held.end
    return found


def check_whole(store, end, start=0, path=PATH):
    """Every offset of [start, end) is there, once."""
    assert [row[0] for row in history(store, path)] == list(range(start, end))
