"""Three nodes and a bucket that fails, step by step at random, against a plain list of records.

The nodes run the jobs of the tier worker and nothing else; the bucket is in memory, its requests get lost, arrive
twice or late. A node may die at any of them, or fall asleep in the middle of a job: others go on, for hours perhaps,
and then it wakes and goes on as if nothing had been. Where it happens is biased towards the seams between the phases
of jobs, and what happens while somebody sleeps towards what is dangerous then.
A failure names its seed: `run(seed)` does exactly the same again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from liftpy_bucket.errors import (
    LineageError,
    ObjectMissingError,
    OutcomeUnknownError,
    OvertakenError,
    SealedError,
    StoreUnavailableError,
)
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import PinRefusedError, Pins
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.upkeep.forking import fork
from liftpy_bucket.upkeep.sealing import seal
from liftpy_server.tier.jobs.parts.context import Context
from support.fault_store import Crash, Fault, FaultStore, plan_random
from support.plain_worker import do_plain
from support.tier_world_log import START_NS, WorldLog
from support.tier_world_nodes import Doing, Fork, Job, Node, Point, Trouble
from support.tier_world_reading import Reading
from support.tier_world_watch import WatchedStore

if TYPE_CHECKING:
    from pathlib import Path

    from support.fault_store import Request

__all__ = ["World", "run"]

PATH = PartitionPath("0123456789abcdef" * 2, 0)
GRACE_NS = 3_600 * 10**9
S = 10**9
MAY_FAIL = (OvertakenError, OutcomeUnknownError, PinRefusedError, StoreUnavailableError)
WEIGHTS = {
    "publish": 5, "upload": 6, "upload_set": 6, "claim": 1, "merge": 3, "collect_sets": 2, "compact": 3,
    "retain": 2, "collect": 3, "elect": 2, "restart": 1, "wait": 2, "forking": 0.4, "pin": 0.6, "unpin": 0.4,
    "many": 0.1, "seal": 0.02, "plot": 4,
}  # fmt: skip
WEIGHTS_ASLEEP = WEIGHTS | {
    "wait": 6, "collect": 6, "collect_sets": 4, "retain": 4, "elect": 3, "forking": 1.5, "pin": 2, "many": 0, "plot": 0,
    "wake": 12,
}  # fmt: skip
PLOTS = (  # who falls asleep, before which request, and what happens until it wakes
    (("upload", "upload", "merge", "compact", "upload_set"), ("replace", "ROOT"), ("pause", "collect", "collect_sets")),
    (("upload_set", "collect_sets"), ("replace", "ROOT"), ("collect_sets", "collect_sets", "upload_set")),
    (("retain", "retain", "collect"), ("replace", "ROOT"), ("forking", "pin", "collect", "upload")),
    (("retain", "collect", "collect_sets"), ("delete", ""), ("forking", "pin", "upload", "merge", "collect")),
    (("merge", "compact", "retain", "upload"), ("replace", "ROOT"), ("elect", "claim", "upload")),
    (("merge", "compact", "retain", "upload"), ("get", "ROOT"), ("elect", "claim", "upload")),
)
OF_THE_WORLD = frozenset({"publish", "elect", "pause", "wait", "wake", "unpin"})
UPLOADS = frozenset({"upload", "upload_set"})
PIN_TTL_NS = 10**7 * 10**9


class World:
    """See the module.

    Args:
        seed: of everything that is random.
        home: for segment files.
        plot: the only one of PLOTS that comes to pass; None for all.
    """

    def __init__(self, seed: int, home: Path, plot: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.plots = PLOTS if plot is None else (PLOTS[plot],)
        self.home = home
        self.now_ns = START_NS + 1_000 * S
        self.store = WatchedStore(lambda: self.now_ns, GRACE_NS)
        self.store.paths.append(PATH)
        self.rate = self.rng.choice([0, 0.02, 0.08, 0.2])
        self.object_bytes = self.rng.choice([12_000, 24_000, 1 << 20])
        self.steps: list[str] = []
        self.ids = 0
        self.log = WorldLog(home / "0.log", tombstones=self.rng.choice([0, 5]), keys=self.rng.choice([3, 11, 1000]))
        self.epoch = 0
        self.sleepiness = self.rng.choice([0.1, 0.3, 0.5])
        hashes = [[*RecordHash][(seed + number) % len(RecordHash)] for number in range(3)]
        self.nodes = [self._node(f"n{number + 1}", record_hash) for number, record_hash in enumerate(hashes)]
        self.adopted: set[str] = set()
        self.leader = self.nodes[0]
        self.leader.epoch = 0
        self.reading = Reading(self.store, PATH, self.log)
        self.forks: list[Fork] = []
        self.held_starts: list[int] = []  # of ranges that are pinned, or were to be

    def _node(self, name: str, record_hash: str) -> Node:
        faults = [fault for fault in Fault if fault is not Fault.SLOW]
        store = FaultStore(self.store)
        node = Node(name, store, None, record_hash)
        at_random = plan_random(self.rng, self.rate, faults)
        store.plan = lambda request: _as_may_be(request, self._fault(node, request) or at_random(request))
        store.before = lambda request: self._before(node, request)
        store.after = lambda request: self._after(node, request)
        self._start(node)
        return node

    def _start(self, node: Node) -> None:
        node.context, node.end = self._context(node), None

    def _context(self, node: Node) -> Context:
        skew_ns = self.rng.choice([-600, 0, 600]) * S
        return Context(
            node.store,
            new_id=lambda: self._id_for(node),
            now_ns=lambda: self.now_ns + skew_ns,
            memory_bytes_max=1 << 30,
            object_bytes=self.object_bytes,
            grace_ns=GRACE_NS,
        )

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:032x}"

    def _id_for(self, node: Node) -> str:
        given = self.new_id()
        if node.job is not None:
            node.job.ids.add(given)
            self.store.jobs[given] = node.job
        return given

    @property
    def sealed(self) -> bool:
        """As the last look found it."""
        return self.reading.sealed

    # -- what happens in the middle of a job

    def _before(self, node: Node, request: Request) -> None:
        node.asked += 1
        trouble = node.trouble
        if trouble.crash and not trouble.is_crash_after and trouble.crash.is_at(node.asked, request):
            trouble.crash = None
            raise Crash(f"before {request}")
        if trouble.sleep and node.doing and trouble.sleep.is_at(node.asked, request):
            trouble.sleep = Point.chosen(self.rng) if self.rng.random() < 0.4 else None
            self.steps.append(f"  {node.name} sleeps before {request.kind} {request.key}")
            node.is_asleep = True
            node.doing.sleep()
        self.store.acting = node.job

    def _after(self, node: Node, request: Request) -> None:
        trouble = node.trouble
        if trouble.crash and trouble.is_crash_after and trouble.crash.is_at(node.asked, request):
            trouble.crash = None
            raise Crash(f"after {request}")

    def _fault(self, node: Node, request: Request) -> Fault | None:
        trouble = node.trouble
        if trouble.fault is None or not trouble.fault.is_at(node.asked, request):
            return None
        trouble.fault = None
        return trouble.kind

    # -- steps

    def step(self) -> None:
        """One thing happens: something in the world, or a node does something, or falls asleep in it, or wakes."""
        asleep = [node for node in self.nodes if node.is_asleep]
        weights = WEIGHTS_ASLEEP if asleep else WEIGHTS
        name = self.rng.choices(list(weights), list(weights.values()))[0]
        if name == "plot":
            self._plot()
        elif name in OF_THE_WORLD:
            self._do(name, self.rng.choice(asleep or self.nodes))
        else:
            node = self.leader if self.rng.random() < 0.7 else self.rng.choice(self.nodes)
            if node.is_asleep:
                node = next((each for each in self.nodes if not each.is_asleep), node)
            self._begin(name, node)
        self.look()

    def _plot(self) -> None:
        """Something that goes wrong only if several things come together."""
        names, (kind, part), meanwhile = self.rng.choice(self.plots)
        node, other = self.leader, next(each for each in self.nodes if each is not self.leader)
        if node.end is None:
            self._do("claim", node)
        self._begin(self.rng.choice(names), node, Trouble(sleep=Point(0, kind, part)))
        for name in meanwhile:
            if self.rng.random() < 0.8:
                self.look()
                if name in OF_THE_WORLD:
                    self._do(name, other)
                else:
                    self._begin(name, other if self.leader.is_asleep else self.leader, Trouble())
        self.look()
        if self.rng.random() < 0.7:
            self._do("wake", node)

    def look(self) -> None:
        """What was late arrives, and everything is read."""
        for each in self.nodes:
            each.store.deliver_late()
            self.reading.may_compact |= each.compacts
        self.reading.check()
        for each in self.forks:
            each.reading.check()

    def _begin(self, name: str, node: Node, trouble: Trouble | None = None) -> None:
        if node.is_asleep:
            if name == "restart":
                self._kill(node)
            else:
                self._wake(node)
            return
        node.asked, node.trouble = 0, trouble or Trouble.chosen(self.rng, self.sleepiness, self.rate)
        node.overlaps = node.compacts = False
        for each in self.nodes:
            each.overlaps |= each.is_asleep
        if node.trouble.sleep is None or name == "many":
            self._do(name, node)
            return
        node.doing = Doing(lambda: self._do(name, node))
        self._go(node)

    def _go(self, node: Node) -> None:
        if node.doing.go():
            node.doing = None

    def _wake(self, node: Node) -> None:
        if not node.is_asleep:
            return
        self.steps[-1] = f"{node.name} wakes"
        node.is_asleep = False
        for each in self.nodes:
            each.overlaps |= each.is_asleep
        self._go(node)

    def _kill(self, node: Node) -> None:
        if node.doing is not None:
            node.is_asleep = False
            doing, node.doing = node.doing, None
            doing.kill()

    def _do(self, name: str, node: Node) -> None:
        place = len(self.steps)
        self.steps.append(f"{node.name} {name}")
        try:
            getattr(self, f"_{name}")(node)
        except Crash:
            self.steps[place] += " crashed"
            node.incarnation += 1
            self._start(node)
        except (*MAY_FAIL, LineageError, SealedError) as error:
            self.steps[place] += f" {type(error).__name__}"
            node.end = None
        except ObjectMissingError:
            self.steps[place] += " missing"
            assert node.overlaps or node.name in self.adopted, "something is gone, and nobody else was there"
            self.adopted.discard(node.name)  # by now it knows
            node.end = None

    def call(self, node: Node, job: str, path: PartitionPath | None = PATH, /, **arguments: Any) -> dict[str, Any]:
        node.job = Job(job, arguments.get("epoch"))
        try:
            return do_plain(node.context, job, (path._asdict() if path else {}) | arguments)
        except (OvertakenError, LineageError, SealedError):
            if job in UPLOADS:
                self.store.deny(node.job)
            raise
        finally:
            node.job = None

    def _publish(self, _node: Node) -> None:
        self.log.append(self.rng.choice([1, 3, 12]), self.epoch)

    def _claim(self, node: Node) -> None:
        if node.epoch < 0:
            return
        node.end = None
        epochs = self.log.epochs_until(node.epoch)
        told = {"epoch": node.epoch, "node": node.name, "epochs": epochs}
        try:
            answer = self.call(node, "claim", log_start=0, create=True, record_hash=node.record_hash, **told)
        except LineageError:
            assert told["epoch"] != self.epoch, "the leader can not claim"
            raise
        node.record_hash = answer["record_hash"]
        self._told(node, told["epoch"], answer["end"])

    def _range(self, node: Node) -> tuple[int, int] | None:
        """What a node has to upload next, after it claimed."""
        if node.epoch < 0:
            return None
        if node.end is None:
            self._claim(node)
        if node.end is None:
            return None
        end = min(self.log.end_of(node.epoch), node.end + self.rng.choice([1, 4, 20, 100]))
        return (node.end, end) if end > node.end else None

    def _upload(self, node: Node) -> None:
        todo = self._range(node)
        if todo is None:
            return
        base, end = todo
        epochs, slices = self.log.epochs_until(node.epoch), self.log.slices(base, end)
        epoch = node.epoch
        self.call(node, "upload", epoch=epoch, epochs=epochs, base=base, end=end, slices=slices, keeps_replies=False)
        self._told(node, epoch, end)
        self.reading.acked(end)

    def _told(self, node: Node, epoch: int, end: int) -> None:
        """The bucket goes up to `end`, says a job of a leadership; one that is over meanwhile may be wrong."""
        node.end = end if node.epoch == epoch else None
        if epoch == self.epoch:
            self.reading.acked(end)

    def _many(self, node: Node) -> None:
        for _ in range(70):
            self._publish(node)
            self._upload(node)

    def _upload_set(self, node: Node) -> None:
        todo = self._range(node)
        if todo is None or self.sealed:
            return
        base, end = todo
        member = {"tier_epoch": node.epoch, "base": base, "end": end, "keeps_replies": False}
        member |= PATH._asdict() | {"slices": self.log.slices(base, end), "record_hash": node.record_hash}
        epoch = node.epoch
        self.call(node, "upload_set", None, node=node.name, incarnation=node.incarnation, members=[member])
        self._told(node, epoch, end)

    def _merge(self, node: Node) -> None:
        if node.epoch >= 0 and self.reading.is_there:
            self.call(node, "merge", epoch=node.epoch)

    def _compact(self, node: Node) -> None:
        if node.epoch < 0 or not self.reading.is_there:
            return
        node.compacts = True
        retention_ns = self.rng.choice([0, 2_000 * S])
        lag = {"min_compaction_lag_ns": 0, "delete_retention_ns": retention_ns}
        self.call(node, "compact", epoch=node.epoch, clean_end=self.reading.end, **lag)

    def _retain(self, node: Node) -> None:
        if node.epoch < 0 or not self.reading.is_there or (not node.trouble.sleep and self.rng.random() < 0.6):
            return
        start = min(self.reading.start + self.rng.choice([1, 10, 60]), self.reading.end)
        self.reading.wants(start)
        told = self.call(node, "retain", epoch=node.epoch, start=start)["start"]
        assert told >= min((start, *self.held_starts))

    def _collect(self, node: Node) -> None:
        self.call(node, "collect", grace_ns=GRACE_NS)
        for each in self.forks:
            self.call(node, "collect", each.path, grace_ns=GRACE_NS)

    def _collect_sets(self, node: Node) -> None:
        """The node does, or somebody else in its place."""
        others = [each for each in self.nodes if each.is_asleep and each is not node]
        if not others or self.rng.random() < 0.5:
            self.call(node, "collect_sets", None, node=node.name, incarnation=node.incarnation)
            return
        stopped = self.rng.choice(others)
        self.adopted.add(stopped.name)
        mine, node.context = node.context, self._context(node)
        try:
            self.call(node, "collect_sets", None, node=stopped.name, incarnation=stopped.incarnation)
        finally:
            node.context = mine

    def _elect(self, _node: Node) -> None:
        """The other one leads, or the same again; whoever led is not told."""
        self.epoch += 1
        self.leader = self.rng.choice(self.nodes)
        self.leader.epoch, self.leader.end = self.epoch, None
        self.log.begin(self.epoch)

    def _restart(self, node: Node) -> None:
        node.incarnation += 1
        self._start(node)

    def _wait(self, _node: Node) -> None:
        self.now_ns += self.rng.choice([S, 600 * S, 2_000 * S, GRACE_NS + 1_300 * S])

    def _pause(self, _node: Node) -> None:
        """For longer than the grace period."""
        self.now_ns += GRACE_NS + 1_300 * S

    def _seal(self, node: Node) -> None:
        if self.reading.is_there:
            seal(node.store, PATH, new_id=self.new_id)

    def _forking(self, node: Node) -> None:
        if not self.reading.is_there or len(self.forks) == 2:
            return
        path = PartitionPath(self.new_id(), 0)
        self.store.paths.append(path)
        made = fork(node.store, PATH, path, epoch=self.epoch, node=node.name, new_id=self.new_id)
        log = self.log.copy(self.home / f"{path.uuid}.log", made.end)
        reading = self.reading.forked(path, log, made.loaded.root)
        self.forks.append(Fork(path, log, reading, self.epoch))

    def _pin(self, node: Node) -> None:
        """A version, or a range of records."""
        if not self.reading.is_there or len(self.reading.pins) == 3:
            return
        pins = Pins(node.store, PATH, new_id=self.new_id, now_ns=node.context.now_ns)
        if self.rng.random() < 0.6:
            pin = pins.hold_version("reader", PIN_TTL_NS)
        else:
            start = self.rng.randint(self.reading.start, self.reading.end)
            self.held_starts.append(start)
            pin = pins.hold_range("reader", start, start + 20, PIN_TTL_NS)
        self.reading.pins.append(pin)
        self.store.pins = self.reading.pins

    def _unpin(self, _node: Node) -> None:
        if self.reading.pins:
            pin = self.reading.pins.pop(0)
            Pins(self.store, PATH, new_id=self.new_id, now_ns=lambda: self.now_ns).release(pin)

    # -- the end

    def heal(self) -> Node:
        """Nothing fails any more; a new leader moves all there is."""
        for node in self.nodes:
            node.store.plan, node.trouble = None, Trouble()
            while node.is_asleep:
                self._do("wake", node)
                self.look()
            self._restart(node)
        while self.reading.pins:
            self._unpin(node)
        self.now_ns += PIN_TTL_NS  # of those, too, of whose pins nobody was told
        self._elect(self.leader)
        self.log.append(3, self.epoch)
        node = self.leader
        self._claim(node)
        while not self.sealed and node.end < self.log.end:
            self._upload(node)
        self.steps.append("healed")
        return node

    def end(self) -> None:
        """No thread stays."""
        for node in self.nodes:
            self._kill(node)

    def tidy(self, node: Node) -> None:
        """Everything that nobody wants goes."""
        self.now_ns += GRACE_NS + 1_300 * S
        if not self.sealed:
            self._merge(node)
        for each in self.nodes * 2:
            self._collect_sets(each)
            self._collect(each)
            self.now_ns += GRACE_NS + 1_300 * S


def _as_may_be(request: Request, fault: Fault | None) -> Fault | None:
    """Whoever takes something away relies on a list of all pins, so stores without one are refused (`probe`)."""
    return None if fault is Fault.STALE and request.key.endswith("/pins/") else fault


def run(seed: int, home: Path, steps: int = 40, plot: int | None = None) -> World:
    """One history. Returns the world as it is at its end."""
    world = World(seed, home, plot)
    try:
        for _ in range(steps):
            world.step()
        node = world.heal()
        world.reading.check()
        world.tidy(node)
        world.reading.check_finally(world)
    except BaseException as error:
        error.add_note(f"seed {seed}\n" + "\n".join(world.steps[-40:]))
        raise
    finally:
        world.end()
    return world
