"""Where a streaming query begins, and where each of its batches ends. Spark is not in here, see `stream_reader`."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_client.errors import AdminError, DisconnectedError, NodeUnavailableError, NoStreamError, PullError
from liftpy_spark.connections import nats_failure
from liftpy_spark.errors import DataLossError
from liftpy_spark.heads import find_streams, heads, heads_now, is_wanted, no_leader, offsets_at_time
from liftpy_spark.options.offsets import LATEST, QueryCheckpoint
from liftpy_spark.options.values import OptionError
from liftpy_spark.reading.retry_deadline import RETRY_S
from liftpy_spark.source.bounds import assigned, starts
from liftpy_spark.source.head_watch import HeadWatch, record_bytes
from liftpy_spark.source.stream_progress import capped, compare, ends_of, epochs_of, silent_before, to_prove

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_client.sync.client import SyncLift
    from liftpy_spark.heads import StreamHeads
    from liftpy_spark.options.source import SourceOptions
    from liftpy_spark.source.rate_limits import Backlog
    from liftpy_spark.source.stream_progress import Comparison

    Divide = Callable[[Mapping[tuple[str, int], Backlog]], dict[tuple[str, int], int]]

__all__ = ["StreamPlanner"]

_LOG: Final = logging.getLogger(__name__)
_SETTLE_S: Final = 15.0  # what a new leader, or a node that came back, says may be old for a moment
_FIND_INTERVAL_S: Final = 5.0
_SIZES_INTERVAL_S: Final = 10.0
_WHAT_TO_DO: Final = "begin with a new checkpointLocation, or set failOnDataLoss to false to go on with what is there"


class _Proof(NamedTuple):
    """That what was read of a partition up to an offset, of a leader's epoch, is in the log of a later leader."""

    offset: int
    epoch: int
    led: int


