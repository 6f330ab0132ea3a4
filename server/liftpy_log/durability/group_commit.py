"""Group commit: one round makes every dirty partition of the node durable.

Rounds run in a thread of their own, because fdatasync blocks. A round with few dirty partitions syncs their segments;
one with many goes through the write-ahead log, whose cost does not depend on how many partitions there are. While a
round runs, the next one gathers.
"""

from __future__ import annotations

import logging
from threading import Condition, Thread
from typing import TYPE_CHECKING, NamedTuple

from liftpy_log.clock import SystemClock
from liftpy_log.histogram import Histogram
from liftpy_log.limits import AGAIN_S, DIRECT_SYNC_PARTITIONS_MAX
from liftpy_log.storage.disk import is_full

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from liftpy_log.clock import Clock
    from liftpy_log.durability.durability import Durability
    from liftpy_log.durability.wal import WriteAheadLog
    from liftpy_log.entries import Tail, Unsynced
    from liftpy_log.segments.segment import Segment
    from liftpy_log.storage.files import FileCache

__all__ = ["GroupCommit", "Synced"]

logger = logging.getLogger(__name__)


class Synced(NamedTuple):
    """What a round did for one log: durable below `next_offset`, or `error`."""

    log: Durability
    next_offset: int
    error: str | None


class _Target(NamedTuple):
    """A log that a round makes durable up to `tail`, and its batches in the tail's segment."""

    log: Durability
    tail: Tail
    unsynced: list[Unsynced]


class GroupCommit:
    """Makes logs durable in rounds.

    Args:
        files: The node's open files.
        wal: The write-ahead log; without one every log is synced by itself.
        on_round: Called in the rounds' thread with the results of each; hands them to the thread that owns the logs.
        direct_max: Largest number of dirty logs that are synced by themselves although there is a write-ahead log.
        clock: Times rounds; by default the system's.

    Attributes:
        round_s: How long rounds took.
    """

    def __init__(
        self,
        files: FileCache,
        wal: WriteAheadLog | None,
        on_round: Callable[[Sequence[Synced]], None],
        direct_max: int = DIRECT_SYNC_PARTITIONS_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._files = files
        self._wal = wal
        self._on_round = on_round
        self._direct_max = direct_max
        self._wakeup = Condition()
        self._dirty: dict[Durability, None] = {}
        self._put_off: dict[Durability, None] = {}  # their files could not be opened for a moment
        self._put_off_count = 0
        self._stopping = False
        self._thread = Thread(target=self._run, name="liftpy-group-commit", daemon=True)
        self.rounds = 0
        self.round_s = Histogram()

    def start(self) -> None:
        """Begin to run rounds."""
        self._thread.start()

    def request(self, log: Durability) -> None:
        """Ask for what the log holds now to be made durable. May be called from any thread."""
        with self._wakeup:
            self._dirty[log] = None
            self._wakeup.notify()

    def stop(self) -> None:
        """Run what was asked for to its end, and stop."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wakeup:
                while not self._dirty and not self._put_off and not self._stopping:
                    self._wakeup.wait()
                if self._put_off and not self._stopping:
                    self._wakeup.wait(AGAIN_S)
                dirty, self._dirty = self._put_off | self._dirty, {}
                if not dirty:
                    return
            self.run_round(list(dirty))

    def run_round(self, logs: Sequence[Durability]) -> None:
        """Make the logs durable and report it."""
        targets: list[_Target] = []
        results: list[Synced] = []
        self._put_off = {}
        try:
            for log in logs:
                target = log.begin_round()
                if target is not None:
                    tail, unsynced = target
                    targets.append(_Target(log, tail, [entry for entry in unsynced if entry.segment is tail.segment]))
            if not targets:
                return
            self.rounds += 1
            began_s = self._clock.monotonic()
            self._make_durable(self._name(targets, results), results)
            self.round_s.observe(self._clock.monotonic() - began_s)
        finally:
            self._end(targets, results)
        self._on_round(results)

    @staticmethod
    def _end(targets: Sequence[_Target], results: Sequence[Synced]) -> None:
        durable_ends = {log: next_offset for log, next_offset, error in results if error is None}
        errors = {log: error for log, _, error in results if error is not None}
        for log, _, _ in targets:
            error = errors.get(log)
            log.end_round(0 if error else durable_ends.get(log, 0), error)

    def _name(self, targets: Sequence[_Target], results: list[Synced]) -> list[_Target]:
        """Make the names of new logs durable. Returns the targets whose names are; the others have failed."""
        named: list[_Target] = []
        synced: set[Path] = set()
        for target in targets:
            try:
                target.log.sync_names(synced)
            except OSError as error:
                if self._may_put_off(target.log, error):
                    continue
                reason = f"syncing the directories above {target.log.directory} failed: {error}"
                results.append(Synced(target.log, 0, reason))
            else:
                named.append(target)
        return named

    def _make_durable(self, targets: Sequence[_Target], results: list[Synced]) -> None:
        if self._wal is not None and len(targets) > self._direct_max:
            ahead = [target for target in targets if target.unsynced]
            if ahead and self._write_ahead(self._wal, ahead, results):
                targets = [target for target in targets if not target.unsynced]
        for log, tail, _ in targets:
            error = self._sync_segment(log, tail.segment)
            if log not in self._put_off:
                results.append(Synced(log, tail.next_offset, error))

    def _may_put_off(self, log: Durability, error: OSError) -> bool:
        """Whether a log can wait for a later round: a file of it can not be opened now, and nothing is lost by that."""
        if not is_full(error) or self._stopping:
            return False
        self._put_off[log] = None
        self._put_off_count += 1
        if self._put_off_count.bit_count() == 1:  # the first, second, fourth, ...
            logger.warning(
                "%s can not be made durable now (%s): trying again; put off %d times since the start",
                *(log.directory, error.strerror, self._put_off_count),
            )
        return True

    def _sync_segment(self, log: Durability, segment: Segment) -> str | None:
        try:
            file = self._files.pin(segment)
        except FileNotFoundError:
            return None  # deleted since, by retention or a purge, which had it synced before
        except OSError as error:
            if self._may_put_off(log, error):
                return None
            return f"opening {segment.path} failed: {error}"
        try:
            file.sync()
        except OSError as error:
            if self._wal is not None:
                self._wal.keep(segment)
            return f"fdatasync of {segment.path} failed: {error}"
        finally:
            self._files.unpin(segment, file)
        return None

    def _write_ahead(self, wal: WriteAheadLog, targets: Sequence[_Target], results: list[Synced]) -> bool:
        """Add the results of a round through the write-ahead log; False when it could not be written."""
        with wal.turn:
            try:
                wal.write_round([(log, unsynced) for log, _, unsynced in targets])
            except OSError as error:
                logger.warning("the write-ahead log failed (%s); syncing %d segments instead", error, len(targets))
                return False
            results += [Synced(log, tail.next_offset, None) for log, tail, _ in targets]
            for segment, log in wal.segments_to_sync():
                failure = self._sync_segment(log, segment)
                if log in self._put_off:
                    break  # the write-ahead log keeps what it has of it
                if failure is not None:
                    wal.keep(segment)
                    results.append(Synced(log, 0, failure))
        return True
