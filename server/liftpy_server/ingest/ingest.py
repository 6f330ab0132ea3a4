"""The ingest of a node, without the socket: chunks go in, batches land in partitions, acks in the outbox.

Chunks are gathered before they are parsed when that pays. A chunk that spreads over hundreds of streams makes hundreds
of small batches, and each costs more than its messages do; so after such a pass the next one waits for as long as the
last one took, while the socket goes on being read. Under load the batches grow until cutting them costs no more
than half of the time; without load nothing ever waits.

What was read is not dropped in silence: it is stored, or refused, or, where an error comes in between that nobody
expected, the partitions that it may have been for have a gap.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from liftpy_server.ingest.parser import MessageParser
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.settings.limits import (
    INGEST_LINGER_BYTES_MAX,
    INGEST_LINGER_S_MAX,
    LINGER_RUNS_MIN,
    RUN_MESSAGES_PER_PARTITION_MIN,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_log.clock import Clock
    from liftpy_server.ingest.binding import Binding
    from liftpy_server.ingest.marks import Marks
    from liftpy_server.messages.runs import Run
    from liftpy_server.partition.outbox import Outbox
    from liftpy_server.partition.partition import Partition

__all__ = ["Ingest"]

logger = logging.getLogger(__name__)


class Ingest:
    """Runs one pass over each chunk from the NATS socket: parse, deliver, ask for durability, write acks.

    Args:
        clock: Stamps what is read, and measures passes.
        outbox: Flushed after every pass.
        hand_back: Takes the lines that are not messages.
        call_later: Schedules a pass, as `loop.call_later` does.
        on_broken: Told why a chunk can not be taken: nothing more can be read from this connection.

    Attributes:
        bindings: Where the messages of a subscription go, by subscription id.
        unbound: Messages of subscriptions that were ended in the meantime.
        marks: Where chunks are cut; None cuts none.
    """

    marks: Marks | None = None

    def __init__(
        self,
        clock: Clock,
        outbox: Outbox,
        hand_back: Callable[[bytes], None],
        call_later: Callable[[float, Callable[[], None]], object],
        on_broken: Callable[[str], None],
    ) -> None:
        self.bindings: dict[int, Binding] = {}
        self.unbound = 0
        self._clock = clock
        self._outbox = outbox
        self._hand_back = hand_back
        self._call_later = call_later
        self._on_broken = on_broken
        self._warnings = RepeatedWarnings(logger)
        self._parser = MessageParser()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._not_before = 0.0

    def receive(self, data: bytes) -> None:
        """Take a chunk from the socket; pass it on now, or with the chunks to come."""
        if not self._gathered and self._clock.monotonic() >= self._not_before:
            self._pass_on(data)
            return
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= INGEST_LINGER_BYTES_MAX:
            self.run()
        elif len(self._gathered) == 1:
            self._call_later(self._not_before - self._clock.monotonic(), self.run)

    @property
    def unfinished_bytes(self) -> int:
        """Size of the message of which a part has come."""
        return self._parser.unfinished_bytes

    def run(self) -> None:
        """Pass on what was gathered."""
        if self._gathered:
            data = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
            self._gathered, self._gathered_bytes = [], 0
            self._pass_on(data)

    def reset(self) -> None:
        """The connection is gone: pass on what is whole, and forget the half of a message at its end."""
        self.run()
        self._parser.reset()

    def _pass_on(self, data: bytes) -> None:
        try:
            for piece in (data,) if self.marks is None else self.marks.pieces(data):
                self._pass_on_piece(piece)
        except Exception as error:
            logger.exception("what the NATS server sent can not be taken: the connection is made anew")
            self._parser.reset()
            self._on_broken(f"what the NATS server sent could not be taken: {error!r}")

    def _pass_on_piece(self, data: bytes) -> None:
        """Parse, append, and send the acks that are due."""
        started = self._clock.monotonic()
        runs, control = self._parser.feed(data)
        if runs:
            messages = self._deliver(runs)
            self._send_acks(started)
            if len(runs) >= LINGER_RUNS_MIN and _is_spread(runs, messages):
                ended = self._clock.monotonic()
                self._not_before = ended + min(ended - started, INGEST_LINGER_S_MAX)
        if control:
            self._hand_back(control)

    def _send_acks(self, started_s: float) -> None:
        try:
            self._outbox.flush()
        except Exception as error:  # noqa: BLE001 - the messages are in the log, and publishers without an ack ask again
            self._warnings.tell("sending acks", f"acks can not be sent now: {error!r}", started_s, error=error)

    def _deliver(self, runs: list[tuple[int, Run]]) -> int:
        now_ns, started_s = self._clock.now_ns(), self._clock.monotonic()
        count = 0
        touched: dict[Partition, None] = {}
        if self.marks is not None and len(runs) > 1:  # a mark is the first message of a piece
            runs.sort(key=lambda each: self.bindings.get(each[0]) is not self.marks)
        for sid, run in runs:
            count += run.count
            binding = self.bindings.get(sid)
            if binding is None:
                self.unbound += run.count
                continue
            try:
                binding.deliver(run, now_ns, touched)
            except Exception as error:  # noqa: BLE001 - the messages of other subscriptions are not to suffer for it
                cause = f"messages that were read could not be taken: {error!r}"
                binding.missed(cause)
                self._warnings.tell("taking messages", f"stream {binding.stream.name}: {cause}", started_s, error=error)
        for partition in touched:
            try:
                partition.end_pass()
            except Exception as error:  # noqa: BLE001 - as above; the messages are in the log, and the next pass settles
                self._warnings.tell("settling", f"a partition can not commit now: {error!r}", started_s, error=error)
        return count


def _is_spread(runs: list[tuple[int, Run]], messages: int) -> bool:
    """Whether there are many subscriptions with few messages each."""
    subscriptions = len({sid for sid, _ in runs})
    return subscriptions >= LINGER_RUNS_MIN and messages < RUN_MESSAGES_PER_PARTITION_MIN * subscriptions
