"""What was reported durable survives: a power loss or a kill at every step of whatever a node does to its logs.

A run is a random life of a node, from its seed: appends, rounds, rolls, retention, purges, restarts, kills and power
losses. Before every operation on the disk the power may be lost on the side: a second node starts on what the disk
then holds, and must find everything that was durable, byte for byte, contiguous, and nothing that never was. A third
one that starts after it must find the same.
"""

import random

import pytest

from liftpy_log import segment as segment_module
from liftpy_log.partition_log import LogConfig
from support.log_node import StorageNode
from support.simdisk import Order, SimDisk

STEPS = 40


class ProcessEnd(BaseException):
    """The process ends here."""


class Life:
    """One random life of a node."""

    def __init__(self, seed, order, **given):
        self.rng = rng = random.Random(seed)
        self.aside = random.Random(~seed)  # so that crashes on the side leave the life itself as it is
        self.order = order
        self.history = [f"seed {seed}, {order.value}"]
        config = LogConfig(segment_bytes=rng.choice((900, 3_000, 10**6)), segment_age_ns=rng.choice((20, 10**9)))
        self.node = StorageNode(
            SimDisk(),
            rng.randint(1, 3),
            config=config,
            **{
                "with_wal": rng.random() < 0.75,
                "direct_max": rng.choice((0, 0, 1, 100)),
                "wal_bytes": rng.choice((300, 2_000, 10**6)),
                **given,
            },
        )
        self.started = False
        self.fuse = 0
        self.looks = 0

    # What happens on the side.

    def look(self, operation):
        self.fuse -= 1
        if self.fuse == 0:
            self.history.append(f"the end came before {operation.kind} {operation.path.name}")
            raise ProcessEnd
        if self.aside.random() < 0.3:
            self.looks += 1
            seed = self.aside.getrandbits(32)
            self.history.append(f"a look before {operation.kind} {operation.path.name}, seed {seed}")
            found = self.node.found_on(
                self.node.disk.crash(random.Random(seed), self.order), checkpoint=self.aside.random() < 0.5
            )
            found.check_after_crash()
            check_same_again(found)
        elif self.started and self.aside.random() < 0.2:
            self.history.append(f"a kill on the side before {operation.kind} {operation.path.name}")
            found = self.node.found_on(self.node.disk.kill())
            found.check_after_kill()
            check_same_again(found)

    # What happens.

    def live(self):
        self.restart(self.node.disk)
        for _ in range(STEPS):
            self.fuse = self.rng.randint(1, 60) if self.rng.random() < 0.1 else -1
            step = self.rng.choice(self.steps)
            try:
                step(self)
            except ProcessEnd:
                self.end()
        self.end()

    def restart(self, disk):
        self.started = False
        self.node.disk = disk
        disk.before = self.look
        self.node.start(checkpoint=self.rng.random() < 0.5)
        self.node.check_after_crash()
        self.started = True

    def append(self):
        number = self.rng.choice(self.node.partitions)
        for _ in range(self.rng.randint(1, 3)):
            self.node.append(number, self.rng.randint(1, 3), self.rng.choice((0, 40, 300, 1_500)), 3)
        self.history.append(f"{number}: appended up to {self.node.models[number].end}")

    def commit(self):
        numbers = [number for number in self.node.partitions if self.rng.random() < 0.7]
        self.history.append(f"a round for {numbers}")
        self.node.round(numbers)

    def roll(self):
        number = self.rng.choice(self.node.partitions)
        self.history.append(f"{number}: roll")
        self.node.logs[number].roll()

    def retain(self):
        number = self.rng.choice(self.node.partitions)
        offset = self.rng.randint(0, self.node.durable_ends()[number])
        self.history.append(f"{number}: retention up to {offset}")
        self.node.drop_before(number, offset)

    def purge(self):
        number = self.rng.choice(self.node.partitions)
        committed = self.node.durable_ends()[number]
        offset = self.rng.choice((committed, self.rng.randint(0, committed)))
        self.history.append(f"{number}: purge up to {offset}")
        self.node.purge(number, offset)

    def flush(self):
        for log in self.node.logs:
            log.active.flush_index()

    def elect(self):
        self.node.epoch += 1

    def stop(self):
        self.history.append("a clean restart")
        self.node.stop()
        assert self.node.disk.open_files == set()
        self.restart(self.node.disk)

    def end(self):
        """The process is killed, or the power is lost; and again, it may be, while it starts."""
        while True:
            self.fuse = self.rng.randint(1, 15) if self.rng.random() < 0.4 else -1
            disk = self.node.disk
            disk.before = None
            killed = self.rng.random() < 0.5
            self.history.append("killed" if killed else "power lost")
            self.node.reported = self.node.durable_ends()
            try:
                self.restart(disk.kill() if killed else disk.crash(self.rng, self.order))
            except ProcessEnd:
                continue
            return

    steps = (append, append, append, append, commit, commit, commit, roll, retain, purge, flush, elect, stop, end)


def check_same_again(node):
    """A node that is started after this one, which is killed, shows the same."""
    again = node.found_on(node.disk.kill())
    assert again.state() == node.state()


@pytest.fixture(autouse=True)
def _small_indexes(monkeypatch):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 600)
    monkeypatch.setattr(segment_module, "INDEX_FLUSH_ENTRIES", 2)


def live(seed, order, **given):
    life = Life(seed, order, **given)
    try:
        life.live()
    except BaseException as error:
        error.add_note("\n".join(life.history))
        raise
    assert life.looks > 0


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("order", [Order.IN_ORDER, Order.UNORDERED])
def test_nothing_durable_is_lost(seed, order):
    live(seed, order)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(100, 400, 100))
@pytest.mark.parametrize("order", [Order.IN_ORDER, Order.UNORDERED])
def test_nothing_durable_is_lost_in_many_lives(first_seed, order):
    for seed in range(first_seed, first_seed + 100):
        live(seed, order)
