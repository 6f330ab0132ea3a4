"""A member of a group, and how the log keeps it.

    value of a member   [version (1), nonce, revision, instance id, client id, rack, session_timeout_ms,
                         rebalance_timeout_ms, [subscription...], generation, held, revoking, target, [nonce...]]
    held, revoking      [[generation, stream uuid, [partition...]]...]
    target              [[0, stream uuid, [partition...]]...]
    value of a group    [version (1), generation, metadata revision, emptied_ns]

All of it is msgpack. When a member was last heard is not in the log: whoever takes over gives it a whole timeout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from liftpy_envelope.errors import BatchVersionError
from liftpy_envelope.pull import PartitionKey
from liftpy_envelope.unpacking import OWN_FILE, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_envelope.groups import JoinRequest

__all__ = ["GroupImage", "Member", "joined_generation"]

_VERSION: Final = 1
_FENCED_NONCES_MAX: Final = 8
_MEMBER_BYTES: Final = 1_000  # that a member takes, about, beside its texts
_TEXT_BYTES: Final = 60
_DIGITS_MAX: Final = 18


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A process in a group.

    Attributes:
        member_id: Given by the coordinator.
        nonce: Chosen by the process; see `JoinRequest`, also for what else is named as there.
        target: Partitions it is to have in the end.
        generation: Generation of its newest assignment.
        held: Partitions that nobody else may get, and the generation in which it got each: those of its newest
            assignment, and those in `revoking`.
        revoking: Partitions it is to let go, and the generation that took each: it has not said yet that it did.
        fenced: Nonces of the processes whose place it took, the last one last.
        deadline_s: Time until which there must be a heartbeat, or the member is out, seconds.
        revoke_deadline_s: If it has not let go by then it is out.
    """

    member_id: str
    nonce: bytes
    revision: int
    instance_id: str
    client_id: str
    rack: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscriptions: tuple[str, ...]
    target: frozenset[PartitionKey] = frozenset()
    generation: int = 0
    held: dict[PartitionKey, int] = field(default_factory=dict)
    revoking: dict[PartitionKey, int] = field(default_factory=dict)
    fenced: tuple[bytes, ...] = ()
    deadline_s: float = float("inf")
    revoke_deadline_s: float = float("inf")
    size_bytes: int = 0

    def __post_init__(self) -> None:
        self.size_bytes = size_of_join_options(self)

    @classmethod
    def joining(cls, generation: int, request: JoinRequest) -> Member:
        """A member as it joins in a generation, which is part of its id; it has nothing yet."""
        return cls(
            member_id=f"{generation}-{request.nonce.hex()}",
            **_join_options(request),
            nonce=request.nonce,
            instance_id=request.instance_id,
        )

    def change(self, request: JoinRequest) -> None:
        """Take over what the same process asks for now."""
        for name, value in _join_options(request).items():
            setattr(self, name, value)
        self.size_bytes = size_of_join_options(self)

    @property
    def assigned(self) -> list[PartitionKey]:
        """Partitions of the member's newest assignment, in order."""
        return sorted(self.held.keys() - self.revoking.keys())

    def heard(self, now_s: float) -> None:
        """Note that the member was heard."""
        self.deadline_s = now_s + self.session_timeout_ms / 1000

    def restart(self, now_s: float) -> None:
        """It gets all its time once more, because another coordinator takes over."""
        self.heard(now_s)
        self.revoke_deadline_s = float("inf")
        self.await_release(now_s)

    def await_release(self, now_s: float) -> None:
        """Start the time in which it has to let go, if it has to and the time does not run already."""
        if not self.revoking:
            self.revoke_deadline_s = float("inf")
        elif self.revoke_deadline_s == float("inf"):
            self.revoke_deadline_s = now_s + self.rebalance_timeout_ms / 1000

    def succeed(self, predecessor: Member, generation: int) -> list[PartitionKey]:
        """Take the place of a static member that was started again.

        Returns:
            What the predecessor was to let go. It is fenced from now on, so that nobody has them.
        """
        self.target = predecessor.target
        self.held = dict.fromkeys(predecessor.assigned, generation)
        self.generation = generation
        self.fenced = (*predecessor.fenced, predecessor.nonce)[-_FENCED_NONCES_MAX:]
        return list(predecessor.revoking)

    def to_value(self) -> bytes:
        """The value of the member's record in the log."""
        options = [self.revision, self.instance_id, self.client_id, self.rack]
        times = [self.session_timeout_ms, self.rebalance_timeout_ms]
        partitions = [_packed(self.held), _packed(self.revoking), _packed(dict.fromkeys(self.target, 0))]
        row = [_VERSION, self.nonce, *options, *times, list(self.subscriptions), self.generation, *partitions]
        return bytes(msgpack.packb([*row, list(self.fenced)]))

    @classmethod
    def from_value(cls, member_id: str, value: bytes) -> Member:
        """Read a value that `to_value` wrote.

        Raises:
            BatchVersionError: a newer liftpy wrote it.
        """
        row = _unpacked(value, "a member of a group")
        nonce, revision, instance_id, client_id, rack, session_ms, rebalance_ms = row[:7]
        subscriptions, generation, held, revoking, target, fenced = row[7:]
        return cls(
            member_id=member_id,
            nonce=nonce,
            revision=revision,
            instance_id=instance_id,
            client_id=client_id,
            rack=rack,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            subscriptions=tuple(subscriptions),
            generation=generation,
            held=_spread(held),
            revoking=_spread(revoking),
            target=frozenset(_spread(target)),
            fenced=tuple(fenced),
        )