class StreamPlanner:
    """Plans where a streaming query and each of its batches begin and end. One thread uses it while the query runs.

    Args:
        options: What to read, and how.
        connect: Gives a connection: the same, as long as it is not closed.
        clock: Seconds, never going back.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        options: SourceOptions,
        connect: Callable[[], SyncLift],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._connect = connect
        self._clock = clock
        self._watch = HeadWatch(self._ask, clock=clock, sleep=sleep)
        self._names: list[str] = []
        self._find_at_s = float("-inf")
        self._sizes: Mapping[tuple[str, int], int] = {}
        self._weigh_at_s = float("-inf")
        self._beginning: QueryCheckpoint | None = None
        self._target: QueryCheckpoint | None = None
        self._names_are_checked = False
        self._proofs: dict[tuple[str, int], _Proof] = {}

    def begin(self) -> QueryCheckpoint:
        """Where a new query begins; the same at every call.

        Raises:
            NoSuchStreamError: a stream or partition does not exist.
            OptionError: the options say what can not be.
            NatsError: nobody answers.
        """
        if self._beginning is None:
            options = self._options
            lift = self._connect()
            there = assigned(heads(lift, find_streams(lift, options)), options.assign)
            at_time = partial(offsets_at_time, lift)
            offsets = starts(options.starting, there, at_time, late_is_latest=options.late_is_latest)
            _check_beginning(offsets, there)
            self._beginning = QueryCheckpoint(offsets, {each.stream: each.uuid for each in there}, epochs_of(there))
        return self._beginning

    def begins_now(self, start: QueryCheckpoint) -> bool:
        """Whether `start` is where a new query begins, and would be elsewhere if it were asked later."""
        if start != self._beginning:
            return False
        bound = self._options.starting
        says_latest = any(LATEST in of.values() for of in (bound.offsets or {}).values())
        return bound.everywhere == "latest" or says_latest or self._options.late_is_latest

    def aim(self) -> None:
        """Take what there is now as all that there will be.

        Raises:
            NoSuchStreamError, NatsError: as of `begin`.
        """
        lift = self._connect()
        names = find_streams(lift, self._options)
        if not self._options.fail_on_data_loss:
            names = [each.stream for each in heads_now(lift, names)]
        self._target = ends_of(self._assigned(heads(lift, names)))

    def advance(self, start: QueryCheckpoint, divide: Divide) -> QueryCheckpoint:
        """The end of the next batch; `start` where there is nothing new, after some waiting for it.

        Args:
            start: The end of the batch before.
            divide: How far a batch goes, of what waits.

        Raises:
            DataLossError: records that are to be read are gone, and that is to be an error.
            NoSuchStreamError: a stream does not exist, and never did as far as the query knows.
            NatsError: nobody answers for a long time.
        """
        timeout_s = self._options.max_poll_ms / 1_000 if self._target is None else 0.0
        there = self._watch.look_until(lambda found: _has_news(compare(start, found)), timeout_s)
        if self._is_doubtful(compare(start, there)):
            there = self._watch.look_until(lambda found: not self._is_doubtful(compare(start, found)), _SETTLE_S)
        self._check_names(start, there)
        parted = self._parted(start, there)
        found = compare(start, there, parted)
        gone = [f"stream {stream} is not there any more, or not among those to be read" for stream in found.gone]
        self._tell([*gone, *found.losses, *found.behind])
        if self._target is not None:
            found = compare(start, capped(there, self._target, start), parted)
            if not _has_news(found) and silent_before(self._target, there, start):
                self._await_silent(start, self._target)
                return self.advance(start, divide)
        return found.reached(divide(found.backlogs))

    def latest(self) -> QueryCheckpoint | None:
        """Where the query would be if it had read all there was at the last look; None before the first."""
        return None if self._watch.seen is None else ends_of(self._watch.seen)

    def weighed(self, backlogs: Mapping[tuple[str, int], Backlog]) -> dict[tuple[str, int], Backlog]:
        """The same with the mean sizes of records, as they were some seconds ago."""
        return {
            place: backlog._replace(record_bytes=self._sizes.get(place, backlog.record_bytes))
            for place, backlog in backlogs.items()
        }

    def _parted(self, start: QueryCheckpoint, there: list[StreamHeads]) -> dict[tuple[str, int], int]:
        """Where partitions whose leader changed have other records than the query has read; asked once per change.

        Raises:
            NatsError: a leader does not tell for a long time.
        """
        parted: dict[tuple[str, int], int] = {}
        for stream, epochs in to_prove(start, there).items():
            heads_by_number = next(each.partitions for each in there if each.stream == stream)
            proofs = {
                number: _Proof(start.offsets[stream][number], epoch, heads_by_number[number].epoch)
                for number, epoch in epochs.items()
            }
            asked = {
                number: epochs[number] for number in proofs if self._proofs.get((stream, number)) != proofs[number]
            }
            if not asked:
                continue
            try:
                ends = self._connect().epoch_ends(stream, asked)
            except NoStreamError:
                continue  # it went just now: the next look says so
            except (NodeUnavailableError, DisconnectedError, AdminError, PullError) as error:
                raise nats_failure(error) from None
            for number, end in ends.items():
                if end < start.offsets[stream][number]:
                    parted[stream, number] = end
                else:
                    self._proofs[stream, number] = proofs[number]
        return parted

    def _ask(self) -> list[StreamHeads]:
        lift, now_s = self._connect(), self._clock()
        if now_s >= self._find_at_s:
            self._names = find_streams(lift, self._options)
            self._find_at_s = now_s + _FIND_INTERVAL_S
        there = heads_now(lift, self._names)
        if self._options.max_bytes_per_trigger is not None and now_s >= self._weigh_at_s:
            self._weigh(lift, there)
            self._weigh_at_s = now_s + _SIZES_INTERVAL_S
        return self._assigned(there)

    def _weigh(self, lift: SyncLift, there: list[StreamHeads]) -> None:
        try:
            self._sizes = record_bytes([lift.stream_info(each.stream) for each in there])
        except (NodeUnavailableError, DisconnectedError) as error:
            raise nats_failure(error) from None

    def _await_silent(self, start: QueryCheckpoint, target: QueryCheckpoint) -> None:
        """Wait until all that is to be read up to `target` can be read: to Spark a batch without news is the end.

        Raises:
            NatsError: nobody says for a long time where it ends.
        """
        there = self._watch.look_until(lambda found: not silent_before(target, found, start), RETRY_S)
        silent = silent_before(target, there, start)
        if silent:
            raise no_leader(silent)

    def _is_doubtful(self, found: Comparison) -> bool:
        """Whether what is amiss may be so for a moment alone, until a new leader or a node that came back is ready."""
        return bool(found.behind or any(is_wanted(self._options, stream) for stream in found.gone))

    def _assigned(self, there: list[StreamHeads]) -> list[StreamHeads]:
        """Only the partitions to read; of those that are assigned some may not be known at the moment."""
        assign = self._options.assign
        if assign is None:
            return there
        return [
            each._replace(partitions={n: head for n, head in each.partitions.items() if n in assign[each.stream]})
            for each in there
        ]

    def _check_names(self, start: QueryCheckpoint, there: list[StreamHeads]) -> None:
        """Once: a stream that is named, and neither exists nor was ever read, is a slip of the pen."""
        options = self._options
        if self._names_are_checked or not options.fail_on_data_loss or options.subscribe_pattern is not None:
            return
        known = {each.stream for each in there} | set(start.offsets)
        heads(self._connect(), [name for name in self._names if name not in known])
        self._names_are_checked = True

    def _tell(self, losses: list[str]) -> None:
        if losses and self._options.fail_on_data_loss:
            more = f" (and {len(losses) - 1} more like this)" if len(losses) > 1 else ""
            raise DataLossError(f"{losses[0]}{more}; {_WHAT_TO_DO}")
        for loss in losses:
            _LOG.warning("%s; the query goes on without", loss)


def _check_beginning(offsets: Mapping[str, Mapping[int, int]], there: list[StreamHeads]) -> None:
    for each in there:
        for number, head in each.partitions.items():
            if offsets[each.stream][number] > head.end:
                raise OptionError(
                    "startingOffsets",
                    f"stream {each.stream} partition {number} ends at {head.end}, before offset "
                    f"{offsets[each.stream][number]}",
                )


def _has_news(found: Comparison) -> bool:
    waits = any(backlog.offsets for backlog in found.backlogs.values())
    return waits or bool(found.found or found.losses or found.behind or found.gone)
