"""Which shared objects become others: it ends, slots are kept apart, and nothing is lost or written too often."""

from __future__ import annotations

from itertools import pairwise
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.layout import SLOTS, PartitionPath
from liftpy_bucket.manifest.stream_sets.changes import listed
from liftpy_bucket.objects.pointers import Extent, member_order
from liftpy_server.tier.jobs.parts.set_merge_plan import Part, chains_of, divided, objects_to_merge
from support.examples import examples
from support.manifest_kit import member, set_object

KIB = 1024
OBJECT_BYTES = 64 * KIB
RECORD_BYTES = 10  # so that a partition never has more than a quarter of an object, as with default settings


class Objects:
    """Objects of a node, as the plan sees them: rounds are added, and merged as long as there is something to merge."""

    def __init__(self, bytes_max=OBJECT_BYTES):
        self.pointers = []
        self._bytes_max = bytes_max
        self._sequence = 0
        self.rewritten = 0

    def add(self, members):
        self.pointers.append(self._object(members))

    def _object(self, members):
        self._sequence += 1
        found, start = [], 0
        for path, tier_epoch, base, end in members:
            size = RECORD_BYTES * (end - base)
            made = member(base, end, tier_epoch=tier_epoch, path=path, start=start)
            object.__setattr__(made, "extent", Extent(size, size // 2, "cd" * 32, start=start))
            found.append(made)
            start += size
        found.sort(key=member_order)
        pointer = set_object(self._sequence, *found)
        object.__setattr__(pointer, "size", start)
        return pointer

    def merge(self):
        """Merge once. Says whether there was something to merge."""
        names = {each.name for each in objects_to_merge([listed(each) for each in self.pointers], self._bytes_max)}
        if not names:
            return False
        assert len(names) >= 4
        run = [each for each in self.pointers if each.name in names]
        parts = [Part(each, one, one.base, one.end) for each in run for one in each.members]
        self.rewritten += sum(each.size for each in run)
        made = []
        for chains in divided(chains_of(parts), self._bytes_max):
            members = []
            for chain in chains:
                first, last = chain[0].member, chain[-1].member
                path = PartitionPath(first.uuid, first.partition)
                assert {part.member.tier_epoch for part in chain} == {first.tier_epoch}
                assert all(one.end == other.start for one, other in pairwise(chain))
                members.append((path, first.tier_epoch, first.base, last.end))
            made.append(self._object(members))
        ranges = [(listed(each).first, listed(each).last) for each in made]
        assert all(one[1] < other[0] for one, other in pairwise(ranges)), "no slot is in two of them"
        at = self.pointers.index(run[0])
        self.pointers = [each for each in self.pointers if each.name not in names]
        self.pointers[at:at] = made
        return True

    def merge_all(self):
        for _ in range(1_000):
            if not self.merge():
                return
        pytest.fail("merging does not end")

    @property
    def records(self):
        """Of each partition, what members say they have, in their order."""
        found = {}
        for each in self.pointers:
            for one in each.members:
                found.setdefault((one.uuid, one.partition), []).append((one.tier_epoch, one.base, one.end))
        return {path: sorted(ranges) for path, ranges in found.items()}

    @property
    def size(self):
        return sum(each.size for each in self.pointers)


def path_of(number):
    return PartitionPath(f"{number:032x}", 0)


@pytest.mark.parametrize(("streams", "rounds"), [(5, 160), (60, 160), (400, 160), (2_000, 60)])
def test_members_of_a_partition_grow_with_the_logarithm_of_its_records(streams, rounds):
    objects = Objects()
    ordered = sorted(map(path_of, range(streams)), key=lambda path: member_order(member(0, 1, path=path)))
    for number in range(rounds):
        for first in range(0, streams, 200):  # as the schedule does with those that are too many for one object
            objects.add([(path, 1, 10 * number, 10 * number + 10) for path in ordered[first : first + 200]])
        objects.merge_all()
        most = max(map(len, objects.records.values()))
        assert most <= 3 * (1 + log2(number + 1) / 2) + 4
    assert all(ranges[0][1] == 0 and ranges[-1][2] == 10 * rounds for ranges in objects.records.values())
    assert all(one[2] == other[1] for ranges in objects.records.values() for one, other in pairwise(ranges))
    assert max(each.size for each in objects.pointers) <= 2 * OBJECT_BYTES
    assert objects.rewritten <= (2 + log2(rounds) / 2) * objects.size


ROUNDS = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3), st.integers(1, 400)), min_size=1, max_size=12),
    min_size=1,
    max_size=40,
)


@given(ROUNDS, st.sampled_from([2 * KIB, 16 * KIB, 256 * KIB, 4 << 20]))
@examples(150)
def test_whatever_rounds_there_are_merging_ends_and_conserves_them(rounds, bytes_max):
    objects, ends, given_records = Objects(bytes_max), {}, 0
    for members in rounds:
        chosen = {}
        for number, tier_epoch, records in members:
            base = ends.get(number, 0)
            chosen.setdefault(number, (path_of(number), tier_epoch, base, base + records))
        for number, (_, _, base, end) in chosen.items():
            ends[number] = end
            given_records += end - base
        objects.add(list(chosen.values()))
        objects.merge_all()
    found = objects.records
    assert sum(end - base for ranges in found.values() for _, base, end in ranges) == given_records
    for number, end in ends.items():
        offsets = sorted((base, stop) for _, base, stop in found[path_of(number)])
        assert offsets[0][0] == 0
        assert offsets[-1][1] == end
        assert all(one[1] == other[0] for one, other in pairwise(offsets))


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 60), st.integers(1, 200)), min_size=1, max_size=60))
@examples(100)
def test_merging_ends_whatever_slots_objects_have(rounds):
    objects, ends = Objects(16 * KIB), {}
    paths = sorted(map(path_of, range(160)), key=lambda path: member_order(member(0, 1, path=path)))
    for first, streams, records in rounds:
        members = []
        for path in paths[first : first + streams]:
            base = ends.get(path, 0)
            ends[path] = base + records
            members.append((path, 1, base, base + records))
        objects.add(members)
        objects.merge_all()
    assert {path: ranges[-1][2] for path, ranges in objects.records.items()} == ends


def test_four_of_other_slots_are_left_alone():
    objects, quarter = Objects(), SLOTS // 4
    paths = sorted(map(path_of, range(400)), key=lambda path: member_order(member(0, 1, path=path)))
    slots = {path: member_order(member(0, 1, path=path))[0] for path in paths}
    for number in range(4):
        some = [path for path in paths if slots[path] // quarter == number]
        objects.add([(path, 1, 0, 10) for path in some])
    assert not objects.merge()
