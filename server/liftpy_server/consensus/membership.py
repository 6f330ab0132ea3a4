"""Who votes and who only follows, as the log says it: the voters at its beginning, and the changes in its entries.

Raft goes by the newest configuration in the log, from the moment it is appended until it is truncated again. So the
members are always folded from the log, also after a restart, and never edited in place.

    membership entry   0x02 | msgpack [op, voter]

    learn   follow the log, and count nowhere        add    vote
    rem     be no member any more                    set    be reached at another address
    bind    have this data directory from now on: a node of that name with another one is not let in
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

from liftpy_envelope.unpacking import Bounds, unpack
from liftpy_server.consensus.settings import VOTERS_MAX, Voter
from liftpy_server.consensus.storage.journal import MEMBERSHIP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftpy_server.consensus.storage.journal import Entry

__all__ = ["Members", "Membership", "decode_change", "encode_change"]

_OPS: Final = frozenset({"learn", "add", "rem", "set", "bind"})
_MEMBERS_MAX: Final = 64
_BOUNDS: Final = Bounds(items=16, length=8, text_bytes=1_024, binary_bytes=0, depth=2)

_Change = tuple[str, Voter]


class Members(NamedTuple):
    """Voters and learners, by node id."""

    voters: dict[str, Voter]
    learners: dict[str, Voter]

    @property
    def all(self) -> dict[str, Voter]:
        """Ids of voters and learners."""
        return self.voters | self.learners


def encode_change(op: str, voter: Voter) -> bytes:
    """The entry with a change."""
    return bytes((MEMBERSHIP,)) + bytes(msgpack.packb([op, voter.to_plain()]))


def decode_change(command: bytes) -> _Change | None:
    """The change in an entry; None when it holds none, or no sound one: then every node ignores it alike."""
    if command[:1] != bytes((MEMBERSHIP,)):
        return None
    try:
        op, voter = unpack(command[1:], _BOUNDS)
        return (op, Voter.from_plain(voter)) if op in _OPS else None
    except (ValueError, TypeError):
        return None


def _apply(members: Members, op: str, voter: Voter) -> None:
    name = voter.node_id
    group = members.voters if name in members.voters else members.learners
    known = group.get(name)
    if op == "learn" and known is None:
        members.learners[name] = voter
    elif op == "add" and name not in members.voters:
        members.voters[name] = members.learners.pop(name, voter)
    elif op == "rem" and known is not None and (group is members.learners or len(group) > 1):
        del group[name]
    elif op == "set" and known is not None:
        group[name] = replace(voter, instance=known.instance)
    elif op == "bind" and known is not None and not known.instance:
        group[name] = replace(known, instance=voter.instance)


class Membership:
    """The members, by log index."""

    _base: Members
    _after: int
    _changes: list[tuple[int, _Change]]

    def __init__(self, voters: Iterable[Voter], after: int = 1) -> None:
        self.reset(voters, (), after)

    def reset(self, voters: Iterable[Voter], learners: Iterable[Voter], after: int) -> None:
        """Replace everything by the members after entry `after`."""
        self._base = Members({each.node_id: each for each in voters}, {each.node_id: each for each in learners})
        self._after = after
        self._changes = []

    @property
    def index(self) -> int:
        """Index of the entry up to which the newest members are known; who knows a later one is newer."""
        return self._changes[-1][0] if self._changes else self._after

    def record(self, entries: Sequence[Entry]) -> None:
        """Take note of entries that were appended."""
        for command, index, _ in entries:
            change = decode_change(command)
            if change is not None and index > self._after:
                self._changes.append((index, change))

    def truncate(self, index: int) -> None:
        """Forget the entries from `index` on."""
        self._changes = [change for change in self._changes if change[0] < index]

    def compact(self, index: int) -> None:
        """Make the members after `index` the beginning."""
        self._base = self.members(index)
        self._after = index
        self._changes = [change for change in self._changes if change[0] > index]

    def members(self, index: int | None = None) -> Members:
        """The members after entry `index`; after the newest when None."""
        members = Members(dict(self._base.voters), dict(self._base.learners))
        for position, (op, voter) in self._changes:
            if index is not None and position > index:
                break
            _apply(members, op, voter)
        return members

    def voters(self, index: int | None = None) -> dict[str, Voter]:
        """Ids of the members that vote."""
        return self.members(index).voters

    def refusal(self, command: bytes) -> str | None:
        """Why a leader must not append this change; None when it may."""
        change = decode_change(command)
        if change is None:
            return "malformed"
        op, voter = change
        members = self.members()
        name = voter.node_id
        if op == "learn":
            if name in members.all:
                return f"{name!r} is a member already"
            return f"there are {_MEMBERS_MAX} members already" if len(members.all) >= _MEMBERS_MAX else None
        if name not in members.all and op != "add":
            return f"{name!r} is no member"
        if op == "rem" and members.voters.keys() == {name}:
            return f"{name!r} is the only one that votes"
        if op == "add" and name in members.voters:
            return f"{name!r} votes already"
        if op == "add" and len(members.voters) >= VOTERS_MAX:
            return f"there are {VOTERS_MAX} voters already"
        return None
