"""Raft itself, simulated: the real voters, on disks that lose power, over a network that loses, doubles and reorders.

Everything that a voter is made of is the code under test: elections, log, membership, snapshots, journal. Simulated are
clock, chance, transport and disk. After every step of a voter this is checked:

    election safety         one leader per term
    log matching            entries of the same index and term are the same, and so is what stands before them
    leader completeness     a leader has every entry that was committed before
    state-machine safety    all apply the same commands in the same order
    majorities              more than half voted for a leader, and have what a leader of their term commits
    reads                   a barrier sees what was acknowledged before it began

And at the end, when all faults are over: a command is committed, all members have the same state, and what was
acknowledged is in it. A failure names its seed; `python -m simulation.raft_world SEED`, in `tests`, does it again.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import heapq
import logging
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from pysyncobj import syncobj

from liftpy_server.consensus import leader as leader_module
from liftpy_server.consensus import raft as raft_module
from liftpy_server.consensus.membership import encode_change
from liftpy_server.consensus.proposals import Reason
from liftpy_server.consensus.raft import Raft
from liftpy_server.consensus.settings import RaftSettings, Voter
from liftpy_server.consensus.storage.journal import NO_OP
from liftpy_server.consensus.storage.snapshot import SnapshotError
from liftpy_server.metadata.errors import JournalError
from simulation.raft_network import Network, SimTransport, SimWriter
from support.simdisk import ROOT, Order, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MS = 1_000_000
S = 1_000 * MS
KEY = b"k" * 32
STEP_NS = 50 * MS
SETTLE_S = 40
NAMES = ("n1", "n2", "n3", "n4", "n5")


class ViolationError(AssertionError):
    """What must never be, is."""


class PowerError(BaseException):
    """The power goes in the middle of an operation of the disk. Nothing may catch it."""


class Result(NamedTuple):
    """What a run did."""

    digest: str
    acked: int
    elections: int
    seen: dict[str, int]


class Machine:
    """Remembers what was applied."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.applied: list[bytes] = []

    def apply(self, command: bytes) -> int:
        self.applied.append(command)
        self._world.check_applied(self.applied, len(self.applied) - 1)
        return len(self.applied) - 1

    def accepts(self, command: bytes) -> bool:
        return True

    def capture(self) -> Callable[[], list[bytes]]:
        applied = list(self.applied)
        return lambda: applied

    def restore(self, state: list[bytes]) -> None:
        self.applied = list(state)
        self._world.check_applied(self.applied, 0)


