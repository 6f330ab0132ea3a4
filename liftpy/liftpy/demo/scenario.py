"""The demonstration: store the flights, kill the leader of their stream on the way, replay them, check every one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import nats

from liftpy.cli.units import show_bytes
from liftpy.demo.bucket import LOCAL_SETTINGS, wait_tiered
from liftpy.demo.check import Record, check_records
from liftpy.demo.cluster import open_cluster
from liftpy.demo.flights import load_flights
from liftpy.demo.pipeline import run_pipeline
from liftpy.demo.publish import AckedPublisher, Term
from liftpy.demo.watch import Watch
from liftpy_client.client import connect_as
from liftpy_client.connection.nats_options import NatsOptions
from liftpy_envelope.errors import LiftError
from liftpy_envelope.subject import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy.demo.bucket import Tiered
    from liftpy.demo.cluster import DemoCluster
    from liftpy.demo.flights import Flight
    from liftpy.demo.pipeline import Pipeline
    from liftpy.demo.view import DemoView
    from liftpy.demo.watch import Seen
    from liftpy_client.admin.stream_settings import StreamSettings
    from liftpy_client.client import Lift

__all__ = ["DemoReport", "run_demo"]

STREAMS: Final = {"flights": "flights.>", "united": "flights.UA.*.*"}
_KILLED_STREAM: Final = "flights"
_RESTART_AFTER_S: Final = 3.0
_REPLAY_TIMEOUT_S: Final = 120.0
_TOLD_EVERY: Final = 10_000


@dataclass(slots=True)
class DemoReport:
    """What happened.

    Attributes:
        flights: Messages published, each with an ack of every stream that stores it.
        publish_s: Time from the first message to the last ack, seconds.
        killed: The node that led the stream of all flights.
        killed_after: Flights that were acknowledged until then.
        leader_after: The node that led it then.
        next_ack_s: Time from the kill to the next ack of that stream, seconds.
        restart_s: Time from starting the node again until it was up, seconds.
        in_sync_s: Time from starting the node again until all of its copies were in sync, seconds.
        first_sending: Flights that were stored when they were sent for the first time.
        stored_again: Flights that were stored when they were sent again.
        duplicates: Flights that were sent again, and were there already.
        resent: How often a message was sent again.
        lost, doubled: Flights missing in a stream, or there twice.
        late: Flights that stand behind later ones of their subject in the stream of all, since they were sent again.
        acks: How many acks each leader sent, by stream, in the order of the leaders.
        streams: What was replayed.
        bucket: URL of the bucket; "" without one.
        tiered_s: Time from the last ack until the bucket had everything and the disks had let go of it, seconds.
        bucket_requests: How many requests to the bucket that took in all.
        pipeline: What the pipeline on Spark gave, as `run_pipeline` says; empty where none was asked for.
    """

    nodes: int
    flights: int = 0
    publish_s: float = 0.0
    killed: str = ""
    killed_after: int = 0
    leader_after: str = ""
    next_ack_s: float = 0.0
    restart_s: float = 0.0
    in_sync_s: float = 0.0
    first_sending: int = 0
    stored_again: int = 0
    duplicates: int = 0
    resent: int = 0
    lost: int = 0
    doubled: int = 0
    late: int = 0
    acks: list[dict[str, Any]] = field(default_factory=list)
    streams: list[dict[str, Any]] = field(default_factory=list)
    bucket: str = ""
    tiered_s: float = 0.0
    bucket_requests: int = 0
    pipeline: dict[str, Any] = field(default_factory=dict)


async def run_demo(view: DemoView, nodes: int = 3, *, s3: bool = False, pipeline: Pipeline | None = None) -> DemoReport:
    """Run the demonstration.

    Args:
        view: Shows it.
        nodes: How many; one is no cluster, and is killed all the same.
        s3: S3 server with a bucket, from which the replay comes.
        pipeline: What is run on the flights then; it needs the bucket.

    Raises:
        CheckFailedError: a record is missing, there twice, changed, or not in its place; or the pipeline gave what the
            flights do not.
        LiftError: it could not be run.
    """
    view.work("reading the flights")
    flights = await asyncio.get_running_loop().run_in_executor(None, load_flights)
    report = DemoReport(nodes, flights=len(flights))
    async with open_cluster(nodes, view.event, s3=s3) as cluster:
        report.bucket = cluster.bucket or ""
        view.work("starting")
        await cluster.start()
        async with connect_as(NatsOptions(url=cluster.url, timeout_s=2.0), name="demo") as lift:
            await _Run(lift, cluster, flights, view, report).run()
            if pipeline is not None:
                report.pipeline = await run_pipeline(pipeline, lift, cluster, flights, view)
    return report


class _Run:
    """One run of it."""

    def __init__(
        self, lift: Lift, cluster: DemoCluster, flights: Sequence[Flight], view: DemoView, report: DemoReport
    ) -> None:
        self._lift = lift
        self._cluster = cluster
        self._flights = flights
        self._view = view
        self._report = report
        self._watch = Watch(lift, view.seen)
        self._half_way = asyncio.Event()
        self._tiered: dict[str, Tiered] = {}

    async def run(self) -> None:
        for node_id in self._cluster.nodes:
            self._show_up(node_id)
        for name, subject in STREAMS.items():
            settings: StreamSettings = {"replicas": self._report.nodes}
            if self._report.bucket:
                settings |= LOCAL_SETTINGS
            await self._lift.create_stream(name, subject=subject, **settings)
        seen = await self._watch.until("all copies are in sync", _are_whole)
        leaders = ", ".join(f"[bold]{stream.leader}[/] leads {name}" for name, stream in seen.items())
        count = self._report.nodes
        self._view.event(f"{count} nodes, {count} copies of each stream: {leaders}" if count > 1 else "one node")
        publisher = await self._publish()
        await self._watch.until("all copies are the same", _are_level)  # the last picture of them stays
        self._tell_acks(publisher)
        if self._report.bucket:
            await self._move_to_bucket()
        for name, subject in STREAMS.items():
            await self._replay(name, subject, publisher.offsets[name], publisher.sent_again)

    def _show_up(self, node_id: str) -> None:
        self._view.process(node_id, f"[green]up[/], pid {self._cluster.nodes[node_id].pid}")

    async def _publish(self) -> AckedPublisher:
        total = len(self._flights)
        self._view.work("publishing with an ordinary nats-py client", total)
        client = await nats.connect(self._cluster.url, name="flights publisher")
        publisher = AckedPublisher(client, self._flights, _streams_of, self._on_progress)
        started = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch.run())
                failing_over = group.create_task(self._fail_over(publisher))
                try:
                    await publisher.run()
                    self._report.publish_s = time.monotonic() - started
                    self._view.done(total)
                    self._half_way.set()
                    await failing_over
                finally:
                    self._watch.stop()
        except ExceptionGroup as errors:
            raise _first_of(errors) from None
        finally:
            await client.close()
        return publisher

    def _on_progress(self, acked: int) -> None:
        self._view.done(acked)
        if acked >= len(self._flights) // 2:
            self._half_way.set()

    async def _fail_over(self, publisher: AckedPublisher) -> None:
        """Half-way: kill the leader, see who takes over, start it again, and wait until it is in sync."""
        await self._half_way.wait()
        streams = await self._watch.until("the streams have leaders", _have_leaders)
        leader, epoch = streams[_KILLED_STREAM].leader, streams[_KILLED_STREAM].epoch
        assert leader is not None, "that was waited for"
        killed_at = time.monotonic()
        await self._cluster.nodes[leader].kill()
        report = self._report
        report.killed, report.killed_after = leader, publisher.acked
        self._view.process(leader, "[bold red]killed[/]")
        self._view.event(
            f"[bold red]SIGKILL[/] to [bold]{leader}[/], the leader of {_KILLED_STREAM}, "
            f"after {publisher.acked:,} acknowledged flights"
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._see_next_leader(publisher, epoch, killed_at))
            group.create_task(self._start_again(leader))

    async def _see_next_leader(self, publisher: AckedPublisher, epoch: int, killed_at: float) -> None:
        while (term := _first_term_after(publisher, epoch)) is None:
            if publisher.acked == len(self._flights):
                return  # everything was acknowledged before the leader was gone
            await asyncio.sleep(0.01)  # the publisher gives up when no leader ever acknowledges anything
        report = self._report
        report.next_ack_s = publisher.first_ack_at[term] - killed_at
        await self._watch.until(f"someone leads {_KILLED_STREAM}", lambda _: term in self._watch.leaders)
        leader = report.leader_after = self._watch.leaders[term]
        self._view.event(
            f"[bold]{leader}[/] leads {_KILLED_STREAM} now; its first ack came "
            f"[bold green]{report.next_ack_s:.2f} s[/] after the kill"
        )

    async def _start_again(self, node_id: str) -> None:
        report = self._report
        if report.nodes > 1:
            await asyncio.sleep(_RESTART_AFTER_S)
        started = time.monotonic()
        self._view.process(node_id, "[yellow]starting[/]")
        await self._cluster.start_again(node_id)
        report.restart_s = time.monotonic() - started
        self._show_up(node_id)
        self._view.event(f"[bold]{node_id}[/] was started again, and is up after {report.restart_s:.1f} s")
        await self._watch.until("all copies are in sync again", _are_whole)
        report.in_sync_s = time.monotonic() - started
        if report.nodes > 1:
            self._view.event(
                f"[bold]{node_id}[/] has what it missed: all copies are in sync after {report.in_sync_s:.1f} s"
            )

    def _tell_acks(self, publisher: AckedPublisher) -> None:
        report = self._report
        report.first_sending = publisher.acked - publisher.stored_again - publisher.known
        report.stored_again, report.duplicates = publisher.stored_again, publisher.known
        report.resent = publisher.resent
        report.acks = [
            {"stream": term.stream, "epoch": term.epoch, "leader": self._watch.leaders.get(term), "acks": count}
            for term, count in sorted(publisher.acks.items())
        ]
        self._view.event(f"all {report.flights:,} flights are acknowledged, {report.publish_s:.1f} s after the first")

    async def _move_to_bucket(self) -> None:
        """Wait until what is to be replayed is in the bucket, and not on the disks any more."""
        report = self._report
        started = time.monotonic()
        self._view.work("moving history to the bucket")
        self._tiered, report.bucket_requests = await wait_tiered(self._lift, STREAMS)
        report.tiered_s = time.monotonic() - started
        left = ", ".join(f"{name} from {tiered.local_start:,} on" for name, tiered in self._tiered.items())
        stored = sum(tiered.stored_bytes for tiered in self._tiered.values())
        self._view.event(
            f"the bucket has all of it, [bold]{show_bytes(stored)}[/] with {report.bucket_requests:,} requests; "
            f"the disks have only {left}"
        )

    async def _replay(self, name: str, subject: str, acked_at: dict[int, int], sent_again: set[int]) -> None:
        """Replay a stream from its beginning and compare every record with its flight."""
        expected = {number for number, flight in enumerate(self._flights) if matches(subject, flight.subject)}
        self._view.work(f"replaying {name}", len(expected))
        started = time.monotonic()
        try:
            async with asyncio.timeout(_REPLAY_TIMEOUT_S):
                records = await self._read(name)
        except TimeoutError:
            raise LiftError(f"{name} could not be replayed within {_REPLAY_TIMEOUT_S:g} s") from None
        elapsed = time.monotonic() - started
        self._view.work(f"checking {name}")
        found = await asyncio.to_thread(check_records, name, records, self._flights, expected, acked_at, sent_again)
        self._report.lost += found["lost"]
        self._report.doubled += found["doubled"]
        self._report.late = max(self._report.late, found["late"])
        details = await self._lift.stream_info(name)
        self._report.streams.append(
            {
                "name": name,
                "subject": subject,
                "records": len(records),
                "bytes": details.bytes,
                "replay_s": elapsed,
                "gaps": len(details.raw["gaps"]),
            }
        )
        came = ""
        if tiered := self._tiered.get(name):
            self._report.streams[-1] |= {"from_bucket": tiered.local_start, "stored_bytes": tiered.stored_bytes}
            came = f" ({tiered.local_start:,} of them from the bucket)"
        self._view.event(f"{name}: {len(records):,} records replayed in {elapsed:.1f} s{came}, and every one checked")

    async def _read(self, name: str) -> list[Record]:
        records: list[Record] = []
        async for message in self._lift.consume(name, start="earliest", stop="latest"):
            number = message.headers.get("Nats-Msg-Id", "")
            records.append(Record(message.offset, message.subject, number, message.value))
            if not len(records) % _TOLD_EVERY:
                self._view.done(len(records))
        return records


@cache
def _streams_of(subject: str) -> frozenset[str]:
    return frozenset(name for name, pattern in STREAMS.items() if matches(pattern, subject))


def _are_whole(streams: dict[str, Seen]) -> bool:
    return all(stream.is_whole for stream in streams.values())


def _are_level(streams: dict[str, Seen]) -> bool:
    return all(copy.lag == 0 for stream in streams.values() for copy in stream.copies.values())


def _have_leaders(streams: dict[str, Seen]) -> bool:
    return all(stream.leader is not None for stream in streams.values())


def _first_term_after(publisher: AckedPublisher, epoch: int) -> Term | None:
    terms = (term for term in publisher.first_ack_at if term.stream == _KILLED_STREAM and term.epoch > epoch)
    return min(terms, default=None)


def _first_of(errors: ExceptionGroup) -> Exception:
    first: Exception = errors.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
