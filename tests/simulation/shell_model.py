"""What must hold of the shell: an observer that looks at every log after every step, and remembers what was committed.

Each partition has one.

P1  an acked message is committed at the offset that its ack says; it is on the disks of `min_isr` replicas when it
    commits, and on all replicas in the end; a disk that keeps its promise has after a crash what was durable before
P2  what was committed at an offset keeps its content, on every replica, and one epoch has one leader that commits
P3  no high watermark, and no consumer, is ever beyond what is committed, or is shown anything else
ids no message with an id is committed twice, however often it is published; where few ids are remembered, none that
    comes again within the window that its leader tells then
order  what a publisher sends when the message before was acked stands behind it
silence  a deposed leader that has heard nothing for a while refuses nothing: its successor may store it
best   who begins to lead has all that is committed, as far as a copy of it is left anywhere; where none is, an
       operator has said who leads

keys   a record may be missing in a copy that was compacted if a later one of its key is committed, or if it is a
       tombstone; in the end all copies have the same last record of every key, and no key that was deleted

One copy may be damaged. What is illegible in it is no other content; but it is never shown, and what is legible is held
against it as on the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from liftpy_envelope.batch import HEADER_SIZE, check_body, decode_records, read_header
from liftpy_envelope.errors import LiftError
from simulation.model import ViolationError

if TYPE_CHECKING:
    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.metadata.state import PartitionInfo
    from liftpy_server.partition.partition import Partition
    from simulation.shell_node import ShellNode

__all__ = ["Record", "ShellModel", "records_in"]

_LOOKED_BACK = 20
_SILENT_S = 1.6  # a time-out, and a tick of the replicas
_BEHIND_NS = 100 * 10**6  # by which the time of a log that was copied may be behind


class Record(NamedTuple):
    """A record, as far as it matters."""

    epoch: int
    number: int
    key: bytes | None = None
    is_tombstone: bool = False


LOST = Record(-1, -1)  # in place of what can not be read any more
GONE = Record(-2, -2)  # in place of what was compacted
_decoded: dict[bytes, list[tuple[int, Record]]] = {}  # every replica has the same bytes


def records_in(data: bytes) -> list[tuple[int, Record]]:
    """(offset, record) of whole batches.

    Raises:
        LiftError: a batch is damaged.
    """
    found: list[tuple[int, Record]] = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        batch = data[position : position + header.length]
        if batch not in _decoded:
            if len(_decoded) > 5_000:
                _decoded.clear()
            check_body(header, batch[HEADER_SIZE:])
            rows = decode_records(header, batch[HEADER_SIZE:]).to_pylist()
            _decoded[batch] = [
                (header.base_offset + row.get("offset_delta", index), _record(header.leader_epoch, row))
                for index, row in enumerate(rows)
            ]
        found += _decoded[batch]
        position += header.length
    return found


def _record(epoch: int, row: dict[str, Any]) -> Record:
    value, key = row["value"], row.get("key")
    if value is not None:
        return Record(epoch, int(value.partition(b"|")[0]), key)
    return Record(epoch, int(row["headers"].partition(b"\r\nN: ")[2].partition(b"\r\n")[0]), key, is_tombstone=True)


def _legible(data: bytes, begin: int, end: int) -> list[tuple[int, Record]]:
    """What can be read of a damaged segment, up to the damage, and `LOST` in place of the rest."""
    found: list[tuple[int, Record]] = []
    position = 0
    while position < len(data):
        try:
            length = read_header(data, position).length
            found += records_in(data[position : position + length])
        except LiftError:
            break
        position += length
    return found + [(offset, LOST) for offset in range(found[-1][0] + 1 if found else begin, end)]


def _last_of_keys(records: list[Record]) -> dict[bytes, Record]:
    """What a reader of keys makes of records: keys that were deleted are not there."""
    last = {record.key: record for record in records if record.key is not None}
    return {key: record for key, record in last.items() if not record.is_tombstone}


def _were_alike(found: list[Record], records: list[Record]) -> bool:
    """Whether these are the same, but for what is damaged."""
    return len(found) == len(records) and all(
        one == other or one is LOST for one, other in zip(found, records, strict=True)
    )


class _Appended(NamedTuple):
    """When a leader appended a record, by the clock and by the log, and for how long it remembers ids then."""

    at_ns: int
    log_time_ns: int
    known_ns: int
    is_shortened: bool


class Copy:
    """What is known of one node's log.

    Attributes:
        start: offset of the first of `records`.
        durable_end: records below it were reported to be durable.
    """

    def __init__(self) -> None:
        self.partition: Partition | None = None
        self.log: PartitionLog | None = None
        self.start = 0
        self.records: list[Record] = []
        self.durable_end = 0
        self.high_watermark = 0
        self.led_epoch = 0
        self.cuts = 0
        self.run = 0
        self.has_led = False  # before this step
        self.lost: list[Record] = []  # what was durable until the disk lost it
        self.lost_start = 0
        self.is_known = False  # that it is damaged

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def between(self, begin: int, end: int) -> list[Record]:
        return self.records[max(0, begin - self.start) : max(0, end - self.start)]

    def had_durable(self, begin: int, records: list[Record]) -> bool:
        """Whether these records are on this disk, or were until it lost or damaged them."""
        end = begin + len(records)
        if self.durable_end >= end and _were_alike(self.between(begin, end), records):
            return True
        return self.lost[max(0, begin - self.lost_start) : max(0, end - self.lost_start)] == records

    def cut(self, end: int) -> None:
        del self.records[max(0, end - self.start) :]
        self.durable_end = min(self.durable_end, end)


class ShellModel:
    """See the module."""

    def __init__(self, number: int, min_isr: int, nodes: dict[str, ShellNode]) -> None:
        self.committed: list[Record] = []
        self.offsets: dict[int, int] = {}  # by number
        self.acked: dict[int, int] = {}
        self.isr: tuple[str, ...] = ()
        self.voters: tuple[str, ...] = ()
        self.replicas: tuple[str, ...] = ()
        self.with_id: set[int] = set()
        self.trace: list[Any] = []
        self.served = 0
        self.duplicates = 0
        self.gone = 0  # records that were compacted, in all copies at the end
        self.may_lose = False  # more copies were lost than the promise allows
        self.has_lost = False
        self.needs_word = False  # whatever is lost, the metadata know that there was something
        self.may_forget_ids = False  # some come again when they are not remembered any more
        self.stored_twice = 0
        self._appended: dict[tuple[int, int, int], _Appended] = {}  # by number, offset and leader epoch
        self._number = number
        self._min_isr = min_isr
        self._copies = {node: Copy() for node in nodes}
        self._nodes = nodes
        self._committers: dict[int, str] = {}
        self._epoch = 0  # as the metadata have it
        self._unclean_elections = 0  # likewise
        self._newest: dict[bytes, int] = {}  # offset of the last committed record of each key

    def configured(self, info: PartitionInfo) -> None:
        """The metadata says something else of the partition."""
        self.isr, self.voters, self.replicas = info.isr, info.voters, info.replicas
        self._epoch = info.leader_epoch
        self._unclean_elections = info.unclean_elections
        self.check_isr()

    def copy_of(self, node: str) -> Copy:
        """What is known of a node's log."""
        return self._copies[node]

    # -- after every step of a node

    def dies(self, node: ShellNode) -> None:
        """A process is about to be killed."""
        self._copies[node.node_id].log = self._copies[node.node_id].partition = None

    def loses(self, node: ShellNode) -> None:
        """A disk lost what it held."""
        copy = self._copies[node.node_id]
        copy.lost = copy.records[: copy.durable_end - copy.start]
        copy.lost_start = copy.start
        copy.records, copy.durable_end = [], copy.start

    def observe(self, node: ShellNode) -> None:
        partition, copy = node.partition(self._number), self._copies[node.node_id]
        closed, copy.partition = copy.partition, partition
        if partition is None:
            if closed is not None and closed.high_watermark > copy.high_watermark:
                self._committed_as_it_closed(node, closed, copy)
            return
        log = partition.log
        if log.failure is not None:  # what it said of itself before may be on its way to a leader
            copy.is_known |= node.is_damaged
            if copy.log is log and log.compaction.cuts == copy.cuts and log.log_end >= copy.end:
                copy.records += self._read(node, log, copy.end)
                copy.durable_end = max(copy.durable_end, min(log.synced_end, copy.end))
            return
        if copy.log is not log:
            self._opened(node, copy, log)
        elif log.log_end < copy.end or log.compaction.cuts != copy.cuts:
            self._cut(node, copy, log)
        if log.log_end > copy.end:
            fresh = self._read(node, log, copy.end)
            if self.may_forget_ids and partition.is_leading:
                self._note_window(node, partition, copy.end, fresh)
            copy.records += fresh
        copy.durable_end = max(copy.durable_end, min(partition.durable_end, copy.end))
        if partition.is_leading and copy.led_epoch != partition.epoch:
            copy.led_epoch = partition.epoch
            self._began(node, copy)
        if partition.high_watermark > copy.high_watermark:
            self._advanced(node, partition, copy)
        copy.has_led = partition.is_leading
        copy.high_watermark = partition.high_watermark

    def _committed_as_it_closed(self, node: ShellNode, closed: Partition, copy: Copy) -> None:
        """A leader that gives its replica away makes durable what it has, which may be what a commit waited for."""
        copy.durable_end = max(copy.durable_end, min(closed.durable_end, copy.end))
        self._advanced(node, closed, copy)
        copy.high_watermark = closed.high_watermark

    def _opened(self, node: ShellNode, copy: Copy, log: PartitionLog) -> None:
        """A disk that keeps its promise has all that was durable, unless the log has failed and is copied anew."""
        is_renewed, copy.run = copy.run == node.run, node.run
        if is_renewed and node.node_id in self.isr:
            raise ViolationError(f"P1: {node.node_id}, in the ISR, begins its log anew")
        start, durable_end = copy.start, copy.durable_end
        copy.log, copy.start, copy.cuts = log, log.segments[0].base_offset, log.compaction.cuts
        copy.records = []
        copy.records = self._read(node, log, copy.start)
        copy.durable_end = copy.start
        copy.high_watermark = copy.led_epoch = 0
        copy.has_led = False
        durable_end = min(durable_end, len(self.committed))  # what is not committed may have been cut meanwhile
        is_trusted = node.node_id in self.isr and not node.is_doubtful
        if is_trusted and not self._holds(node, copy, max(start, copy.start), durable_end):
            raise ViolationError(
                f"P1: {node.node_id} had {start}..{durable_end} durable, and after its restart has "
                f"{copy.start}..{copy.end}"
            )

    def _cut(self, node: ShellNode, copy: Copy, log: PartitionLog) -> None:
        copy.cuts = log.compaction.cuts
        if log.segments[0].base_offset > copy.end or log.log_end < copy.start:  # begun anew
            copy.start, copy.records, copy.durable_end = log.segments[0].base_offset, [], log.segments[0].base_offset
        fresh = self._read(node, log, max(copy.start, log.segments[0].base_offset))
        begin = max(copy.start, log.segments[0].base_offset)
        old = copy.between(begin, copy.end)
        pairs = enumerate(zip(old, fresh, strict=False))
        same = next((i for i, pair in pairs if pair[0] != pair[1] and GONE not in pair), None)
        end = begin + (min(len(old), len(fresh)) if same is None else same)
        lost = copy.between(end, copy.end)
        if node.node_id in self.isr and not node.is_doubtful:
            for offset, record in enumerate(lost, end):
                if offset < len(self.committed) and self.committed[offset] == record:
                    raise ViolationError(f"P1: {node.node_id}, in the ISR, drops the committed record {offset}")
        copy.cut(end)

    def _read(self, node: ShellNode, log: PartitionLog, begin: int) -> list[Record]:
        """The records from an offset on, as they are on the disk now, with `GONE` between them."""
        read: list[Record] = [GONE] * (log.log_end - begin)
        for segment in log.segments:
            if segment.next_offset <= begin or not segment.size:
                continue
            data = node.disk.content(segment.path)[: segment.size]
            try:
                records = records_in(data)
            except LiftError as error:
                if node.may_be_torn:
                    node.is_damaged = node.is_doubtful = True
                if not node.is_damaged:
                    raise ViolationError(f"{node.node_id} has {segment.path}: {error}") from error
                records = _legible(data, segment.base_offset, segment.next_offset)
            for offset, record in records:
                if begin <= offset < log.log_end:
                    read[offset - begin] = record
        return read

    def _began(self, node: ShellNode, copy: Copy) -> None:
        """Somebody leads."""
        self.trace.append((node.node_id, copy.led_epoch, copy.end))
        self._check_best(node.node_id)

    def _check_best(self, node_id: str) -> None:
        """A node leads, or is to: nobody has more."""
        node = self._nodes[node_id]
        own = self._common(node_id)
        others = {name: self._common(name) for name in self.voters if not self._nodes[name].is_doubtful}
        best = max(others, key=lambda name: others[name], default=node_id)
        if own < others.get(best, own):
            raise ViolationError(
                f"best: {node.node_id} leads, or is to, with {own} of {len(self.committed)} committed "
                f"records; {best} has {others[best]}"
            )
        if own < len(self.committed):
            if not self.may_lose:
                raise ViolationError(
                    f"P1: {node.node_id} leads, or is to, with {own} of {len(self.committed)} committed "
                    "records, and nobody has more"
                )
            if self.needs_word and not self._unclean_elections:
                raise ViolationError(
                    f"best: {node.node_id} leads, or is to, without what was committed, and nobody said so"
                )
            self.has_lost = True  # from here on nothing can be held against anybody

    def _common(self, node_id: str) -> int:
        """How many of the committed records a node has."""
        copy, node = self._copies[node_id], self._nodes[node_id]
        end = min(copy.durable_end if node.streams is None else copy.end, len(self.committed))
        first = max(copy.start, end - _LOOKED_BACK)
        while end > first and not self._is_same(node, copy.between(first, end), first):
            end -= 1
        return end

    def _holds(self, node: ShellNode, copy: Copy, begin: int, end: int) -> bool:
        """Whether a copy has all that is committed between two offsets, as far as that is not compacted."""
        return copy.end >= end and self._is_same(node, copy.between(begin, end), begin)

    def _is_same(self, node: ShellNode, records: list[Record], offset: int) -> bool:
        """Whether a node has what is committed; what is illegible on a damaged disk is no other content."""
        committed = self.committed[offset : offset + len(records)]
        if len(committed) < len(records):
            return False
        for number, (record, was) in enumerate(zip(records, committed, strict=True), offset):
            is_excused = (record is LOST and node.is_damaged) or (record is GONE and self._may_be_gone(number))
            if record != was and not is_excused:
                return False
        return True

    def _may_be_gone(self, offset: int) -> bool:
        """Whether compaction may have dropped a committed record."""
        record = self.committed[offset]
        return record.key is not None and (record.is_tombstone or self._newest[record.key] > offset)

    def _advanced(self, node: ShellNode, partition: Partition, copy: Copy) -> None:
        mark = partition.high_watermark
        if self.has_lost:
            return
        if mark > copy.end:
            raise ViolationError(f"P3: {node.node_id} has no record at its high watermark {mark}")
        if mark > len(self.committed):
            if not partition.is_leading and not copy.has_led:  # it may have given up since
                raise ViolationError(f"P3: follower {node.node_id} shows {mark} of {len(self.committed)} committed")
            self._commit(node, copy, mark, partition.epoch)
        first = max(copy.start, mark - _LOOKED_BACK)
        if not self._is_same(node, copy.between(first, mark), first):
            raise ViolationError(f"P2: {node.node_id} has other content below its high watermark {mark}")

    def _commit(self, node: ShellNode, copy: Copy, mark: int, epoch: int) -> None:
        if self._committers.setdefault(epoch, node.node_id) != node.node_id:
            raise ViolationError(f"P4: {node.node_id} and {self._committers[epoch]} both commit in epoch {epoch}")
        begin = len(self.committed)
        fresh = [
            self._undamaged(offset) if record is LOST else record
            for offset, record in enumerate(copy.between(begin, mark), begin)
        ]
        holders = [other for other in self.voters if self._copies[other].had_durable(begin, fresh)]
        if len(holders) < self._min_isr:
            raise ViolationError(f"P1: records {begin}..{mark} are committed with {len(holders)} durable copies")
        for offset, record in enumerate(fresh, begin):
            known = self.offsets.setdefault(record.number, offset)
            if (
                known != offset
                and record.number in self.with_id
                and not self._was_forgotten((self.committed + fresh)[known], known, record, offset)
            ):
                raise ViolationError(f"ids: message {record.number} is committed at {known} and at {offset}")
            if record.key is not None:
                self._newest[record.key] = offset
        self.committed += fresh
        self.trace.append((node.node_id, epoch, mark))
        self.check_isr()

    def _note_window(self, node: ShellNode, partition: Partition, begin: int, records: list[Record]) -> None:
        """A leader appended records."""
        age_ns = partition.age_now_ns()
        known_ns = partition.dedupe.known_ns(age_ns)
        now_ns = node.world.scheduler.now_us * 1_000
        for offset, record in enumerate(records, begin):
            self._appended[record.number, offset, record.epoch] = _Appended(
                now_ns, age_ns, known_ns, known_ns < partition.dedupe.window_ns
            )

    def _was_forgotten(self, first: Record, first_offset: int, record: Record, offset: int) -> bool:
        """Whether a message that is stored again is older than ids that its leader said it remembers."""
        if not self.may_forget_ids:
            return False
        stored = self._appended[first.number, first_offset, first.epoch]
        again = self._appended[record.number, offset, record.epoch]
        self.stored_twice += 1
        elapsed_ns = again.at_ns - stored.at_ns
        if elapsed_ns + _BEHIND_NS >= again.known_ns:
            return True
        stood_ns = 0 if again.is_shortened else int(_SILENT_S * 1e9)  # log time stands while nobody leads
        return min(again.log_time_ns - stored.log_time_ns, elapsed_ns + stood_ns) >= again.known_ns

    def _undamaged(self, offset: int) -> Record:
        """What is at an offset, as another replica knows that is in the ISR with the one that is damaged."""
        found = [record for node in self.isr for record in self._copies[node].between(offset, offset + 1)]
        return next((record for record in found if record is not LOST), LOST)

    def check_isr(self) -> None:
        """Records were committed, or the ISR is another one: all its members have all of them."""
        if self.has_lost:
            return
        if self.may_lose and len(self.isr) == 1:
            if not self._nodes[self.isr[0]].is_doubtful:  # else the cluster does not know yet
                self._check_best(self.isr[0])
            return
        for node_id in self.isr:
            node = self._nodes[node_id]
            partition = node.partition(self._number)
            copy = self._copies[node_id]
            if copy.is_known and LOST in copy.records and partition is not None and partition.log.failure is None:
                raise ViolationError(f"damage: {node_id} is in the ISR with what was found damaged before")
            if node.is_doubtful or (partition is not None and partition.log.failure is not None):
                continue
            if self._copies[node_id].durable_end < len(self.committed):
                raise ViolationError(
                    f"P1: {node_id} is in the ISR with {self._copies[node_id].durable_end} of "
                    f"{len(self.committed)} committed records durable"
                )

    # -- publishers and consumers

    def acknowledged(self, number: int, offset: int, *, duplicate: bool) -> None:
        """A publisher got an ack."""
        if self.has_lost:
            return
        if offset >= len(self.committed) or self.committed[offset].number != number:
            there = self.committed[offset] if offset < len(self.committed) else "nothing"
            raise ViolationError(
                f"P1: message {number} is acked at {offset}{' as a duplicate' if duplicate else ''}, where {there} is "
                "committed"
            )
        self.duplicates += duplicate
        self.acked.setdefault(number, offset)

    def refused(self, node: ShellNode) -> None:
        """A node told a publisher that its message is not stored."""
        partition = node.partition(self._number)
        is_deposed = partition is not None and partition.epoch < self._epoch
        if is_deposed and node.unheard_s > _SILENT_S:
            raise ViolationError(f"silence: {node.node_id} refuses what its successor in epoch {self._epoch} may store")

    def shown(self, node_id: str, records: list[tuple[int, Record]]) -> None:
        """A consumer was given records."""
        self.served += len(records)
        if self.has_lost:
            return
        next_offset = records[0][0] if records else 0
        for offset, record in records:
            if offset >= len(self.committed) or self.committed[offset] != record:
                raise ViolationError(f"P3: {node_id} shows {record} at {offset}, which is not what is committed")
            left_out = [between for between in range(next_offset, offset) if not self._may_be_gone(between)]
            if left_out:
                raise ViolationError(f"keys: {node_id} does not show the records {left_out}")
            next_offset = offset + 1

    def is_everywhere(self) -> bool:
        """Whether all replicas have all that is committed; the same, at least, when more was lost than may be."""
        ends = {self._copies[node_id].durable_end for node_id in self.replicas}
        return len(ends) == 1 if self.has_lost else min(ends) >= len(self.committed)

    def finished(self) -> None:
        """Everything has healed and settled: every replica has everything, and the same."""
        if self.has_lost:
            return
        for node_id in self.replicas:
            node = self._nodes[node_id]
            partition = node.partition(self._number)
            assert partition is not None
            log = partition.log
            begin = log.segments[0].base_offset
            found = self._read(node, log, begin)
            found = found[: len(self.committed) - begin]
            self.gone += found.count(GONE)
            if begin + len(found) < len(self.committed) or not self._is_same(node, found, begin):
                raise ViolationError(f"P1: {node_id} has not what is committed after everything has healed")
            if not begin and not node.is_damaged and _last_of_keys(found) != _last_of_keys(self.committed):
                raise ViolationError(f"keys: {node_id} has other last records of its keys than are committed")
        for number, offset in self.acked.items():
            if self.committed[offset].number != number:
                raise ViolationError(f"P1: the acked message {number} is gone from {offset}")