class Node:
    """A machine: its disk, its clock, and a voter while it runs.

    Attributes:
        role: `member`; `leaving` while it is to be removed; `out` with an empty disk, until it joins again.
        ruined: it does not start, and says why.
    """

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.voter = Voter(name, "127.0.0.1", 1_000 + number)
        self.random = random.Random(f"{world.seed} {name}")
        self.rate = self.random.choice((1.0, 1.0, 0.95, 1.05))
        self.disk = SimDisk()
        self.raft: Raft | None = None
        self.transport: SimTransport | None = None
        self.run = 0
        self.stopped = False
        self.is_step_due = False
        self.role = "member"
        self.is_ruined = False
        self.given: tuple[tuple[Voter, ...], str] = ((), "")
        self._checked_commit = self._checked_term = 0
        self._checked_log: tuple[Any, ...] = ()
        self.digest = hashlib.sha256()

    def clock(self) -> float:
        return 1_000 + self.world.now * self.rate / S

    def start(self) -> None:
        if self.raft is not None or self.is_ruined or self.role == "out":
            return
        self.run += 1
        self.disk.before = None
        voters, cluster_id = self.given
        settings = RaftSettings(
            node_id=self.name,
            voters=voters,
            cluster_id=cluster_id,
            folder=ROOT,
            cluster_key=KEY,
            snapshot_every_entries=self.world.snapshot_every,
        )
        transport = SimTransport(self.world.network, self)
        self.transport = transport
        self._checked_commit = self._checked_term = 0
        self._checked_log = ()
        try:
            with self.world.at(self):
                self.raft = Raft(
                    settings,
                    transport,  # type: ignore[arg-type]
                    Machine(self.world),
                    disk=self.disk,
                    random=random.Random(self.random.getrandbits(64)),
                    snapshot_writer=SimWriter(self),
                )
        except (JournalError, SnapshotError) as error:
            self.transport = None
            if self.world.is_disk_failing(self):
                self.world.saw("ended by its disk")
                self.disk = self.disk.kill()  # tried again when the disk is well
                return
            if self.world.damaged is not self:
                raise ViolationError(f"{self.name} does not start on a disk that nobody damaged: {error}") from error
            self.world.saw("named")
            self.is_ruined = True
            return
        if self.world.damaged is self:
            self.world.damaged = None
            self.world.saw("repaired")
        self.world.after(STEP_NS, self.name, self._regular_step, self.run)

    def _regular_step(self, run: int) -> None:
        if run == self.run and self.raft is not None:
            self.step()
            self.world.after(STEP_NS, self.name, self._regular_step, run)

    def wake(self) -> None:
        """Step soon: something has come."""
        if self.raft is not None and not self.is_step_due and not self.stopped:
            self.is_step_due = True
            self.world.after(20_000, f"{self.name} wake", self._woken, self.run)

    def _woken(self, run: int) -> None:
        self.is_step_due = False
        if run == self.run:
            self.step()

    def step(self) -> None:
        if self.raft is None or self.stopped:
            return
        raft = self.raft
        with self.guarded():
            raft.tick(0)
            self.world.check(self, raft)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """What the voter does here may end its process, or the power of its machine."""
        try:
            with self.world.at(self):
                yield
        except PowerError:
            self.world.saw("power lost in an operation")
            self.crash()
        except (JournalError, SnapshotError) as error:
            if not self.world.is_disk_failing(self):
                raise ViolationError(f"{self.name} ends on a disk that does not fail: {error}") from error
            self.world.saw("ended by its disk")
            self.kill()

    def kill(self) -> None:
        """As by kill -9."""
        self._gone(self.disk.kill())

    def crash(self) -> None:
        """The power goes."""
        order = self.random.choice(list(Order))
        self._gone(self.disk.crash(self.random, order))

    def _gone(self, disk: SimDisk) -> None:
        if self.raft is None:
            return
        self.run += 1
        self.raft, self.transport, self.disk = None, None, disk
        self.stopped = self.is_step_due = False
        self.world.network.gone(self.name)

    def checks(self, raft: Raft) -> tuple[list[tuple[int, bytes, int]], bool, bool]:
        """Newly committed entries, whether the log changed, and whether it leads a new term."""
        journal = raft._journal
        commit, term = raft._core.commit_index, raft._core.term
        committed = []
        if commit > self._checked_commit:
            if commit > journal.last:
                raise ViolationError(f"{self.name} commits {commit}, and its log ends at {journal.last}")
            first = max(self._checked_commit + 1, journal.first)
            committed = [
                (index, command, entry_term)
                for command, index, entry_term in journal.entries_from(first)
                if index <= commit
            ]
            self._checked_commit = commit
        log = (journal.first, journal.last, journal[-1][2], term)
        changed, self._checked_log = log != self._checked_log, log
        leads = raft.is_leader and term != self._checked_term
        if leads:
            self._checked_term = term
        return committed, changed, leads


