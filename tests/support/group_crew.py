"""A group of processes on a cluster, published to and disturbed; and what is wrong when all is over."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from liftpy_client.errors import LiftError
from liftpy_client.group.offsets import committed
from liftpy_envelope.group_routing import GROUPS_STREAM, partition_of_group
from support.cluster import eventually
from support.cluster_kit import create, leader_of, partitions, settled
from support.group_history import check, figures, tell, tell_history
from support.group_log import read_group
from support.group_worker import WorkerProcess
from support.history import History, Violation
from support.recorded_load import RecordedPublisher
from support.replica_files import check_replicas

if TYPE_CHECKING:
    from collections.abc import Iterator

    import liftpy
    from support.cluster_kit import ClusterKit
    from support.group_history import Figures

STREAM = "orders"
GROUP = "billing"
LOOK_S = 0.05
ASK_S = 0.25
HANDLING_S = 0.002  # long enough that a commit, a signal or a rebalance finds a message in hand


class Disturbance(NamedTuple):
    """Something that may move partitions."""

    at_s: float
    kind: str


class Crew:
    """See the module.

    Args:
        kit: the cluster, which runs.
        lift: a client.
        partition_count: of the stream.
        session_s: of members that are not static; these have thrice as long.
        interval_s: between commits.
        rate: messages per second of each of two publishers.

    Attributes:
        history: of what was published, and of what happened.
        workers: all that there ever were, by name.
        disturbances: in the order of time.
        asked: what was said to be committed: when, by partition.
    """

    def __init__(
        self,
        kit: ClusterKit,
        lift: liftpy.Lift,
        partition_count: int,
        *,
        session_s: float = 3.0,
        interval_s: float = 0.5,
        rate: float = 75.0,
    ) -> None:
        self.kit = kit
        self.lift = lift
        self.history = History(time.time)
        self.workers: dict[str, WorkerProcess] = {}
        self.disturbances: list[Disturbance] = []
        self.asked: list[tuple[float, dict[int, int]]] = []
        self.session_s = session_s
        self._partition_count = partition_count
        self._interval_s = interval_s
        self._serving: dict[str, WorkerProcess] = {}
        subjects = 8 * partition_count
        self._publishers = [
            RecordedPublisher(kit.url, self.history, STREAM, lambda n: f"{STREAM}.{n % subjects}", who, rate=rate)
            for who in ("p", "q")
        ]
        self._fresh = dict.fromkeys(range(partition_count), 0.0)
        self._asking: asyncio.Task[None] | None = None

    # -- the crew

    def happened(self, what: str) -> None:
        """Note it."""
        self.history.happened(what)

    def disturbed(self, kind: str, what: str = "") -> None:
        """Note that something of a kind is done now."""
        self.happened(f"{kind} {what}")
        self.disturbances.append(Disturbance(time.time(), kind))

    def serving(self) -> list[WorkerProcess]:
        """Those that are to run."""
        return list(self._serving.values())

    async def all_at_work(self) -> None:
        """Wait until everybody has partitions."""

        def are_at_work() -> bool:
            self.look()
            return all(worker.owned() for worker in self.serving())

        await eventually(are_at_work, 60.0, "somebody gets no partitions")

    def add(self, instance_id: str = "") -> WorkerProcess:
        """One more."""
        name = f"{instance_id or 'member'}-{len(self.workers)}"
        session_s = 3 * self.session_s if instance_id else self.session_s
        worker = WorkerProcess(
            self.kit.home / "workers",
            name,
            self.kit.url,
            STREAM,
            GROUP,
            instance_id=instance_id,
            session_s=session_s,
            interval_s=self._interval_s,
            handling_s=HANDLING_S,
        )
        self.workers[name] = self._serving[name] = worker
        return worker

    async def kill(self, worker: WorkerProcess) -> None:
        """SIGKILL."""
        del self._serving[worker.name]
        await asyncio.to_thread(worker.kill)

    async def dismiss(self, worker: WorkerProcess) -> None:
        """SIGTERM: it leaves in good order."""
        del self._serving[worker.name]
        code = await asyncio.to_thread(worker.stop)
        if code not in {0, -signal.SIGTERM}:  # the latter when it was about to begin
            raise AssertionError(f"{worker.name} ended with {code}:\n{worker.errors()[-3000:]}")

    def check_serving(self) -> None:
        """Nobody has ended without being told to."""
        for worker in self.serving():
            if not worker.is_running:
                raise AssertionError(f"{worker.name} has ended by itself:\n{worker.errors()[-3000:]}")

    # -- the load

    async def start(self, instance_ids: list[str]) -> None:
        """Create the stream, begin to publish, and have these members, "" for one that is not static."""
        await create(self.lift, STREAM, f"{STREAM}.*", partitions=self._partition_count)
        for instance_id in instance_ids:
            self.add(instance_id)
        for publisher in self._publishers:
            publisher.start()
        begun_s = time.time()
        await self.recovered(begun_s, 60.0)
        self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        """Ask again and again what is committed."""
        while True:
            try:
                found = await committed(self.lift._session, GROUP, STREAM)
            except LiftError as error:
                self.happened(f"asked what is committed: {type(error).__name__}: {error}")
            else:
                self.asked.append((time.time(), {number: row.offset for number, row in found.items()}))
            await asyncio.sleep(ASK_S)

    def look(self) -> None:
        """Read what the members wrote down since the last look."""
        for worker in self.serving():
            for what, _at_s, *more in worker.look():
                if what == "read":
                    sent_s = self.history.publications[more[2].encode()].sent_s[0]
                    self._fresh[more[0]] = max(self._fresh[more[0]], sent_s)

    async def recovered(self, since_s: float, within_s: float) -> None:
        """Wait until of every partition a message was handled that was sent after a time."""

        def is_recovered() -> bool:
            self.look()
            return min(self._fresh.values()) > since_s

        deadline_s = time.monotonic() + within_s
        while not is_recovered():
            self.check_serving()
            late = [number for number, sent_s in self._fresh.items() if sent_s <= since_s]
            assert time.monotonic() < deadline_s, f"within {within_s:g} s nothing of partitions {late} is handled"
            await asyncio.sleep(LOOK_S)

    async def finish(self) -> None:
        """Everything is acknowledged, handled and committed; then all leave."""
        for publisher in self._publishers:
            await publisher.finish()
        goal = {place[:2] for row in self.history.publications.values() for _, place in row.acks}

        def are_handled() -> bool:
            self.look()
            handled = {(line[2], line[3]) for each in self.workers.values() for line in each.lines if line[0] == "read"}
            return goal <= handled

        await eventually(are_handled, 60.0, "not everything that was acknowledged is handled within 60 s")
        for worker in self.serving():
            await self.dismiss(worker)
            assert worker.of("left")[0][2], f"{worker.name} could not commit when it left"
        assert self._asking is not None
        assert not self._asking.done(), f"nobody asked until the end what is committed: {self._asking}"
        await self._stop_asking()

    async def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def cancel(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        await self._stop_asking()
        for publisher in self._publishers:
            await publisher.cancel()
        for worker in self.workers.values():
            worker.kill()

    async def coordinator(self) -> str:
        """The node that coordinates the group."""
        count = len(await partitions(self.lift, GROUPS_STREAM))
        return await leader_of(self.lift, GROUPS_STREAM, partition_of_group(GROUP, count))

    # -- the end

    async def judge(self) -> tuple[list[Violation], Figures]:
        """Everything that is wrong, and figures; all nodes are stopped afterwards."""
        await settled(self.lift, [STREAM, GROUPS_STREAM])
        ends = {each.partition: each.high_watermark for each in await partitions(self.lift, STREAM)}
        last = {number: row.offset for number, row in (await committed(self.lift._session, GROUP, STREAM)).items()}
        uuid = bytes.fromhex((await self.lift.stream_info(STREAM)).uuid)
        count = len(await partitions(self.lift, GROUPS_STREAM))
        await asyncio.to_thread(self.kit.stop_nodes)
        data = {name: node.data for name, node in self.kit.nodes.items()}
        log = read_group(data["node-1"], partition_of_group(GROUP, count), GROUP, uuid)
        acked = {
            (place.partition, place.offset): content.decode()
            for content, row in self.history.publications.items()
            for _, place in row.acks
        }
        stories = {name: worker.lines for name, worker in self.workers.items()}
        told = tell(stories)
        found = list(check(acked, told, log))
        found += self._check_asked()
        found += check_replicas(data, STREAM, self._partition_count)
        found += check_replicas(data, GROUPS_STREAM, count)
        found += [
            Violation("not committed", f"[{number}] ends at {end}, committed is {last.get(number)}", ())
            for number, end in ends.items()
            if end != last.get(number, 0)
        ]
        self.history.events += tell_history(stories)
        return found, figures(told, log)

    def _check_asked(self) -> Iterator[Violation]:
        """Whoever asks what is committed is never told less than before."""
        known: dict[int, tuple[float, int]] = {}
        for at_s, offsets in self.asked:
            for number, offset in offsets.items():
                before_s, before = known.get(number, (at_s, 0))
                if offset < before:
                    text = f"[{number}] was said to be committed to {before}, later to {offset}"
                    yield Violation("answer steps back", text, (before_s, at_s))
                known[number] = (at_s, max(offset, before))

    def recoveries(self) -> dict[str, list[float]]:
        """By kind of disturbance, how long it took until of every partition something new was handled, in seconds."""
        handled: dict[int, list[tuple[float, float]]] = {number: [] for number in self._fresh}
        for worker in self.workers.values():
            for what, at_s, *more in worker.lines:
                if what == "read":
                    handled[more[0]].append((at_s, self.history.publications[more[2].encode()].sent_s[0]))
        for rows in handled.values():
            rows.sort()
        found: dict[str, list[float]] = {}
        for begun_s, kind in self.disturbances:
            first = [next((at_s for at_s, sent_s in rows if sent_s > begun_s), None) for rows in handled.values()]
            if None not in first:
                found.setdefault(kind, []).append(max(first) - begun_s)
        return found

    def table(self) -> str:
        """`recoveries`, to be read."""
        lines = [f"{'all partitions handled again after':38}{'times':>6}{'median':>9}{'max':>9}"]
        rows = self.recoveries()
        for kind, found in [
            *sorted(rows.items()),
            ("all of them", [each for times in rows.values() for each in times]),
        ]:
            if found:
                lines.append(f"{kind:38}{len(found):6}{median(found):7.2f} s{max(found):7.2f} s")
        return "\n".join(lines)


async def freeze(worker: WorkerProcess, seconds: float) -> None:
    """SIGSTOP, and SIGCONT after a while."""
    with frozen(worker):
        await asyncio.sleep(seconds)


@contextmanager
def frozen(worker: WorkerProcess) -> Iterator[None]:
    """SIGSTOP, and SIGCONT in the end."""
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        if worker.is_running:
            worker.signal(signal.SIGCONT)
