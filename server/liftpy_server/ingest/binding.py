"""A subscription's stream: which partitions its messages go to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.partitioner import partition_of
from liftpy_envelope.stream_config import Spread
from liftpy_server.messages.incoming import read_message

if TYPE_CHECKING:
    from liftpy_server.messages.incoming import Incoming
    from liftpy_server.messages.runs import Run
    from liftpy_server.partition.partition import Partition
    from liftpy_server.partition.stream_state import StreamState

__all__ = ["Binding"]


class Binding:
    """One NATS subscription of a stream.

    Args:
        stream: The stream.
        subject: What is subscribed.
        partitions: Partitions by number, those that this node leads and that this subscription feeds.

    Attributes:
        group: The queue group to join, if any.
        skip: Size of the prefix of the subjects, which is not stored.
    """

    def __init__(self, stream: StreamState, subject: str, partitions: dict[int, Partition]) -> None:
        self.stream = stream
        self.subject = subject
        self.group = stream.config.group
        self.partitions = partitions
        self.skip = len(subject) - len(stream.config.subject)
        config = stream.config
        self._shares = config.partitions if config.spread is Spread.HASH and config.partitions > 1 else 0

    def open_gap(self, since_s: float, cause: str) -> None:
        """Messages may be missing from `since_s` on, by the clock of elapsed time.

        Where another node leads it tells of its gaps, and this one does not hold everything any more.
        """
        for partition in self.partitions.values():
            if partition.is_leading:
                partition.gaps.open(since_s, cause)
            elif partition.held is not None:
                partition.held.break_off()

    def heard(self, asked_s: float) -> None:
        """Everything that was published before `asked_s` has come, and is in the log, but for what is held."""
        for partition in self.partitions.values():
            if partition.held is None:
                partition.heard_s = asked_s
            partition.gaps.heard(asked_s)

    def missed(self, cause: str) -> None:
        """Messages that were read are lost, here: of partitions that another node leads still, it has them."""
        for partition in self.partitions.values():
            if partition.is_leading:
                partition.gaps.missed(partition.heard_s, cause)
            elif partition.held is not None:
                partition.held.break_off()

    @property
    def address(self) -> tuple[str, str | None]:
        """What tells this subscription from others of its stream."""
        return self.subject, self.group

    def deliver(self, run: Run, now_ns: int, touched: dict[Partition, None]) -> None:
        """Append messages to the partitions they belong to, which are added to `touched`."""
        if not self._shares:
            only = next(iter(self.partitions.values()))
            only.append(run, self.skip, now_ns)
            touched[only] = None
        elif run.is_plain:
            for number, share in run.split(self._partition_of):
                partition = self.partitions.get(number)
                if partition is not None:
                    partition.append(share, self.skip, now_ns)
                    touched[partition] = None
        else:
            self._deliver_read(run, now_ns, touched)

    def _partition_of(self, subject: bytes) -> int:
        return partition_of(subject, self._shares)

    def _deliver_read(self, run: Run, now_ns: int, touched: dict[Partition, None]) -> None:
        shares: dict[int, list[Incoming]] = {}
        for message in run.messages():
            incoming = read_message(message, self.stream.config, self.skip)
            shares.setdefault(incoming.partition(self._shares), []).append(incoming)
        for number, share in shares.items():
            partition = self.partitions.get(number)
            if partition is not None:
                partition.append_incoming(share, now_ns)
                touched[partition] = None
