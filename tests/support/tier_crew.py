"""A cluster with a bucket behind a gate, load on it, and what must be so when all is over."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from liftpy_bucket.layout import PartitionPath, set_object_key, set_pack_key
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_bucket.upkeep.verifying import verify
from liftpy_client.errors import LiftError
from support.cluster import eventually
from support.cluster_kit import ClusterKit, create, settled
from support.history import Violation, check, timeline
from support.progress import until_through
from support.reading import take
from support.recorded_load import RecordedConsumer, RecordedPublisher
from support.s3_servers import seaweedfs
from support.small_disk import SmallDisk
from support.store_gate import StoreGate, Weather
from support.tier_kit import tier_toml

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    import liftpy
    from liftpy_client.admin.tier import TierStatus
    from support.history import History
    from support.s3_servers import S3Server

__all__ = ["GRACE_S", "STREAMS", "TierCrew", "running_crew"]

PREFIX = "chaos"
STREAMS = {"one": 1, "four": 4}
SETTINGS = {"segment_bytes": 65_536, "local_retention_bytes": 131_072}
GRACE_S = 3.0
COLLECTED_WITHIN_S = 60.0
STALLED_S = 45.0
MOVES_WITHIN_S = 40.0
ACKS = 10
EVENTS_SHOWN = 40
SMALL_DISK_BYTES = 512 * 1024 * 1024
# Small, so that there are objects of one stream and of many, merges of both, and much that is collected.
SIZES = {"set_member_bytes_max": 24_576, "merge_bytes": 262_144, "object_bytes": 524_288, "grace_s": GRACE_S}

Contents = dict[tuple[str, int], list[bytes]]


class TierCrew:
    """See the module.

    Args:
        kit: the cluster.
        lift: a client of it.
        s3: the store.
        gate: in front of it.
        history: where all is written down.
        rate: messages per second of each publisher.
    """

    def __init__(
        self, kit: ClusterKit, lift: liftpy.Lift, s3: S3Server, gate: StoreGate, history: History, rate: float
    ) -> None:
        self.kit = kit
        self.lift = lift
        self.s3 = s3
        self.gate = gate
        self.history = history
        self.store = s3.store(PREFIX)
        self.uuids: dict[str, str] = {}
        self._rate = rate
        self.publishers: list[RecordedPublisher] = []
        self.consumers: list[RecordedConsumer] = []

    async def start(self) -> None:
        """Create the streams, and begin to publish and to read."""
        for stream, count in STREAMS.items():
            await create(self.lift, stream, stream if count == 1 else f"{stream}.*", partitions=count, **SETTINGS)
            self.uuids[stream] = (await self.lift.stream_info(stream)).uuid
        for stream, who in (("one", "one-a"), ("one", "one-b"), ("four", "four-a")):
            subject = "{0}" if STREAMS[stream] == 1 else "{0}.{1}"
            self._publish(stream, who, lambda number, text=subject, name=stream: text.format(name, number % 61))
        for stream in STREAMS:
            self.read_anew(stream, "tail")
        await self.goes_on()

    def _publish(self, stream: str, who: str, subject: Callable[[int], str]) -> None:
        publisher = RecordedPublisher(self.kit.url, self.history, stream, subject, who, rate=self._rate)
        self.publishers.append(publisher.start())

    def read_anew(self, stream: str, who: str) -> None:
        """One more consumer, from the first record on: most of them are in the bucket alone."""
        starts = dict.fromkeys(range(STREAMS[stream]), 0)
        self.consumers.append(RecordedConsumer(self.kit.url, self.history, stream, who, starts).start())

    async def takes_messages(self) -> float:
        """Wait until every publisher has acks of now; how long that took, in seconds."""
        return await self._moves({each.who: (lambda each=each: each.acked, ACKS) for each in self.publishers})

    async def goes_on(self) -> float:
        """Wait until, besides, every consumer has records of now; how long that took, in seconds."""
        wanted = {each.who: (lambda each=each: each.acked, ACKS) for each in self.publishers}
        for each in self.consumers:
            wanted[f"{each.who} of {each.stream}"] = (lambda each=each: sum(each.next_offsets.values()), 1)
        return await self._moves(wanted)

    async def _moves(self, wanted: dict[str, tuple[Callable[[], int], int]]) -> float:
        began_s = time.monotonic()
        before = {who: count() for who, (count, _) in wanted.items()}

        def still() -> list[str]:
            return [who for who, (count, step) in wanted.items() if count() < before[who] + step]

        while late := still():
            if time.monotonic() > began_s + MOVES_WITHIN_S:
                raise AssertionError(f"within {MOVES_WITHIN_S:g} s nothing moves for {', '.join(late)}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began_s

    async def status(self) -> TierStatus | None:
        """What is told of the bucket; None while nobody answers."""
        try:
            return await self.lift.tier_status()
        except LiftError:
            return None

    async def is_told(self, states: set[str], timeout_s: float, *, with_room: bool = False) -> None:
        """Wait until people are told that the store is in one of these states.

        Args:
            states: of the node that is worst off.
            timeout_s: how long to wait.
            with_room: also until they are told how long the disks last.
        """
        last: list[Any] = [None]

        async def look() -> bool:
            status = await self.status()
            if status is not None:
                last[0] = (status.state, status.message, status.room_s)
            if status is None or status.state not in states:
                return False
            return (status.room_s is not None and status.room_s > 0) or not with_room

        try:
            await eventually(look, timeout_s)
        except AssertionError:
            text = f"within {timeout_s:g} s nobody says that the store is {states}: {last[0]}"
            raise AssertionError(text) from None
        self.history.happened(f"the status says {last[0]}")

    async def rows(self, stream: str) -> list[dict[str, Any]]:
        """What is told of the partitions of a stream; asked again until somebody answers."""

        async def ask() -> list[dict[str, Any]] | None:
            try:
                return (await self.lift.stream_info(stream)).raw["partitions"]
            except LiftError:
                return None

        return await eventually(ask, 30.0, f"nobody tells of {stream}")

    async def is_tiered(self) -> None:
        """Wait until the bucket has all that is committed."""

        async def look() -> list[str] | None:
            waiting = []
            for stream in STREAMS:
                for row in await self.rows(stream):
                    end, mark = row.get("tiered_end") or 0, row.get("high_watermark")
                    if end != mark:
                        waiting.append(f"{stream}[{row['partition']}]: {end} of {mark}")
            return waiting or None

        try:
            await until_through(look, STALLED_S, "the bucket does not get all")
        except AssertionError as error:
            status = await self.status()
            told = None if status is None else (status.state, status.message, status.raw["partitions"])
            error.add_note(f"the status says {told}")
            raise

    async def finish(self) -> None:
        """Everything that was sent is acknowledged, and whoever reads has read it."""
        self.history.happened("no more messages")
        for publisher in self.publishers:
            await publisher.finish()
        self.history.happened("all are acknowledged")
        await settled(self.lift, STREAMS)
        ends = {stream: sum(row["high_watermark"] for row in await self.rows(stream)) for stream in STREAMS}

        def is_read() -> bool:
            return all(sum(each.next_offsets.values()) >= ends[each.stream] for each in self.consumers)

        await eventually(is_read, MOVES_WITHIN_S, "consumers do not come to the end")
        for consumer in self.consumers:
            await consumer.finish()
        self.history.happened("all are read")

    async def cancel(self) -> None:
        """Whatever state they are in."""
        for each in (*self.publishers, *self.consumers):
            await each.cancel()

    # -- what must be so at the end

    async def judge(self) -> list[Violation]:
        """Everything that is wrong at the end."""
        await self.is_tiered()
        self.history.happened("all are in the bucket")
        hot = await self._hot()
        found = list(check(self.history, hot))
        self.history.happened("all were read from the nodes")
        cold, problems = await asyncio.to_thread(self._look_at_bucket)
        found += problems
        found += [
            Violation("bucket differs", f"{stream}[{partition}] at offset {_first_difference(cold[key], hot[key])}", ())
            for key in hot
            for stream, partition in [key]
            if cold[key] != hot[key]
        ]
        assert (await self.rows("one"))[0]["local_start"], "everything is still on disk, so that nothing was shown"
        return found + await self._orphans()

    async def _hot(self) -> Contents:
        """What nodes give to a consumer that begins at the first record."""
        found: Contents = {(stream, number): [] for stream, count in STREAMS.items() for number in range(count)}
        for stream in STREAMS:
            for message in await take(self.lift.consume(stream, stop="latest"), timeout_s=120.0):
                contents = found[stream, message.partition]
                assert message.offset == len(contents), f"{message} where {len(contents)} was to come"
                contents.append(message.value or b"")
        return found

    def _paths(self) -> Iterable[tuple[tuple[str, int], PartitionPath]]:
        for stream, count in STREAMS.items():
            for number in range(count):
                yield (stream, number), PartitionPath(self.uuids[stream], number)

    def _look_at_bucket(self) -> tuple[Contents, list[Violation]]:
        """What is in the bucket alone, and what the verifier and the scrubber find."""
        contents: Contents = {}
        found = []
        for (stream, number), path in self._paths():
            named = f"{stream}[{number}]"
            for report in (verify(self.store, path), scrub(self.store, path)):
                found += [Violation("bucket", f"{named}: {each.kind}: {each.text}", ()) for each in report.problems]
            version = open_version(self.store, path)
            assert version is not None, f"the bucket has nothing of {named}"
            rows = [row for batch in version.read() for row in zip(*_columns(batch), strict=True)]
            offsets = [offset for offset, _ in rows]
            if offsets != list(range(version.end)):
                found.append(Violation("bucket", f"{named}: {len(offsets)} offsets, and it ends at {version.end}", ()))
            contents[stream, number] = [value or b"" for _, value in rows]
        return contents, found

    async def _orphans(self) -> list[Violation]:
        """What nobody names, was there when all was over, and stays after the grace period."""
        left: set[str] = await asyncio.to_thread(self._unnamed)
        self.history.happened(f"{len(left)} objects that nobody names")
        try:
            await eventually(lambda: self._are_gone(left), GRACE_S + COLLECTED_WITHIN_S)
        except AssertionError:
            return [Violation("orphan", f"{key} is named by nobody, and stays", ()) for key in sorted(left)]
        return []

    async def _are_gone(self, left: set[str]) -> bool:
        left &= await asyncio.to_thread(self._unnamed)
        return not left

    def _unnamed(self) -> set[str]:
        found = {key for _, path in self._paths() for key in verify(self.store, path).orphans}
        named = set()
        for node in self.kit.nodes:
            loaded = SetManifestFile(self.store, node, new_id=str).load()
            if loaded is not None:
                named |= {set_object_key(node, each.name) for each in loaded.manifest.objects}
                named |= {set_pack_key(node, each.name) for each in loaded.manifest.packs}
            found |= {entry.key for kind in ("objects", "pages") for entry in self.store.list(f"sets/{node}/{kind}/")}
        return found - named


def _columns(batch: Any) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in ("offset", "value")]


def _first_difference(one: list[bytes], other: list[bytes]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


@asynccontextmanager
async def running_crew(home: Path, history: History, *, rate: float) -> AsyncIterator[TierCrew]:
    """Three nodes, a store, a gate between them, and load; gone afterwards.

    The last node's disk is one of its own where that can be: how long it lasts is nobody else's doing.
    """
    with seaweedfs(home / "s3") as s3, StoreGate(s3.endpoint) as gate:
        kit = ClusterKit(
            home,
            toml=tier_toml(SimpleNamespace(url=s3.url, endpoint=gate.endpoint, prefixes=s3.prefixes), PREFIX, **SIZES),
        )
        for process in kit.nodes.values():
            process.environment |= s3.environment
        disk = SmallDisk(kit.nodes["node-3"].data, SMALL_DISK_BYTES)
        try:
            await asyncio.to_thread(kit.start)
            async with kit.connect() as lift:
                crew = TierCrew(kit, lift, s3, gate, history, rate)
                try:
                    await crew.start()
                    yield crew
                except BaseException:
                    print("\n".join(timeline(history, [at_s for at_s, _ in history.events[-EVENTS_SHOWN:]], {})))
                    raise
                finally:
                    gate.become(Weather.FINE)
                    await crew.cancel()
        finally:
            await asyncio.to_thread(kit.close)
            disk.close()
