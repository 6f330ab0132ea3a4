"""Has the worker do what the schedule wants, and tells the schedule what became of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from liftpy_bucket.manifest.json import MANIFEST_BYTES_MAX
from liftpy_envelope.errors import LiftError
from liftpy_log.ids.ordered import StoredBatch
from liftpy_server.partition.cold_side import ColdSide
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.host.message_ids import recall_message_ids
from liftpy_server.tier.host.tiered_partition import (
    claim_job,
    further_objects,
    look_job,
    may_have_history,
    moved,
    upload_job,
)
from liftpy_server.tier.requests import (
    CollectJob,
    CollectSetsJob,
    CompactJob,
    ConfirmJob,
    MergeJob,
    ProbeJob,
    RetainJob,
    SetMemberUpload,
    UploadSetJob,
)
from liftpy_server.tier.schedule.places import Found, Job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.clock import Clock
    from liftpy_server.partition.partition import Partition
    from liftpy_server.settings.tier import TierConfig
    from liftpy_server.tier.host.counters import TierCounters
    from liftpy_server.tier.host.gone_nodes import GoneNodes, Members
    from liftpy_server.tier.requests import Producers, UploadedObject, UploadJob
    from liftpy_server.tier.schedule.places import Place, Task
    from liftpy_server.tier.schedule.schedule import Schedule
    from liftpy_server.tier.worker.port import Identity, Worker

__all__ = ["TierJobs"]

logger = logging.getLogger(__name__)

_INCARNATION_BITS: Final = 32
_NOTHING: Final = "there is no whole record batch to upload yet"


class TierJobs:
    """Does tasks of the schedule by calls of the worker.

    Args:
        config: Configuration of the bucket.
        identity: Identity of this node.
        members: Members of the cluster.
        schedule: Wants them.
        partitions: Those that the schedule knows.
        worker: Does them.
        clock: Clock for times.
        counters: Count them.
        gone: Hears which nodes hold something of a partition.
    """

    def __init__(
        self,
        config: TierConfig,
        identity: Identity,
        members: Members,
        schedule: Schedule,
        partitions: Mapping[PartitionKey, Partition],
        worker: Worker,
        clock: Clock,
        counters: TierCounters,
        gone: GoneNodes,
    ) -> None:
        self._config = config
        self._identity = identity
        self._members = members
        self._schedule = schedule
        self._partitions = partitions
        self._worker = worker
        self._clock = clock
        self._counters = counters
        self._gone = gone
        self._generation = 0
        self._doing: dict[Job, Callable[[Task], Awaitable[bool]]] = {
            Job.PROBE: self._probe,
            Job.LOOK: self._look,
            Job.CLAIM: self._look,
            Job.UPLOAD: self._upload,
            Job.UPLOAD_SET: self._upload_set,
            Job.CONFIRM: self._confirm,
            Job.RETAIN: self._retain,
            Job.MERGE: self._merge,
            Job.COMPACT: self._compact,
            Job.COLLECT: self._collect,
            Job.COLLECT_SETS: self._collect_sets,
        }

    async def do(self, task: Task) -> bool:
        """Do a task. Returns whether people are to be told of a change that it brought about.

        Raises:
            TierWorkError: it failed; the schedule was not told yet.
        """
        return await self._doing[task.job](task)

    def fail(self, task: Task, code: str, message: str) -> bool:
        """A task failed. Returns whether people are to be told."""
        self._counters.failures[code] += 1
        return self._schedule.failed(task, code, message, self._now_s())

    def _now_s(self) -> float:
        return self._clock.monotonic()

    def _partition(self, place: Place) -> Partition:
        """The partition of a place.

        Raises:
            TierWorkError: this node leads it no longer.
        """
        partition = self._partitions.get(place.key)
        if partition is None or not may_have_history(partition) or partition.epoch != place.epoch:
            raise TierWorkError("gone", "another node leads the partition now")
        return partition

    async def _probe(self, _task: Task) -> bool:
        probed = await self._worker.call(ProbeJob())
        found, own = probed.cluster_id, self._identity.cluster_id
        if found is not None and found != own:
            text = (
                f"{self._config.url} belongs to cluster {found}, and this is cluster {own}: nothing is written there. "
                "Give this cluster a prefix of its own; or, if the other one is lost, restore it into this one"
            )
            raise TierWorkError("foreign", text)
        self._generation = probed.generation
        return self._schedule.proven(self._now_s())

    @property
    def _incarnation(self) -> int:
        """Of this node among all that ever wrote to the bucket under its name.

        A process of a cluster that was lost, and is restored in this one, is always an earlier one.
        """
        return self._generation << _INCARNATION_BITS | self._identity.incarnation

    async def _look(self, task: Task) -> bool:
        (place,) = task.places
        partition = self._partition(place)
        identity = self._identity
        try:
            answer = await self._worker.call(
                claim_job(partition, identity.node_id, identity.cluster_id, self._members.level)
                if task.job is Job.CLAIM
                else look_job(partition)
            )
        except TierWorkError as error:
            if error.code != "missing" or task.job is Job.CLAIM:
                raise
            log_start = partition.log.log_start  # where its history in the bucket will begin
            self._schedule.looked(task, log_start, log_start, is_sealed=False, now_s=self._now_s())
            self._learn_producers(partition, ())
            partition.cold = ColdSide(log_start, log_start)
            return False
        start, end = answer.start, answer.end
        self._partition(place)
        if partition.cold is None:  # else this leadership has looked before
            self._learn_producers(partition, answer.producers)
            await recall_message_ids(partition, start, self._worker)
        self._partition(place)
        if end > partition.log.log_end:
            text = (
                f"the bucket has records up to offset {end}, and the log of this node ends at {partition.log.log_end}: "
                f"it has lost what lies between. Nothing is uploaded, so that the bucket's copy stays as it is"
            )
            raise TierWorkError("lineage", text)
        found = Found(
            set_bytes=answer.set_bytes,
            new_bytes=answer.new_bytes,
            merges=answer.merges,
            may_have_garbage=not answer.is_new,
            proven_end=answer.proven_end,
        )
        self._schedule.looked(task, start, end, is_sealed=answer.sealed, now_s=self._now_s(), found=found)
        self._gone.held(place.key, answer.holders)
        partition.cold = ColdSide(
            max(start, place.wanted_start),
            end,
            [(epoch, first) for epoch, first in answer.epochs if first < end],
            answer.delete_horizon,
            stored_bytes=answer.bytes,
            records=answer.records,
            root_end=answer.root_end,
            holders=answer.holders,
            record_hash=answer.record_hash,
        )
        return False

    def _learn_producers(self, partition: Partition, producers: Producers) -> None:
        """Have a partition know what the bucket has of ordered producers, if it does not know itself.

        Raises:
            TierWorkError: it can not be written down; to look again is to try again.
        """
        told = [(bytes.fromhex(producer), StoredBatch(epoch, sequence, offset, records, time_ns))
                for producer, epoch, sequence, offset, records, time_ns in producers]  # fmt: skip
        try:
            partition.learn_producers(told)
        except LiftError as error:
            raise TierWorkError("internal", f"ordered producers can not be written down: {error}") from error

    async def _upload(self, task: Task) -> bool:
        (place,) = task.places
        partition = self._partition(place)
        bytes_max = self._config.upload_bytes
        job = self._upload_job(partition, place, bytes_max)
        job = replace(job, further=further_objects(partition, job.end, bytes_max))
        began_s = self._now_s()
        answer = await self._worker.call(job, partial(self._counts, place, job))
        self._counters.upload_s.observe(self._now_s() - began_s)
        objects, slices = moved(job, answer.end)
        asked = [(place, replace(job, slices=slices))]
        self._uploaded(task, {place.key: answer.end}, asked, answer.stored_bytes, objects=objects)
        _is_in_root(partition, answer.end)
        return False

    def _counts(self, place: Place, job: UploadJob, part: UploadedObject) -> None:
        """An object of an upload counts, and others follow perhaps."""
        partition = self._partitions.get(place.key)
        if partition is None or partition.cold is None or self._schedule.places.get(place.key) is not place:
            return
        self._schedule.counts(place, part.end, part.bytes, self._now_s())
        cold = partition.cold
        cold.stored_bytes += part.stored_bytes
        cold.records += max(0, part.end - cold.end)
        cold.advance(part.end, job.epochs)
        _is_in_root(partition, part.end)

    async def _upload_set(self, task: Task) -> bool:
        asked: list[tuple[Place, UploadJob]] = []
        members: list[SetMemberUpload] = []
        for place in task.places:
            try:
                partition = self._partition(place)
                if len(partition.dedupe.ordered):
                    continue  # it has an object of its own from now on
                job = self._upload_job(partition, place, self._config.set_member_bytes_max)
            except LiftError:
                continue  # it gets its own turn, and its own error
            assert partition.cold is not None, "its claim has told what the bucket has"
            asked.append((place, job))
            members.append(_member(job, partition.cold.record_hash))
        if not asked:
            raise TierWorkError("gone", _NOTHING)
        identity = self._identity
        began_s = self._now_s()
        answer = await self._worker.call(
            UploadSetJob(node=identity.node_id, incarnation=self._incarnation, members=tuple(members))
        )
        self._counters.upload_s.observe(self._now_s() - began_s)
        self._note_manifest(answer.manifest_bytes)
        told = {(member.uuid, member.partition): member.end for member in answer.members}
        ends = {place.key: told.get((place.key.uuid.hex(), place.key.partition), 0) for place, _ in asked}
        self._uploaded(task, ends, asked, answer.stored_bytes)
        for place, _ in asked:
            if (shared := self._partitions.get(place.key)) is not None and shared.cold is not None:
                shared.cold.holders |= {identity.node_id}
        return False

    def _note_manifest(self, size: int) -> None:
        """Tell people once when the manifest of shared objects comes to half of what it may have."""
        before, self._counters.set_manifest_bytes = self._counters.set_manifest_bytes, size
        self._schedule.manifest_has(size)
        if before <= MANIFEST_BYTES_MAX // 2 < size:
            logger.warning(
                "the manifest of this node's shared objects, sets/%s/ROOT, has %d bytes of the %d that it may have; "
                "streams get objects of their own earlier now, which costs more requests, and none shares one once "
                "it is full: spread the streams over more nodes",
                *(self._identity.node_id, size, MANIFEST_BYTES_MAX),
            )

    def _upload_job(self, partition: Partition, place: Place, bytes_max: int) -> UploadJob:
        if not partition.stream.config.tier:
            raise TierWorkError("gone", "its settings keep it out of the bucket")
        log_start = partition.log.log_start
        if log_start > place.tiered_end:
            self._check_hole(partition, place)
            text = f"nobody wants what lay below offset {log_start}; first the bucket's end has to come there, too"
            raise TierWorkError("gone", text)
        job = upload_job(partition, place.tiered_end, bytes_max)
        if job is None:
            raise TierWorkError("gone", _NOTHING)
        return job

    def _check_hole(self, partition: Partition, place: Place) -> None:
        """What is missing between the bucket's end and the log is not wanted; by itself a log drops only what counts.

        Raises:
            TierWorkError: it is not known why it is missing ("hole"), or a pin holds what lies before it ("held").
        """
        log_start, wanted = partition.log.log_start, partition.stream.purged_below(partition.number)
        if place.start >= place.tiered_end:  # the bucket has nothing: it begins with the log, as where it has no root
            wanted = log_start
        if max(wanted, place.wanted_start) < log_start:
            raise TierWorkError(
                "hole",
                f"the bucket ends at offset {place.tiered_end}, and the log of this node begins at {log_start}: what "
                f"lies between is missing, and was not purged. Let another replica lead that has it still; or purge "
                f"the partition up to offset {log_start}, to go on without it: its history in the bucket then begins "
                "anew there. Until then, or until retention wants nothing of it, what the bucket has is left as it is",
            )
        self._schedule.wants_start(place.key, wanted, self._now_s())
        if place.trouble is not None and place.trouble.code == "held":
            raise TierWorkError("held", place.trouble.message)

    def _uploaded(
        self,
        task: Task,
        ends: Mapping[PartitionKey, int],
        asked: list[tuple[Place, UploadJob]],
        stored_bytes: int,
        *,
        objects: int = 1,
    ) -> None:
        counters = self._counters
        counters.uploads += objects
        counters.stored_bytes += stored_bytes
        self._schedule.uploaded(task, ends, self._now_s())
        sizes = [sum(piece.length for piece in job.slices) for _, job in asked]
        counters.uploaded_bytes += sum(sizes)
        for (place, job), size in zip(asked, sizes, strict=True):
            partition = self._partitions.get(place.key)
            if partition is None or partition.cold is None or self._schedule.places.get(place.key) is not place:
                continue
            if ends[place.key] > partition.cold.end:
                partition.cold.stored_bytes += stored_bytes * size // max(1, sum(sizes))
                partition.cold.records += ends[place.key] - partition.cold.end
            partition.cold.advance(ends[place.key], job.epochs)

    async def _confirm(self, task: Task) -> bool:
        (place,) = task.places
        end = place.tiered_end
        uuid, partition = _name(place)
        node = self._identity.node_id
        await self._worker.call(ConfirmJob(uuid=uuid, partition=partition, epoch=place.epoch, node=node))
        place.proven_end = max(place.proven_end, end)
        self._schedule.kept_up(task, None, self._now_s())
        return False

    async def _retain(self, task: Task) -> bool:
        (place,) = task.places
        partition = self._partition(place)
        wanted = place.wanted_start
        uuid, number = _name(place)
        answer = await self._worker.call(RetainJob(uuid=uuid, partition=number, epoch=place.epoch, start=wanted))
        if answer.start < wanted and place.tiered_end < partition.log.log_start:
            raise TierWorkError(
                "held",
                f"a pin holds what the bucket has from offset {answer.start} on, and what lay between its end, "
                f"{place.tiered_end}, and offset {partition.log.log_start} is gone: nothing is added behind a hole. "
                "`liftpy tier cursor list` says who holds it; it goes on when that is dropped",
            )
        # What a pin holds stays there. Where nothing does, a start beyond the end of the bucket has moved that, too.
        place.tiered_end = max(place.tiered_end, answer.start)
        place.proven_end = max(place.proven_end, answer.start)
        self._schedule.kept_up(task, max(wanted, answer.start), self._now_s())
        if partition.cold is not None:
            partition.cold.advance(answer.start, ())
            partition.cold.raise_start(wanted)
        if answer.more:
            self._schedule.collects(place.key)
        elif answer.pinned:
            self._schedule.pinned(place.key, self._now_s())
        return False

    async def _merge(self, task: Task) -> bool:
        (place,) = task.places
        partition = self._partition(place)
        uuid, number = _name(place)
        end = place.tiered_end
        answer = await self._worker.call(MergeJob(uuid=uuid, partition=number, epoch=place.epoch))
        if not answer.more:
            self._gone.held(place.key, ())
            _is_in_root(partition, end)
        self._schedule.kept_up(task, None, self._now_s())
        if answer.more:
            self._schedule.merges(place.key)
        return False

    async def _compact(self, task: Task) -> bool:
        (place,) = task.places
        partition = self._partition(place)
        uuid, number = _name(place)
        config = partition.stream.config
        answer = await self._worker.call(
            CompactJob(
                uuid=uuid,
                partition=number,
                epoch=place.epoch,
                # The worker measures with the wall clock.
                min_compaction_lag_ns=partition.by_wall_ns(config.min_compaction_lag_s),
                delete_retention_ns=partition.by_wall_ns(config.delete_retention_s),
                clean_end=place.tiered_end,
            )
        )
        if partition.cold is not None:
            partition.cold.delete_horizon = max(partition.cold.delete_horizon, answer.delete_horizon)
            partition.cold.stored_bytes, partition.cold.records = answer.bytes, answer.records
        self._schedule.kept_up(task, None, self._now_s())
        return False

    async def _collect(self, task: Task) -> bool:
        (place,) = task.places
        self._partition(place)
        uuid, number = _name(place)
        grace_ns = int(self._config.grace_s * 1e9)
        answer = await self._worker.call(CollectJob(uuid=uuid, partition=number, grace_ns=grace_ns))
        self._schedule.kept_up(task, None, self._now_s())
        if answer.more:
            self._schedule.collects(place.key)
        elif answer.pinned:
            self._schedule.pinned(place.key, self._now_s())
        return False

    async def _collect_sets(self, task: Task) -> bool:
        identity = self._identity
        answer = await self._worker.call(CollectSetsJob(node=identity.node_id, incarnation=self._incarnation))
        self._schedule.kept_up(task, None, self._now_s())
        if answer.merged or answer.trimmed:
            self._schedule.collects_sets()
        if answer.left:
            self._schedule.collects_sets_again(self._now_s())
        return False


def _is_in_root(partition: Partition, end: int) -> None:
    """What the bucket has of a partition up to an offset is in objects of its own."""
    if partition.cold is not None:
        partition.cold.root_end = max(partition.cold.root_end, end)


def _name(place: Place) -> tuple[str, int]:
    return place.key.uuid.hex(), place.key.partition


def _member(job: UploadJob, record_hash: str) -> SetMemberUpload:
    return SetMemberUpload(
        uuid=job.uuid,
        partition=job.partition,
        tier_epoch=job.epoch,
        base=job.base,
        end=job.end,
        slices=job.slices,
        keeps_replies=job.keeps_replies,
        record_hash=record_hash,
        epochs=job.epochs,
    )
