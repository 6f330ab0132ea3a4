"""Two nodes and a bucket that fails, step by step at random, against a plain list of records.

The nodes run the jobs of the tier worker and nothing else; the bucket is in memory, its requests get lost, arrive
twice or late, and a node may die at any of them, or stand still in the middle of a job while the other one goes on.
A failure names its seed: `run(seed)` does exactly the same again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from liftpy_log.tier.errors import (
    LineageError,
    ObjectMissingError,
    OutcomeUnknownError,
    OvertakenError,
    SealedError,
    StoreUnavailableError,
)
from liftpy_log.tier.forking import fork
from liftpy_log.tier.layout import PartitionPath
from liftpy_log.tier.memory_store import MemoryStore
from liftpy_log.tier.sealing import seal
from liftpy_server.tiering.context import Context
from liftpy_server.tiering.jobs import JOBS
from support.fault_store import Crash, Fault, FaultStore, plan_random
from support.tier_world_log import START_NS, WorldLog
from support.tier_world_nodes import Fork, Node
from support.tier_world_reading import Reading

if TYPE_CHECKING:
    from pathlib import Path

    from support.fault_store import Request

__all__ = ["World", "run"]

PATH = PartitionPath("0123456789abcdef" * 2, 0)
GRACE_NS = 3_600 * 10**9
S = 10**9
MAY_FAIL = (OvertakenError, OutcomeUnknownError, StoreUnavailableError)
WEIGHTS = {
    "publish": 5, "upload": 6, "upload_set": 6, "claim": 1, "merge": 3, "collect_sets": 2, "compact": 3,
    "retain": 1, "collect": 3, "elect": 2, "restart": 1, "wait": 2, "forking": 0.4, "many": 0.15, "seal": 0.02,
}  # fmt: skip


class World:
    """See the module.

    Args:
        seed: of everything that is random.
        home: for segment files.
    """

    def __init__(self, seed: int, home: Path) -> None:
        self.rng = random.Random(seed)
        self.home = home
        self.now_ns = START_NS + 1_000 * S
        self.store = MemoryStore(lambda: self.now_ns)
        self.rate = self.rng.choice([0, 0.02, 0.08, 0.2])
        self.object_bytes = self.rng.choice([12_000, 24_000, 1 << 20])
        self.steps: list[str] = []
        self.ids = 0
        self.log = WorldLog(home / "0.log", tombstones=self.rng.choice([0, 5]), keys=self.rng.choice([3, 11, 1000]))
        self.epoch = 0
        self.is_inside = self.may_miss = False
        self.nodes = [self._node("n1"), self._node("n2")]
        self.adopted: set[str] = set()
        self.leader = self.nodes[0]
        self.leader.epoch = 0
        self.reading = Reading(self.store, PATH, self.log)
        self.forks: list[Fork] = []
        self.forked: list[PartitionPath] = []  # also where nobody was told that it came about

    def _node(self, name: str) -> Node:
        faults = [fault for fault in Fault if fault is not Fault.SLOW]
        store = FaultStore(self.store, plan_random(self.rng, self.rate, faults))
        node = Node(name, store, None)
        store.before = lambda request: self._before(node, request)
        store.after = lambda request: self._after(node, request)
        self._start(node)
        return node

    def _start(self, node: Node) -> None:
        node.context, node.end = self._context(node.store), None

    def _context(self, store: FaultStore | MemoryStore) -> Context:
        skew_ns = self.rng.choice([-600, 0, 600]) * S
        return Context(
            store,
            new_id=self.new_id,
            now_ns=lambda: self.now_ns + skew_ns,
            memory_bytes_max=1 << 30,
            object_bytes=self.object_bytes,
            grace_ns=GRACE_NS,
        )

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:032x}"

    @property
    def sealed(self) -> bool:
        """As the last look found it."""
        return self.reading.sealed

    # -- what happens in the middle of a job

    def _before(self, node: Node, request: Request) -> None:
        node.asked += 1
        if node.crash == (node.asked, False):
            raise Crash(f"before {request}")
        if node.interrupted is not None and node.asked == node.interrupted[0]:
            names, node.interrupted = node.interrupted[1], None
            self.is_inside = self.may_miss = True
            other = next(each for each in self.nodes if each is not node)
            for name in names:
                self._step(name, other)
            self.is_inside = False

    def _after(self, node: Node, request: Request) -> None:
        if node.crash == (node.asked, True):
            raise Crash(f"after {request}")

    # -- steps

    def step(self) -> None:
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        name = self.rng.choices(names, weights)[0]
        node = self.leader if self.rng.random() < 0.8 else self.rng.choice(self.nodes)
        self.may_miss = False
        node.asked, node.crash, node.interrupted = 0, None, None
        if self.rng.random() < 0.1:
            node.crash = (self.rng.randint(1, 12), self.rng.random() < 0.5)
        if self.rng.random() < 0.2:
            between = self.rng.choices(names, weights, k=self.rng.randint(1, 5))
            if self.rng.random() < 0.4:
                between = ["stand_still", "collect", "collect_sets"]
            node.interrupted = (self.rng.randint(1, 7), [each for each in between if each != "many"])
        self._step(name, node)
        node.crash = node.interrupted = None
        for each in self.nodes:
            each.store.deliver_late()
        self.reading.check()
        for each in self.forks:
            each.reading.check()

    def _step(self, name: str, node: Node) -> None:
        self.steps.append(f"{'  ' * self.is_inside}{node.name} {name}")
        try:
            getattr(self, f"_{name}")(node)
        except Crash:
            node.crash = None
            self.steps[-1] += " crashed"
            node.incarnation += 1
            self._start(node)
        except MAY_FAIL as error:
            self.steps[-1] += f" {type(error).__name__}"
            node.end = None
        except (LineageError, SealedError) as error:
            self.steps[-1] += f" {type(error).__name__}"
            node.end = None
        except ObjectMissingError:
            self.steps[-1] += " missing"
            assert self.may_miss or node.name in self.adopted, "something is gone, and nobody else was there"
            self.adopted.discard(node.name)  # by now it knows
            node.end = None

    def _is_in_force(self, node: Node) -> bool:
        return node is self.leader and node.epoch == self.epoch

    def call(self, node: Node, job: str, path: PartitionPath | None = PATH, /, **arguments: Any) -> dict[str, Any]:
        return JOBS[job](node.context, (path._asdict() if path else {}) | arguments)

    def _publish(self, _node: Node) -> None:
        self.log.append(self.rng.choice([1, 3, 12]), self.epoch)

    def _claim(self, node: Node) -> None:
        if node.epoch < 0:
            return
        node.end = None
        epochs = self.log.epochs_until(node.epoch)
        is_leader = self._is_in_force(node)
        told = {"epoch": node.epoch, "node": node.name, "epochs": epochs}
        try:
            answer = self.call(node, "claim", log_start=0, create=True, **told)
        except LineageError:
            assert not is_leader or not self._is_in_force(node), "the leader can not claim"
            raise
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
        assert not self.sealed, "a sealed partition grows"
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
        member |= PATH._asdict() | {"slices": self.log.slices(base, end)}
        epoch = node.epoch
        self.call(node, "upload_set", None, node=node.name, incarnation=node.incarnation, members=[member])
        self._told(node, epoch, end)

    def _merge(self, node: Node) -> None:
        if node.epoch >= 0 and self.reading.is_there:
            self.call(node, "merge", epoch=node.epoch)

    def _compact(self, node: Node) -> None:
        if node.epoch < 0 or not self.reading.is_there:
            return
        self.reading.may_compact = True
        retention_ns = self.rng.choice([0, 2_000 * S])
        lag = {"min_compaction_lag_ns": 0, "delete_retention_ns": retention_ns}
        self.call(node, "compact", epoch=node.epoch, clean_end=self.reading.end, **lag)

    def _retain(self, node: Node) -> None:
        if node.epoch < 0 or not self.reading.is_there or self.rng.random() < 0.6:
            return
        start = min(self.reading.start + self.rng.choice([1, 10, 60]), self.reading.end)
        self.reading.wants(start)
        told = self.call(node, "retain", epoch=node.epoch, start=start)["start"]
        assert told >= start

    def _collect(self, node: Node) -> None:
        self.call(node, "collect", grace_ns=GRACE_NS)
        for each in self.forks:
            self.call(node, "collect", each.path, grace_ns=GRACE_NS)

    def _collect_sets(self, node: Node) -> None:
        """The node does, or somebody else in its place."""
        arguments = {"node": node.name, "incarnation": node.incarnation}
        if self.is_inside and self.rng.random() < 0.5:
            stopped = next(each for each in self.nodes if each is not node)
            arguments = {"node": stopped.name, "incarnation": stopped.incarnation}
            self.adopted.add(stopped.name)
            JOBS["collect_sets"](self._context(self.store), arguments)
        else:
            self.call(node, "collect_sets", None, **arguments)

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

    def _stand_still(self, _node: Node) -> None:
        """The one in whose midst this comes does, for longer than the grace period."""
        self.now_ns += GRACE_NS + 1_300 * S

    def _seal(self, node: Node) -> None:
        if self.reading.is_there:
            seal(node.store, PATH, new_id=self.new_id)

    def _forking(self, node: Node) -> None:
        if not self.reading.is_there or len(self.forks) == 2:
            return
        path = PartitionPath(self.new_id(), 0)
        self.forked.append(path)
        made = fork(node.store, PATH, path, epoch=self.epoch, node=node.name, new_id=self.new_id)
        log = self.log.copy(self.home / f"{path.uuid}.log", made.end)
        reading = self.reading.forked(path, log, made.loaded.root)
        self.forks.append(Fork(path, log, reading, self.epoch))

    # -- the end

    def heal(self) -> Node:
        """Nothing fails any more; a new leader moves all there is."""
        for node in self.nodes:
            node.store.plan = None
            node.crash = node.interrupted = None
            self._restart(node)
        self.may_miss = False
        self._elect(self.leader)
        self.log.append(3, self.epoch)
        node = self.leader
        self._claim(node)
        while not self.sealed and node.end < self.log.end:
            self._upload(node)
        self.steps.append("healed")
        return node

    def tidy(self, node: Node) -> None:
        """Everything that nobody wants goes."""
        self.now_ns += GRACE_NS + 1_300 * S
        if not self.sealed:
            self._merge(node)
        for each in self.nodes * 2:
            self._collect_sets(each)
            self._collect(each)
            self.now_ns += GRACE_NS + 1_300 * S


def run(seed: int, home: Path, steps: int = 40) -> World:
    """One history. Returns the world as it is at its end."""
    world = World(seed, home)
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
    return world