class World:
    """One run; see the module."""

    def __init__(self, seed: int, size: int | None = None) -> None:
        self.seed = seed
        self.now = 0
        self.random = random.Random(f"{seed} world")
        self._events: list[tuple[int, str, int, Callable[..., None], tuple[Any, ...]]] = []
        self._counts: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.is_calm = False
        self.damaged: Node | None = None
        self._failing: dict[str, int] = {}
        self._current: Node | None = None
        self.snapshot_every = self.random.choice((8, 20, 60, 1_000))
        self.batch_bytes = self.random.choice((1, 30, 1 << 20))
        self.chunk_bytes = self.random.choice((100, 1 << 20))
        self.network = Network(self)
        size = size or self.random.choice((3, 3, 3, 5))
        self.nodes = {name: Node(self, name, number) for number, name in enumerate(NAMES[:size])}
        # What the checks know.
        self.leaders: dict[int, str] = {}
        self.entries: dict[tuple[int, int], tuple[bytes, int | None]] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.history: list[bytes] = []
        self.acked: dict[bytes, int] = {}
        self.acked_end = 0
        self._proposed = 0

    # Time.

    def after(self, delay: int, key: str, act: Callable[..., None], *args: Any) -> None:
        """Events of one time happen in the order of their keys, so that no hash of a string decides."""
        self._counts[key] = self._counts.get(key, 0) + 1
        heapq.heappush(self._events, (self.now + delay, key, self._counts[key], act, args))

    def run_until(self, end: int) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, _, act, args = heapq.heappop(self._events)
            act(*args)
        self.now = end

    def clock(self) -> float:
        return self.now / S if self._current is None else self._current.clock()

    @contextmanager
    def at(self, node: Node) -> Iterator[None]:
        before, self._current = self._current, node
        try:
            yield
        finally:
            self._current = before

    def saw(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    # Checks.

    def check(self, node: Node, raft: Raft) -> None:
        committed, changed, leads = node.checks(raft)
        if committed and raft.is_leader:
            self._check_commit(node, raft, committed[-1][0])
        if leads:
            self._check_leader(node, raft)
        if changed:
            self._check_log(node, raft)
        for index, command, term in committed:
            known = self.committed.setdefault(index, (term, command))
            if known != (term, command):
                raise ViolationError(
                    f"state-machine safety: {node.name} commits {(term, command)} at {index}, and {known} is there"
                )

    def _check_leader(self, node: Node, raft: Raft) -> None:
        term = raft._core.term
        name = f"{node.name} {raft._journal.instance}"
        self.saw("elected")
        if self.leaders.setdefault(term, name) != name:
            raise ViolationError(f"election safety: {name} and {self.leaders[term]} lead term {term}")
        for index, (entry_term, command) in self.committed.items():
            if index >= raft._journal.first and raft._journal.term_at(index) != entry_term:
                raise ViolationError(
                    f"leader completeness: {node.name} leads term {term} without {(index, entry_term, command)}"
                )

        self._check_majority(raft, f"{node.name} leads term {term}", lambda voter: self._voted(voter, term, node.name))

    @staticmethod
    def _voted(voter: Raft, term: int, name: str) -> bool:
        """Whether a voter voted so, or may have: it is in a newer term."""
        journal = voter._journal
        return journal.term > term or (journal.term, journal.vote) == (
            term,
            name,
        )

    def _check_commit(self, node: Node, raft: Raft, index: int) -> None:
        term = raft._journal.term_at(index)
        if term != raft._core.term:
            raise ViolationError(f"commit: {node.name} commits {index} of term {term} by counting, in a later term")

        def has(voter: Raft) -> bool:
            return voter._journal.term_at(index) == term or voter._journal.first > index

        self._check_majority(raft, f"{node.name} commits {index}", has)

    def _check_majority(self, raft: Raft, what: str, agrees: Callable[[Raft], bool]) -> None:
        """That more than half of its voters agree, or may: nobody can ask those that are down."""
        counts = []
        for members in (raft._membership.voters(), raft._membership.voters(raft._core.applied_index)):
            rafts = [self.nodes[name].raft for name in members]
            counts.append((sum(each is None or agrees(each) for each in rafts), len(rafts)))
        if all(2 * count <= size for count, size in counts):  # the voters may have changed since it counted
            raise ViolationError(f"majority: {what}, and (for it, of so many) are {counts}")

    def _check_log(self, node: Node, raft: Raft) -> None:
        previous: int | None = None
        for command, index, term in raft._journal[:]:
            known_command, known_previous = self.entries.setdefault((index, term), (command, previous))
            if known_command != command or (None not in {previous, known_previous} and previous != known_previous):
                raise ViolationError(f"log matching: {node.name} has another entry {index} of term {term}")
            if known_previous is None and previous is not None:
                self.entries[index, term] = (command, previous)
            previous = term

    def check_applied(self, applied: list[bytes], start: int) -> None:
        for position in range(start, len(applied)):
            if position == len(self.history):
                self.history.append(applied[position])
            elif self.history[position] != applied[position]:
                raise ViolationError(
                    f"state-machine safety: {applied[position]!r} at {position}, where {self.history[position]!r} is"
                )

    # Clients.

    def client(self) -> None:
        if self.is_calm:
            return
        node = self.random.choice([*self.nodes.values()])
        is_read = self.random.random() < 0.2
        self.propose(node, is_read=is_read)
        self.after(self.random.randint(1 * MS, 120 * MS), "client", self.client)

    def propose(self, node: Node, *, is_read: bool = False, told: Callable[[int], None] = lambda reason: None) -> None:
        raft = node.raft
        if raft is None:
            return
        self._proposed += 1
        command = b"%d" % self._proposed
        acked_end = self.acked_end

        def answered(result: Any, reason: int) -> None:
            told(reason)
            if reason != Reason.SUCCESS:
                return
            if is_read:
                if node.raft is raft and len(raft._machine.applied) < acked_end:
                    raise ViolationError(f"a read at {node.name} does not see what was acknowledged before it")
                self.saw("read")
                return
            if self.history[result] != command:
                raise ViolationError(f"{command!r} is acknowledged as {result}, which is {self.history[result]!r}")
            self.acked[command] = result
            self.acked_end = max(self.acked_end, result + 1)

        with node.guarded():  # not by `submit`, which logs what a callback raises: a violation must get through
            raft._proposals.submit(bytes((NO_OP,)) if is_read else b"\0" + command, answered)

    def is_disk_failing(self, node: Node) -> bool:
        return self._failing.get(node.name, 0) > 0

    # Faults.

    def fault(self) -> None:
        if self.is_calm:
            return
        node = self.random.choice([*self.nodes.values()])
        kind = self.random.choices([*FAULTS], [FAULTS[name] for name in FAULTS])[0]
        getattr(self, f"_{kind}")(node)
        self.after(self.random.randint(20 * MS, 900 * MS), "fault", self.fault)

    def _restart_later(self, node: Node) -> None:
        self.after(self.random.randint(50 * MS, 2 * S), f"{node.name} start", node.start)

    def _kill(self, node: Node) -> None:
        self.saw("kill")
        node.kill()
        self._restart_later(node)

    def _crash(self, node: Node) -> None:
        self.saw("crash")
        node.crash()
        self._restart_later(node)

    def _crash_all(self, node: Node) -> None:
        self.saw("crash of all")
        for each in self.nodes.values():
            each.crash()
            self._restart_later(each)

    def _crash_in_operation(self, node: Node) -> None:
        left = self.random.randint(0, 25)

        def go_out(_operation: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerError

        node.disk.before = go_out
        self.after(3 * S, f"{node.name} start", node.start)

    def _stop(self, node: Node) -> None:
        self.saw("stop")
        node.stopped = True
        self.after(self.random.randint(100 * MS, 4 * S), f"{node.name} continue", self._continue, node, node.run)

    def _continue(self, node: Node, run: int) -> None:
        if node.run == run:
            node.stopped = False
            node.wake()

    def _isolate(self, node: Node) -> None:
        self.saw("isolate")
        ways = [way for other in self.nodes if other != node.name for way in ((node.name, other), (other, node.name))]
        self._block(ways)

    def _one_way(self, node: Node) -> None:
        self.saw("one way")
        others = [name for name in self.nodes if name != node.name]
        chosen = self.random.sample(others, self.random.randint(1, len(others)))
        self._block([(node.name, other) if self.random.random() < 0.5 else (other, node.name) for other in chosen])

    def _block(self, ways: list[tuple[str, str]]) -> None:
        self.network.blocked.update(ways)
        self.after(self.random.randint(100 * MS, 4 * S), "heal", self.network.blocked.difference_update, ways)

    def _break_links(self, node: Node) -> None:
        self.saw("links break")
        self.network.gone(node.name)

    def _fail_disk(self, node: Node) -> None:
        self.saw("disk fails")
        code = self.random.choice((errno.ENOSPC, errno.EIO))
        node.disk.fail("write", "sync", "create", "sync_directory", "rename", code=code, skip=self.random.randint(0, 6))
        self._failing[node.name] = self._failing.get(node.name, 0) + 1
        self.after(2 * S, f"{node.name} disk", self._heal_disk, node)

    def _heal_disk(self, node: Node) -> None:
        node.disk.heal()
        self._failing[node.name] -= 1
        node.start()

    def _damage(self, node: Node) -> None:
        """One file of one voter at a time, and only while all are whole."""
        if not self.is_whole() or self.is_disk_failing(node):
            return
        self.damaged = node
        self.saw("damage")
        node.crash() if self.random.random() < 0.5 else node.kill()
        spoil(node.disk, self.random)
        self._restart_later(node)

    def is_whole(self) -> bool:
        """Whether no voter is damaged, and none comes or goes."""
        whole = all(node.role == "member" and not node.is_ruined for node in self.nodes.values())
        leader = self.leader()
        return whole and self.damaged is None and leader is not None and len(leader.voters) == len(self.nodes)

    def _hand_over(self, node: Node) -> None:
        if node.raft is not None and node.raft.is_leader:
            self.saw("hand over")
            node.raft.hand_over()

    def _leave(self, node: Node) -> None:
        """One or two are to be removed at once; the others must not be damaged until they are back."""
        if not self.is_whole():
            return
        leaving = self.random.sample(sorted(self.nodes), self.random.randint(1, 2))
        for name in leaving:
            self.nodes[name].role = "leaving"
        self.operate(again=False)

    # The operator: removes what is ruined or to be removed, and lets it join again with an empty disk.

    def leader(self) -> Raft | None:
        """The newest one that can tell who is a member."""
        rafts = [node.raft for node in self.nodes.values() if node.raft is not None and not node.stopped]
        leading = [raft for raft in rafts if raft.is_leader and raft._leader.may_change_voters()]
        return max(leading, key=lambda raft: raft._core.term, default=None)

    def operate(self, *, again: bool = True) -> None:
        if again:
            self.after(300 * MS, "operator", self.operate)
        leader = self.leader()
        if leader is None:
            return
        members = leader._membership.members(leader._core.applied_index).all
        for node in self.nodes.values():
            if node.role == "leaving" or node.is_ruined:
                if node.name in members:
                    self._change(leader, "rem", node)
                else:
                    self._wipe(node)
            elif node.role == "out":
                if node.name in members:
                    self._join(node, leader)
                else:
                    self._change(leader, "learn", node)

    def _change(self, leader: Raft, op: str, node: Node) -> None:
        at = self.nodes[leader.node_id]
        with at.guarded():
            leader._proposals.submit(encode_change(op, node.voter), lambda result, reason: None)

    def _wipe(self, node: Node) -> None:
        self.saw("removed")
        node.kill()
        node.run += 1
        node.disk, node.role, node.is_ruined = SimDisk(), "out", False
        self.network.forget(node.name)
        if self.damaged is node:
            self.damaged = None

    def _join(self, node: Node, leader: Raft) -> None:
        self.saw("joins")
        node.given = (leader.voters, leader.cluster_id)
        node.role = "member"
        node.start()

    # The run.

    def run(self) -> Result:
        voters = tuple(node.voter for node in self.nodes.values())
        for node in self.nodes.values():
            node.given = (voters, "")
            node.start()
        self.network.start()
        self.after(0, "client", self.client)
        self.after(2 * S, "fault", self.fault)
        self.after(2 * S, "operator", self.operate)
        self.run_until((2 + self.random.randint(6, 14)) * S)
        self._calm_down()
        self._settle()
        digest = hashlib.sha256()
        for node in self.nodes.values():
            digest.update(node.digest.digest())
        digest.update(repr((self.history, sorted(self.acked.items()), sorted(self.leaders.items()))).encode())
        return Result(digest.hexdigest(), len(self.acked), len(self.leaders), self.seen)

    def _calm_down(self) -> None:
        self.is_calm = True
        self.network.blocked.clear()
        self.network.is_reliable = True
        for node in self.nodes.values():
            node.disk.before = None
            node.disk.heal()
            node.stopped = False
            node.wake()
            node.start()

    def _settle(self) -> None:
        told: list[int] = []
        for _ in range(SETTLE_S * 4):
            self.run_until(self.now + S // 4)
            for node in self.nodes.values():
                node.start()
            if Reason.SUCCESS in told and self._is_settled():
                return
            leader = self.leader()
            if leader is not None:
                self.propose(self.nodes[leader.node_id], told=told.append)
        raise ViolationError(f"not at rest after {SETTLE_S} s: {self._describe()}")

    def _is_settled(self) -> bool:
        rafts = [node.raft for node in self.nodes.values()]
        if not self.is_whole() or any(raft is None or raft._machine.applied != self.history for raft in rafts):
            return False
        for command, position in self.acked.items():
            if self.history[position] != command:
                raise ViolationError(f"{command!r} was acknowledged, and is lost")
        return True

    def _describe(self) -> str:
        parts = []
        for node in self.nodes.values():
            raft = node.raft
            state = (
                "down"
                if raft is None
                else f"leader {raft.leader_id} applied {raft._core.applied_index} of {raft._journal.last}"
            )
            parts.append(f"{node.name} ({node.role}{', ruined' if node.is_ruined else ''}): {state}")
        return "; ".join(parts)


FAULTS = {
    "kill": 4,
    "crash": 6,
    "crash_all": 2,
    "crash_in_operation": 6,
    "stop": 4,
    "isolate": 5,
    "one_way": 5,
    "break_links": 3,
    "fail_disk": 2,
    "damage": 5,
    "hand_over": 3,
    "leave": 3,
}


def spoil(disk: SimDisk, rng: random.Random) -> None:
    """Damage one file."""
    path = rng.choice(sorted(disk.files()))
    data = bytearray(disk.content(path))
    sectors = -(-len(data) // 512)
    match rng.randrange(6):
        case 0 | 1 if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2 if data:  # near the end, where a torn write would be
            data[max(0, len(data) - rng.randint(1, 60))] ^= 1 << rng.randrange(8)
        case 3 if data:
            at = rng.randrange(sectors) * 512
            data[at : at + 512] = bytes(len(data[at : at + 512]))
        case 4 if sectors > 1:
            one, other = (at * 512 for at in sorted(rng.sample(range(sectors), 2)))
            first, second = bytes(data[one : one + 512]), bytes(data[other : other + 512])
            data[other : other + len(second)] = first[: len(second)]
            data[one : one + len(second)] = second
        case _:
            del data[rng.randint(0, len(data)) :]
    disk.overwrite(path, bytes(data))


def run(seed: int) -> Result:
    """One run.

    Raises:
        ViolationError: a promise is broken; the text says how to see it again.
    """
    world = World(seed)
    again = f"to see it again: PYTHONPATH=tests python -m simulation.raft_world {seed}"
    try:
        with (
            patch.object(syncobj, "monotonicTime", world.clock),
            patch.object(raft_module, "check_pinned", lambda: None),
            patch.object(leader_module, "_BATCH_BYTES", world.batch_bytes),
            patch.object(leader_module, "_CHUNK_BYTES", world.chunk_bytes),
        ):
            return world.run()
    except Exception as error:
        raise ViolationError(f"seed {seed} at {world.now / S:.3f} s: {error!r}; {again}") from error
    except BaseException as error:  # the test took too long
        error.add_note(again)
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description="Run seeds of the simulation of Raft.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--until", type=int, help="run the seeds up to this one")
    given = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    for seed in range(given.seed, (given.until or given.seed) + 1):
        print(seed, run(seed), flush=True)


if __name__ == "__main__":
    main()
