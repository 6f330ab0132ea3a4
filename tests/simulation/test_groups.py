"""Consumer groups under faults, hundreds of times: partitions have one owner, commits never go back, all is read again.

A failure names its seed: `run(seed)` does exactly the same again.
"""

from collections import Counter

import pytest

from liftpy_envelope.groups import GroupError
from liftpy_server.groups.core import committing
from liftpy_server.groups.core.coordinator import GroupCoordinator
from liftpy_server.groups.core.member import GroupImage, Member
from liftpy_server.groups.core.offset_table import OffsetTable
from liftpy_server.groups.core.roster import Roster
from simulation.groups_world import GroupsWorld, Node, ViolationError, run
from support.examples import first


@pytest.mark.parametrize("hundred", first(1, range(3)))
def test_no_promise_to_a_group_is_broken(hundred):
    print(f"seeds {hundred * 100} to {hundred * 100 + 99}")
    seen: Counter[str] = Counter()
    for seed in range(hundred * 100, hundred * 100 + 100):
        try:
            seen += run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    wanted = ("failover", "freeze", "crash", "leave", "streams", "subscribe", "repeated", "UNKNOWN_MEMBER")
    wanted += ("FENCED_MEMBER", "NOT_ASSIGNED", "STALE_GENERATION", "NOT_AVAILABLE", "NOT_LEADER")
    assert {name for name in wanted if seen[name] < 10} == set(), seen


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(1, 11))
def test_no_promise_to_a_group_is_broken_in_many_runs(thousand):
    print(f"seeds {thousand * 1_000} to {thousand * 1_000 + 999}")
    for seed in range(thousand * 1_000, thousand * 1_000 + 1_000):
        try:
            run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_run_can_be_repeated():
    assert [run(seed) for seed in range(5)] == [run(seed) for seed in range(5)]


def give_at_once(self, member):
    """A partition changes hands before its owner has let it go."""
    for key in member.held.keys() - member.target:
        del member.held[key], self._holder[key]
        self._reassigned(member)


def answer_at_once(self):
    """Answers do not wait for the log."""
    while self._waiting:
        self._waiting.popleft()[1]()


def forget_the_release(self, member, adopted):
    """That a partition was let go is not written."""
    release(self, member, adopted)
    self._changed.pop(member.member_id, None)


def know_no_later_coordinator(self, request):
    """A coordinator that was replaced believes what it knows."""
    return self.members.get(request.member_id) or member_of(self, request)


def fence_whom_it_does_not_know(self, request):
    """Whoever has the name of a static member, but is not that member, is taken for its predecessor."""
    if request.member_id not in self.members and self._roster.by_instance(request.instance_id) is not None:
        return GroupError.FENCED_MEMBER, ""
    return member_of(self, request)


def ask_for_nothing(member, request, table, now_ns):
    """A member may commit whatever it likes."""
    everything = {
        committing.PartitionKey(stream.uuid, offset.partition): 0
        for stream in request.streams
        for offset in stream.offsets
    }
    free = Member.from_value(member.member_id, member.to_value())
    free.held, free.revoking = everything, {}
    return commit_as_member(free, request, table, now_ns)


release, member_of, commit_as_member = Roster.release, GroupCoordinator._member, committing.commit_as_member
BUGS = {
    "partitions are given at once": (Roster, "_revoke", give_at_once),
    "answers do not wait": (Node, "answer", answer_at_once),
    "a release is not written": (Roster, "release", forget_the_release),
    "a replaced coordinator answers": (GroupCoordinator, "_member", know_no_later_coordinator),
    "a replaced coordinator fences": (GroupCoordinator, "_member", fence_whom_it_does_not_know),
    "everybody commits": ("liftpy_server.groups.core.coordinator", "commit_as_member", ask_for_nothing),
    "commits have no order": (OffsetTable, "token", lambda self, group, suffix: None),
    "the generation is not written": (
        GroupImage, "to_value", lambda self, write=GroupImage.to_value: write(self._replace(generation=0)),
    ),
    "the dead stay members": (GroupCoordinator, "_tick", lambda self, given, now, records: None),
    "nobody is waited for at the end": (Roster, "release", lambda self, member, adopted: None),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_finds_bugs(name, monkeypatch):
    place, attribute, bug = BUGS[name]
    if isinstance(place, str):
        monkeypatch.setattr(f"{place}.{attribute}", bug)
    else:
        monkeypatch.setattr(place, attribute, bug)
    if place is GroupCoordinator:
        handlers = {
            kind: bug if handler.__name__ == attribute else handler
            for kind, handler in GroupCoordinator._HANDLERS.items()
        }
        monkeypatch.setattr(GroupCoordinator, "_HANDLERS", handlers)
    for seed in range(100):
        try:
            run(seed)
        except (ViolationError, AssertionError, KeyError) as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"100 seeds do not show that {name}")


@pytest.mark.parametrize("seed", first(5, range(20)))
def test_a_static_member_that_is_back_in_time_moves_nothing(seed):
    world = GroupsWorld(seed, clients=0)
    world.is_calm = True
    for number in range(3):
        world.start_client(f"i{number}").subscriptions = ("s", "t")
    world.run_until(6)
    owned = {client.instance_id: set(client.owned) for client in world.living}
    generations = {client.instance_id: client.generation for client in world.living}
    gone = world.rng.choice(world.living)
    gone.is_alive = False
    if seed % 2:
        world.after(world.rng.uniform(0, 2), world.fail_over)
    world.after(
        world.rng.uniform(0, 2), lambda: setattr(world.start_client(gone.instance_id), "subscriptions", ("s", "t"))
    )
    world.run_until(16)
    world.check_settled()
    assert owned == {client.instance_id: set(client.owned) for client in world.living}
    assert any(owned.values())
    for client in world.living:
        assert client.generation == generations[client.instance_id] or client.instance_id == gone.instance_id
