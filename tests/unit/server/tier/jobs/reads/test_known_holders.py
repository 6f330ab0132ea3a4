"""Who knows whose shared objects hold the end of a history reads it with a request less, and reads the same."""

from __future__ import annotations

from itertools import count, product

import pytest

from liftpy_bucket.errors import ObjectMissingError
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import FaultStore
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker


def rows(version, *bounds):
    names = ("offset", "leader_epoch", "value")
    pieces = [[piece.column(name).to_pylist() for name in names] for piece in version.read(*bounds)]
    return [row for piece in pieces for row in zip(*piece, strict=True)]


@pytest.fixture
def log(tmp_path):
    file = LogFile(tmp_path / "0.log")
    file.append(1_000)
    return file


@pytest.mark.parametrize(
    ("nodes", "is_shared", "requests"),
    [
        (("n1",), True, 4),  # the set's root, the root, a page, the member
        ((), True, 5),  # the root, the set's root, a page, the root again, the member
        (("n2",), True, 6),  # in vain
        (("n1",), False, 4),  # in vain: the set's root, the root, a footer, a row group
        ((), False, 3),
    ],
)
def test_one_record_takes_four_requests(log, nodes, is_shared, requests):
    store = MemoryStore()
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    worker.upload_set([(log, 100, 120, 0)])
    offset = 110 if is_shared else 50
    counting = CountingStore(store)
    version = open_version(counting, PATH, offset=offset, nodes=nodes)
    assert [row[0] for row in rows(version, offset, offset + 1)] == [offset]
    assert sum(counting.counts.values()) == requests, counting.counts


class Story:
    """A leader is deposed while it shares records, and what follows moves into objects of their own."""

    def __init__(self, directory):
        self.store = MemoryStore()
        self.log, self.other = LogFile(directory / "old.log"), LogFile(directory / "new.log", 60)
        self.log.append(200)
        self.other.append(60, epoch=1, tag="new")
        self.old, self.new = Worker(self.store, "n1"), Worker(self.store, "n2")
        self.old.claim()
        self.old.upload_set([(self.log, 0, 50, 0)])
        epochs = [(0, 0), (1, 60)]
        self.steps = [
            lambda: self.old.upload_set([(self.log, 50, 60, 0)]),
            lambda: self.new.claim(epoch=1, epochs=[(0, 0)]),
            lambda: self.old.upload_set([(self.log, 60, 90, 0)]),  # it has not heard of it yet
            lambda: self.new.upload_set([(self.other, 60, 80, 1)]),
            lambda: self.old.upload_set([(self.log, 90, 95, 0)]),
            lambda: self.new.upload(self.other, 80, 100, epoch=1, epochs=epochs),
            lambda: self.new.upload_set([(self.other, 100, 110, 1)]),
            lambda: self.new.call("collect_sets", node="n2", incarnation=1),
        ]
        self.ends = [60, 60, 60, 80, 80, 100, 110, 110]
        self.end = 50  # what somebody was told to be there

    def go_on(self):
        self.steps.pop(0)()
        self.end = max(self.end, self.ends.pop(0))


@pytest.mark.parametrize("nodes", [(), ("n1",), ("n1", "n2")])
def test_whoever_reads_while_it_changes_reads_one_history(tmp_path_factory, nodes):
    """Some steps are over before the reader begins, and some come at once before one of its requests."""
    read = 0
    for begun, steps, at in product(range(8), range(1, 4), range(2, 5)):
        story = Story(tmp_path_factory.mktemp("story"))
        for _ in range(begun):
            story.go_on()
        told, numbers = story.end, count(1)

        def before(_request, story=story, numbers=numbers, steps=steps, at=at):
            if next(numbers) == at:
                for _ in range(min(steps, len(story.steps))):
                    story.go_on()

        try:
            version = open_version(FaultStore(story.store, before=before), PATH, nodes=nodes)
            found = rows(version)
        except ObjectMissingError:
            continue  # merged or collected meanwhile: whoever reads opens it anew
        where = (begun, steps, at)
        assert told <= version.end, where
        assert [row[0] for row in found] == list(range(version.end)), where
        assert [row[1] for row in found] == [int(offset >= 60) for offset in range(version.end)], where
        assert all(row[2].startswith(b"new") for row in found[60:]), where
        read += 1
    assert read > 60
