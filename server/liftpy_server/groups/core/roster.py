"""The members of a group, who is to have what, and who has it.

Invariants: a partition is held by at most one member. A member gets a partition only when nobody holds it; it holds
it until it has said that it let it go, or is out. The generation grows with every change of any assignment, and is
that of the members whose assignment changed; the others do not notice.

What changes is gathered until `written` is called, which gives the records that make the change last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.groups.core.assignment import Subscriber, assign
from liftpy_server.groups.core.records import GroupRecord, group_key, member_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.groups.core.assignment import StreamShape
    from liftpy_server.groups.core.member import GroupImage, Member

__all__ = ["Roster"]


class Roster:
    """Members of one group, their target assignment and what each of them holds.

    Args:
        group: Name of the group.
        image: What the log knows of it.
        members: Members that the log knows.
    """

    def __init__(self, group: str, image: GroupImage, members: Iterable[Member]) -> None:
        self._group = group
        self.image = image
        self.members = {member.member_id: member for member in members}
        self._holder: dict[PartitionKey, Member] = {}
        self._wanter: dict[PartitionKey, Member] = {}
        self._next_generation = image.generation + 1
        self._changed: dict[str, Member] = {}
        self._removed: list[str] = []
        self._told: dict[str, None] = {}
        self._now_s = 0.0
        for member in self.members.values():
            for key in member.held:
                assert key not in self._holder, f"partition {key} of group {group!r} has two owners in the log"
                self._holder[key] = member

    @property
    def generation(self) -> int:
        """The newest one that any assignment has or, in the midst of a change, will have."""
        return self.image.generation

    def begin(self, now_s: float) -> None:
        """Begin a rebalance."""
        self._now_s = now_s
        self._next_generation = self.image.generation + 1

    def new_generation(self) -> int:
        """The generation of the assignments that change now; the same until the next `begin`."""
        self.image = self.image._replace(generation=self._next_generation)
        return self._next_generation

    def by_nonce(self, nonce: bytes) -> Member | None:
        """The member that this process is."""
        return next((member for member in self.members.values() if member.nonce == nonce), None)

    def by_instance(self, instance_id: str) -> Member | None:
        """The static member of this name; None for "", which is no name."""
        if not instance_id:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def add(self, member: Member) -> None:
        """A member joins; it gets nothing before `retarget`."""
        member.generation = self.new_generation()
        self.members[member.member_id] = member
        self.image = self.image._replace(emptied_ns=0)
        self.note(member)

    def replace(self, predecessor: Member, member: Member) -> None:
        """A static member was started again: it has at once what its predecessor had."""
        freed = member.succeed(predecessor, self.new_generation())
        self._forget(predecessor)
        self.members[member.member_id] = member
        for key in freed:
            del self._holder[key]
        for key in member.held:
            self._holder[key] = member
        self.note(member)

    def renew(self, member: Member) -> None:
        """A member joined once more, and may have forgotten what it read: commits from before do not count any more."""
        generation = self._reassigned(member)
        member.held.update(dict.fromkeys(member.assigned, generation))

    def remove(self, member: Member, now_ns: int) -> None:
        """A member is out; what it had is given to others by `retarget`."""
        self._forget(member)
        for key in member.held:
            del self._holder[key]
        if not self.members:
            self.image = self.image._replace(emptied_ns=now_ns)

    def _forget(self, member: Member) -> None:
        del self.members[member.member_id]
        self._changed.pop(member.member_id, None)
        self._removed.append(member.member_id)
        self._told[member.member_id] = None

    def note(self, member: Member) -> None:
        """A member changed, and the log is to know."""
        self._changed[member.member_id] = member

    def release(self, member: Member, adopted: int) -> None:
        """A member has stopped all that generation `adopted` and those before it took from it."""
        freed = [key for key, generation in member.revoking.items() if generation <= adopted]
        if not freed:
            return
        for key in freed:
            del member.revoking[key]
            del member.held[key]
            del self._holder[key]
        member.await_release(self._now_s)
        self.note(member)
        self._grant(freed)

    def retarget(self, streams: Mapping[str, StreamShape], revision: int) -> None:
        """Work out anew who is to have what, take from members what is not theirs any more, give what is free."""
        subscribers = {
            member_id: Subscriber(member.subscriptions, member.rack, member.target)
            for member_id, member in self.members.items()
        }
        self.image = self.image._replace(revision=revision)
        self._wanter = {}
        for member_id, target in assign(subscribers, streams).items():
            member = self.members[member_id]
            if member.target != target:
                member.target = target
                self.note(member)
            self._wanter.update(dict.fromkeys(target, member))
        for member in self.members.values():
            self._revoke(member)
        self._grant(self._wanter)

    def _revoke(self, member: Member) -> None:
        taken = member.held.keys() - member.revoking.keys() - member.target
        if taken:
            generation = self._reassigned(member)
            member.revoking.update(dict.fromkeys(taken, generation))
            member.await_release(self._now_s)

    def _grant(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            member = self._wanter.get(key)
            if member is None:
                continue
            holder = self._holder.get(key)
            if holder is None:
                member.held[key] = self._reassigned(member)
                self._holder[key] = member
            elif holder is member and key in member.revoking:
                # It was to let go and may keep it after all. If it did let go already it fetches the offset anew, and
                # no commit from before may change it after that.
                del member.revoking[key]
                member.held[key] = self._reassigned(member)
                member.await_release(self._now_s)

    def _reassigned(self, member: Member) -> int:
        member.generation = self.new_generation()
        self._told[member.member_id] = None
        self.note(member)
        return member.generation

    def written(self) -> tuple[list[GroupRecord], tuple[str, ...]]:
        """The records of what changed, to go into one batch, and the members to be told."""
        told, self._told = tuple(self._told), {}
        changed, self._changed = self._changed, {}
        removed, self._removed = self._removed, []
        if not changed and not removed:
            return [], told
        records = [GroupRecord(group_key(self._group), self.image.to_value())]
        records += [GroupRecord(member_key(self._group, member_id), None) for member_id in removed]
        records += [GroupRecord(member_key(self._group, name), member.to_value()) for name, member in changed.items()]
        return records, told
