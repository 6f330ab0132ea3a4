"""Random lives of a node's logs, from a seed, with a look at what a crash would leave before every step of the disk."""

from __future__ import annotations

import random

from liftpy_log.partition_log import LogConfig
from support.log_node import StorageNode
from support.simdisk import SimDisk

STEPS = 40


class ProcessEnd(BaseException):
    """The process ends here."""


class Life:
    """One random life of a node."""

    def __init__(self, seed, order, **given):
        self.rng = rng = random.Random(seed)
        self.aside = random.Random(~seed)  # so that crashes on the side leave the life itself as it is
        self.order = order
        self.steps = given.pop("steps", self.steps)
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

    def append_batches(self):
        """As a follower does."""
        number = self.rng.choice(self.node.partitions)
        sizes = [(self.rng.randint(1, 3), self.rng.choice((0, 40, 300, 1_500))) for _ in range(self.rng.randint(1, 4))]
        self.node.append_batches(number, sizes, 3)
        self.history.append(f"{number}: appended {len(sizes)} batches up to {self.node.models[number].end}")

    def begin_round(self):
        """A round, whose results come later: perhaps after a cut."""
        self.history.append("a round that is reported later")
        self.node.end_round()
        self.node.begin_round()

    def end_round(self):
        self.history.append("the results of a round")
        self.node.end_round()

    def truncate(self):
        number = self.rng.choice(self.node.partitions)
        model = self.node.models[number]
        edges = [model.log_start, *(edge for edge in model.edges if edge > model.log_start)]
        end = self.rng.choice((edges[-min(len(edges), 2)], self.rng.choice(edges)))
        self.history.append(f"{number}: cut from {model.end} back to {end}")
        self.node.truncate(number, end)

    def rebuild(self):
        number = self.rng.choice(self.node.partitions)
        model = self.node.models[number]
        start = self.rng.choice((model.log_start, self.rng.randint(model.log_start, model.end + 20)))
        self.history.append(f"{number}: from {model.log_start}..{model.end} anew at {start}")
        self.node.rebuild(number, start)

    def checkpoint(self):
        """The node writes down what is durable, and starts with that, however old it is."""
        self.node.claims = self.node.durable_ends()

    steps = (append, append, append, append, commit, commit, commit, roll, retain, purge, flush, elect, stop, end)


def check_same_again(node):
    """A node that is started after this one, which is killed, shows the same."""
    again = node.found_on(node.disk.kill())
    assert again.state() == node.state()


FOLLOWER_STEPS = (
    *Life.steps,
    *(Life.append_batches,) * 3,
    Life.begin_round,
    Life.end_round,
    *(Life.truncate,) * 4,
    Life.rebuild,
    Life.checkpoint,
)