class GroupImage(NamedTuple):
    """A group as the log keeps it; its members have records of their own.

    Attributes:
        generation: The newest one of any member.
        revision: Revision of the metadata that the targets were made from.
        emptied_ns: When the last member went; 0 while there are members.
    """

    generation: int = 0
    revision: int = 0
    emptied_ns: int = 0

    def to_value(self) -> bytes:
        """The value of the group's record in the log."""
        return bytes(msgpack.packb([_VERSION, *self]))

    @classmethod
    def from_value(cls, value: bytes) -> GroupImage:
        """Read a value that `to_value` wrote.

        Raises:
            BatchVersionError: a newer liftpy wrote it.
        """
        return cls(*_unpacked(value, "a group"))


def joined_generation(member_id: str) -> int:
    """The generation in which the member with this id joined; -1 for an id that no coordinator gave."""
    number, _, _nonce = member_id.partition("-")
    return int(number) if number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX else -1


def size_of_join_options(asked: JoinRequest | Member) -> int:
    """What a member asks for, in bytes, and about what it takes besides."""
    texts = (asked.client_id, asked.instance_id, asked.rack or "", *asked.subscriptions)
    return _MEMBER_BYTES + sum(map(len, texts)) + _TEXT_BYTES * len(asked.subscriptions)


def _join_options(request: JoinRequest) -> dict[str, Any]:
    names = ("revision", "client_id", "rack", "session_timeout_ms", "rebalance_timeout_ms", "subscriptions")
    return {name: getattr(request, name) for name in names}


def _packed(partitions: dict[PartitionKey, int]) -> list[Any]:
    rows: dict[tuple[int, bytes], list[int]] = {}
    for key, generation in sorted(partitions.items()):
        rows.setdefault((generation, key.uuid), []).append(key.partition)
    return [[*head, numbers] for head, numbers in rows.items()]


def _spread(rows: Iterable[tuple[int, bytes, list[int]]]) -> dict[PartitionKey, int]:
    return {PartitionKey(uuid, number): generation for generation, uuid, numbers in rows for number in numbers}


def _unpacked(value: bytes, what: str) -> list[Any]:
    version, *row = unpack(value, OWN_FILE)
    if version != _VERSION:
        raise BatchVersionError(
            f"{what} has version {version} in the log; this liftpy reads version {_VERSION}: upgrade the node"
        )
    return list(row)
