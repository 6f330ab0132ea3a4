"""What happens to a cluster, as records of the stream `__activity`: every kind of event, and what it says.

A record's subject is the kind and what it is about, as `leader.changed.orders.3`; its key is what it is about alone,
as `partition/orders/3`; its value is a JSON object. The id of an event is made of the place of the change in the
metadata's log, so every node gives the same change the same id.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

__all__ = ["COMMON_FIELDS", "EVENTS_STREAM", "KINDS", "TOLD", "Event", "EventKind", "Position", "parse_id"]

EVENTS_STREAM: Final = "__activity"
_VERSION: Final = 1


class Position(NamedTuple):
    """Where an event comes from in the metadata's log; events are stored in this order.

    Attributes:
        revision: Revision of the metadata, after the change.
        number: Number of the event among those of the change.
    """

    revision: int
    number: int

    def __str__(self) -> str:
        """The id of the event."""
        return f"{self.revision}.{self.number}"


def parse_id(text: bytes) -> Position:
    """The position that an id says.

    Raises:
        ValueError: it is no id of an event.
    """
    revision, number = text.split(b".")
    return Position(int(revision), int(number))


class EventKind(NamedTuple):
    """A kind of event.

    Attributes:
        text: What happened.
        fields: Names of its own fields, beside `COMMON_FIELDS`.
        is_told: A node tells it of itself; all others are changes of the metadata.
    """

    text: str
    fields: tuple[str, ...] = ()
    is_told: bool = False


COMMON_FIELDS: Final = {
    "v": "version of this format: 1",
    "id": "`revision.number`, the same for the same change on every node",
    "time": "when it happened, by the clock of the node that told; ISO 8601 in UTC",
    "time_ns": "the same, in nanoseconds since the epoch",
    "kind": "what happened",
    "stream": "name of the stream; only where it is about one",
    "partition": "number of the partition; only where it is about one",
    "node": "the node that it is about, or that told; only where there is one",
    "cause": "why, for people; only where it is known",
}
"""What any event may have."""

KINDS: Final[dict[str, EventKind]] = {
    "stream.created": EventKind(
        "A stream was created, or restored from the bucket.",
        ("uuid", "subject", "partitions", "replicas", "restored"),
    ),
    "stream.edited": EventKind(
        "Settings of a stream were changed, or it was paused, resumed or made read-only. `changes` has old and new "
        "value of each.",
        ("changes",),
    ),
    "stream.purged": EventKind("Records of a partition below `log_start` were purged.", ("log_start",)),
    "stream.deleted": EventKind("A stream was deleted.", ("uuid",)),
    "leader.changed": EventKind(
        "Another node leads a partition. `leader` is null while none does.",
        ("leader", "previous", "leader_epoch", "unclean"),
    ),
    "isr.shrunk": EventKind(
        "Replicas left the in-sync replica set. `node` leads the partition.", ("left", "isr", "replicas")
    ),
    "isr.whole": EventKind("All replicas of a partition are in sync again.", ("isr",)),
    "node.joined": EventKind("A node registered for the first time.", ("incarnation", "rack")),
    "node.started": EventKind("A node that is known started again.", ("incarnation",)),
    "node.gone": EventKind("The session of a node ended: it leads nothing any more.", ("incarnation",)),
    "node.removed": EventKind("A node was removed from the cluster.", ("incarnation",)),
    "node.draining": EventKind("A node is to be emptied."),
    "node.drained": EventKind("A node that is to be emptied keeps no replica any more."),
    "node.undrained": EventKind("A node is not to be emptied any more."),
    "gap.opened": EventKind("A partition may miss messages from now on.", ("gap", "since_ns")),
    "gap.closed": EventKind(
        "A partition may miss messages of the time from `since_ns` to `until_ns`; `messages` is their number, or null.",
        ("gap", "since_ns", "until_ns", "messages"),
    ),
    "damage.found": EventKind("The log of a partition on `node` failed, or is damaged: it counts no longer."),
    "damage.repaired": EventKind("A new copy of the partition is in place on `node`, and catches up."),
    "upload.stopped": EventKind(
        "`node` can not move history to the bucket: nothing at all, or that of one partition.", ("code",), is_told=True
    ),
    "upload.resumed": EventKind("It goes on.", ("seconds",), is_told=True),
    "disk.full": EventKind(
        "The disk of `node` has no room to spare: messages are refused.", ("free_bytes", "reserve_bytes"), is_told=True
    ),
    "disk.freed": EventKind("It has room again.", ("free_bytes", "reserve_bytes", "seconds"), is_told=True),
    "refusals.begun": EventKind("`node` refuses messages to a stream, for `reason`.", ("reason",), is_told=True),
    "refusals.ended": EventKind(
        "No message was refused for `reason` for a minute; `messages` were before.",
        ("reason", "messages", "seconds"),
        is_told=True,
    ),
    "events.lost": EventKind(
        "Events up to the one with the id `through` could not be stored in time; `events_max` of them at most.",
        ("through", "events_max"),
    ),
}
"""By name."""

TOLD: Final = frozenset(name for name, kind in KINDS.items() if kind.is_told)
"""The kinds that nodes tell of themselves."""


class Event(NamedTuple):
    """Something that happened.

    Attributes:
        kind: One of `KINDS`.
        time_ns: Time of the event, ns since the epoch.
        stream: Name of the stream that it is about.
        partition: Number of the partition that it is about.
        node: Node that the event is about, or that told of it.
        details: Fields of this kind of event, and `cause`.
    """

    kind: str
    time_ns: int
    stream: str | None = None
    partition: int | None = None
    node: str | None = None
    details: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def about(self) -> tuple[str, ...]:
        """What it is about: node, stream or partition, with its name."""
        if self.stream is None:
            return () if self.node is None else ("node", self.node)
        return ("stream", self.stream) if self.partition is None else ("partition", self.stream, str(self.partition))

    @property
    def subject(self) -> bytes:
        """Subject of its record."""
        return ".".join((self.kind, *self.about[1:])).encode(errors="replace")

    @property
    def key(self) -> bytes:
        """Key of its record."""
        return "/".join(self.about or ("cluster",)).encode(errors="replace")

    def value(self, position: Position) -> bytes:
        """Value of its record."""
        when = datetime.fromtimestamp(self.time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        fields: dict[str, Any] = {
            "v": _VERSION,
            "id": str(position),
            "time": f"{when}.{self.time_ns // 1000 % 10**6:06d}Z",
            "time_ns": self.time_ns,
            "kind": self.kind,
        }
        for name in ("stream", "partition", "node"):
            if getattr(self, name) is not None:
                fields[name] = getattr(self, name)
        return json.dumps(fields | self.details, separators=(",", ":"), default=str).encode()
