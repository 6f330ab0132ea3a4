"""Replicas of one partition on several nodes without a network: real partitions and logs, and a host that delivers.

Fetches and questions wait in the host of their node until the test delivers them; proposals are kept in a list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_envelope.batch import read_header
from liftpy_envelope.follow import FollowFetch
from liftpy_log.ids.ordered import decode_ordered
from liftpy_log.recent import RecentBatches
from liftpy_server.replication.core.inputs import FetchAnswered
from liftpy_server.replication.core.view import PartitionView, ReplicationTimes
from liftpy_server.replication.host.local import LocalReplica
from liftpy_server.replication.wire.batches import FollowedBatches, ranges_of
from support.server_kit import UUID, Kit

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ReplicaKit", "Side"]

TIMES = ReplicationTimes()


class Side:
    """One node: its partition, its replica, and what a replica's host does."""

    def __init__(self, node_id: str, directory: Path, kit: ReplicaKit, **settings: Any) -> None:
        self.node_id = node_id
        self.incarnation = 1
        self.times = TIMES
        self.recent = RecentBatches()
        self.kit = Kit(directory, **settings)
        self.partition = self.kit.partition
        self.partition.is_leading = False
        self.partition.high_watermark = 0
        self.asked: Any = None
        self.proposals: list[Any] = []
        self.warnings: list[str] = []
        self.leaderships = 0
        self.is_cut_off = False
        self._all = kit
        self.replica = LocalReplica(self.partition, self)

    def now_s(self) -> float:
        return self._all.now_s

    def fetch(self, _replica: LocalReplica, leader: str, request: Any) -> None:
        self.asked = (leader, request)

    ask = fetch

    def propose(self, _replica: LocalReplica, effect: Any) -> None:
        self.proposals.append(effect)

    def drop(self, _replica: LocalReplica) -> None:
        self.asked = None

    def leave(self, _replica: LocalReplica) -> None:
        self.asked = None

    def committed(self) -> None:
        self.kit.outbox.flush()

    def leadership_changed(self, _replica: LocalReplica) -> None:
        self.leaderships += 1

    def stepped(self, _replica: LocalReplica, *, is_quiet: bool) -> None:
        self.is_quiet = is_quiet

    def heard_of(self, nodes: Any) -> dict[str, float]:
        return dict.fromkeys(nodes, self.now_s())

    def heard_from_leader(self, _replica: LocalReplica) -> dict[str, float]:
        return {}

    def warn(self, _replica: LocalReplica, text: str) -> None:
        self.warnings.append(text)

    def deliver(self) -> bool:
        """Let the leader answer what this node asks; False when there is nothing to say."""
        if self.asked is None:
            return False
        leader, request = self.asked
        other = self._all.sides[leader].replica
        if not isinstance(request, FollowFetch):
            self.asked = None
            self.replica.step(other.follower_asked(self.node_id, request))
            return True
        answer, sent = other.follower_fetched(self.node_id, request), {}
        if not answer.refusal:
            answer, sent = other.follower_news(request), _records(other, request.offset)
            end = sent["ranges"][-1].end if sent["ranges"] else request.offset
            if not sent["ranges"] and answer.high_watermark <= request.high_watermark and request.knows:
                return False
            if told := other.told_producers(request, end):
                answer = answer._replace(producers_bytes=len(told))
                sent["records"] = sent["records"]._replace(told=decode_ordered(told))
        self.asked = None
        self.replica.step(FetchAnswered(result=answer, **sent))
        return True

    def bytes(self) -> bytes:
        """Everything in the log's segments."""
        return b"".join(segment.path.read_bytes()[: segment.size] for segment in self.partition.log.segments)


def _records(replica: LocalReplica, offset: int) -> dict[str, Any]:
    log = replica.log
    pieces = log.read(offset, log.log_end, 2**30) if log.log_end > offset else []
    data = b"".join(piece.segment.path.read_bytes()[piece.position : piece.position + piece.length] for piece in pieces)
    headers, position = [], 0
    while position < len(data):
        headers.append(read_header(memoryview(data)[position:]))
        position += headers[-1].length
    return {
        "ranges": ranges_of(headers, offset) if headers else (),
        "records": FollowedBatches(data, headers),
    }


class ReplicaKit:
    """Nodes `a`, `b` and `c`, of which `a` leads in epoch 1 when nothing else is said."""

    def __init__(self, directory: Path, nodes: str = "abc", **settings: Any) -> None:
        self.now_s = 1_000.0
        self.revision = 0
        self.settings = {"replicas": len(nodes)} | settings
        self.sides = {node: Side(node, directory / node, self, **self.settings) for node in nodes}

    def __getitem__(self, node: str) -> Side:
        return self.sides[node]

    def lead(self, leader: str, epoch: int, *, isr: str | None = None, told: str | None = None, **more: Any) -> None:
        """The metadata changes, and the nodes `told` hear of it."""
        self.revision += 1
        nodes = "".join(self.sides)
        view = PartitionView(
            revision=self.revision,
            uuid=UUID.hex(),
            replicas=tuple(nodes),
            isr=tuple(nodes if isr is None else isr),
            leader=leader,
            leader_epoch=epoch,
            version=self.revision,
            min_isr=self.sides[leader].kit.stream.config.min_isr_effective,
            incarnations=dict.fromkeys(nodes, 1),
            **more,
        )
        for node in nodes if told is None else told:
            self.sides[node].replica.viewed(view)

    def run(self, nodes: str | None = None, *, sync: bool = True) -> None:
        """Deliver and sync until nothing more happens."""
        sides = [self.sides[node] for node in nodes or self.sides]
        busy = True
        while busy:
            busy = False
            for side in sides:
                if sync and side.kit.sync_requests:
                    side.kit.sync()
                    busy = True
                busy |= side.deliver()

    def tick(self, seconds: float) -> None:
        """Time passes on all nodes, in steps."""
        for _ in range(int(seconds / 0.2)):
            self.now_s += 0.2
            for side in self.sides.values():
                side.replica.tick(0.0)
            self.run()

    def close(self) -> None:
        for side in self.sides.values():
            side.kit.close()
