"""What a leader does: appending the commands that wait, and sending its log.

Group commit: all commands that wait are appended together; one transaction makes them durable, and one message takes
them to each follower. The answers to forwarding followers go out after that, so that they do not cause a sync each.
"""
# ruff: noqa: N802 - the overridden names are pysyncobj's

from __future__ import annotations

import logging
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from pysyncobj import FAIL_REASON

from liftpy_server.consensus.follower import Follower
from liftpy_server.consensus.membership import MEMBERSHIP, decode_change
from liftpy_server.consensus.messages import ENTRY_BYTES_MAX
from liftpy_server.consensus.monotonic import monotonic
from liftpy_server.consensus.snapshot import SnapshotError, read_snapshot

if TYPE_CHECKING:
    from liftpy_server.consensus.inner import Node
    from liftpy_server.consensus.messages import Message

__all__ = ["CLUSTER", "NO_OP", "REGULAR", "Leader"]

logger = logging.getLogger(__name__)

REGULAR: Final = 0
NO_OP: Final = 1
CLUSTER: Final = 3
"""First byte of the entry that names the cluster; the first that is committed counts."""

_BATCH_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 20
_BACKLOG_BYTES_MAX: Final = 4 << 20
_WAITING_MAX: Final = 10_000
_QUORUM_CHANGES: Final = frozenset({"add", "rem"})


class Leader(Follower):
    """See the module."""

    _waiting_lock: Lock
    _waiting: deque[tuple[bytes, Any]]
    _is_closed = False  # under the lock: nothing may be woken after its socket is closed
    _outgoing: dict[Node, tuple[bytes, int]]
    _snapshot_index = 0
    _is_snapshot_due = False  # the one on disk can not be used any more
    _is_handing_over = False  # and takes no commands meanwhile, so that its successor can catch up

    def _prepare_leading(self) -> None:
        self._waiting_lock = Lock()
        self._waiting = deque()
        self._outgoing = {}

    def _applyCommand(self, command: bytes, callback: Any, commandType: int | None = None) -> None:  # noqa: N803
        """Queue a command, from any thread.

        Args:
            command: the entry; without its first byte when that is given.
            callback: called with (result, FAIL_REASON) on the tick thread, or (node, request id) of a forwarder.
            commandType: its first byte.
        """
        entry = command if commandType is None else bytes((commandType,)) + command
        reason = self._queue(entry, callback)
        if reason != FAIL_REASON.SUCCESS:
            self._SyncObj__callErrCallback(reason, callback)

    def _queue(self, entry: bytes, callback: Any) -> int:
        with self._waiting_lock:
            if self._is_closed:
                return int(FAIL_REASON.MISSING_LEADER)
            if len(self._waiting) >= _WAITING_MAX:
                return int(FAIL_REASON.QUEUE_FULL)
            self._waiting.append((entry, callback))
            self._transport.wake()
            return int(FAIL_REASON.SUCCESS)

    def wake(self) -> None:
        """End the wait of a tick. From any thread."""
        with self._waiting_lock:
            if not self._is_closed:
                self._transport.wake()

    def _checkCommandsToApply(self) -> None:
        if self._is_handing_over:
            return
        with self._waiting_lock:
            waiting, self._waiting = self._waiting, deque()
        answers: list[tuple[Node, Message]] = []
        is_leading = self.is_leader
        for command, callback in waiting:
            if is_leading:
                self._lead_command(command, callback, answers)
            else:
                self._forward(command, callback)
        if is_leading and waiting:
            self._SyncObj__sendAppendEntries()
            for node, answer in answers:
                self._transport.send(node, answer)
            if not self._SyncObj__otherNodes:
                self._transport.wake()  # no answer of others will begin the tick that commits

    def _lead_command(self, command: bytes, callback: Any, answers: list[tuple[Node, Message]]) -> None:
        index, term = self._journal.last + 1, self._SyncObj__raftCurrentTerm
        if self._removes_leader(command):
            self._is_handing_over = True  # whoever leads next will do it
        if self._must_wait(command):
            self._SyncObj__callErrCallback(FAIL_REASON.NOT_LEADER, callback)  # the proposer tries again
            return
        if not self._may_append(command):
            self._SyncObj__callErrCallback(FAIL_REASON.REQUEST_DENIED, callback)
            return
        self._append(command)
        if isinstance(callback, tuple):
            node, request_id = callback
            position = {"log_idx": index, "log_term": term}
            answers.append((node, {"type": "apply_command_response", "request_id": request_id} | position))
        elif callback is not None:
            self._SyncObj__commandsWaitingCommit[index].append((term, callback))

    def _append(self, command: bytes) -> None:
        index = self._journal.last + 1
        self._journal.add(command, index, self._SyncObj__raftCurrentTerm)
        change = decode_change(command)
        if change is not None:
            self._membership.record(self._journal[-1:])
            if change[0] in _QUORUM_CHANGES:
                self._SyncObj__changeClusterIDx = index
            self._sync_voters()

    def _removes_leader(self, command: bytes) -> bool:
        change = decode_change(command)
        return change is not None and change[0] == "rem" and change[1].node_id == self.node_id and len(self.voters) > 1

    def _must_wait(self, command: bytes) -> bool:
        """Whether this is a change of members that must not be made now, and may be later."""
        if command[:1] != bytes((MEMBERSHIP,)) or self._membership.refusal(command) is not None:
            return False
        return self._is_handing_over or not self._may_change_voters()

    def _may_append(self, command: bytes) -> bool:
        if len(command) > ENTRY_BYTES_MAX:
            return False
        match command[0]:
            case 0:  # REGULAR
                return self._machine.accepts(command[1:])
            case 1:  # NO_OP
                return len(command) == 1
            case 2:  # MEMBERSHIP
                return self._membership.refusal(command) is None
            case _:
                return False

    def _may_change_voters(self) -> bool:
        """One change at a time: the last one, and an entry of this leader's own term, are applied."""
        applied = self._SyncObj__raftLastApplied
        noop, change = self._SyncObj__noopIDx, self._SyncObj__changeClusterIDx
        return noop is not None and applied >= noop and (change is None or applied >= change)

    def _forward(self, command: bytes, callback: Any) -> None:
        leader = self._SyncObj__raftLeader
        if isinstance(callback, tuple):
            self._SyncObj__callErrCallback(FAIL_REASON.NOT_LEADER, callback)
        elif leader is None or leader == self.selfNode or leader not in self._SyncObj__connectedNodes:
            self._SyncObj__callErrCallback(FAIL_REASON.MISSING_LEADER, callback)
        else:
            self._SyncObj__commandsLocalCounter += 1
            request_id = self._SyncObj__commandsLocalCounter
            self._SyncObj__commandsWaitingReply[request_id] = callback
            self._transport.send(leader, {"type": "apply_command", "command": command, "request_id": request_id})

    def _SyncObj__onBecomeLeader(self) -> None:
        self._outgoing.clear()
        self._SyncObj__changeClusterIDx = None  # a change of the last leader is applied before the no-op of this one
        super()._SyncObj__onBecomeLeader()
        for node in self.followers - self._SyncObj__otherNodes:  # the library knows only of those that vote
            self._start_counting(node)
            self._SyncObj__lastResponseTime[node] = monotonic()
        if not self._journal.cluster_id:
            self._append(bytes((CLUSTER,)) + self._new_name().encode())
            self._journal.flush()  # a leader counts nothing of its own before

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:
        """Answers to what was forwarded on a connection that is gone will never come."""
        super()._SyncObj__onNodeDisconnected(node)
        self._outgoing.pop(node, None)
        if node == self._SyncObj__raftLeader:
            self._SyncObj__onLeaderChanged()

    def _SyncObj__sendAppendEntries(self) -> None:
        self._SyncObj__newAppendEntriesTime = monotonic() + self._settings.heartbeat_s
        self._journal.flush()
        for node in self.followers & self._SyncObj__connectedNodes:
            self._send_log(node)

    def _send_log(self, node: Node) -> None:
        """Send what a follower lacks, or a heartbeat; no more than its connection takes in reasonable time."""
        is_first = True
        while self._transport.backlog_bytes(node) < _BACKLOG_BYTES_MAX:
            next_index = self._SyncObj__raftNextIndex[node]
            is_through = next_index > self._journal.last or not self._is_compared(node)
            if not is_first and next_index > self._journal.first and is_through:
                return
            is_first = False
            message: Message = {
                "type": "append_entries",
                "term": self._SyncObj__raftCurrentTerm,
                "commit_index": self._SyncObj__raftCommitIndex,
            }
            message |= self._entries_for(node) if next_index > self._journal.first else self._chunk_for(node)
            if not self._transport.send(node, message):
                return

    def _is_compared(self, node: Node) -> bool:
        """Whether a follower has taken entries or a snapshot of this leader's term.

        Before, it gets the same message until it answers: its answers to later ones ("that is all I have") would undo
        what it answered to the first ("go back").
        """
        return self._SyncObj__raftMatchIndex[node] > 1

    def _entries_for(self, node: Node) -> Message:
        self._outgoing.pop(node, None)
        next_index = self._SyncObj__raftNextIndex[node]
        entries = self._journal.entries_from(next_index, _BATCH_BYTES)
        if self._is_compared(node):
            self._SyncObj__raftNextIndex[node] = next_index + len(entries)
        previous = next_index - 1
        return {"prevLogIdx": previous, "prevLogTerm": self._journal.term_at(previous), "entries": entries}

    def _chunk_for(self, node: Node) -> Message:
        """The next piece of the snapshot; the file is read once, so that a newer one does not mix in."""
        is_first = node not in self._outgoing
        if is_first:
            try:
                self._outgoing[node] = (read_snapshot(self._disk, self._snapshot_path), 0)
            except SnapshotError as error:
                logger.error("%s. It is written anew; check the disk", error)  # noqa: TRY400 - says all there is
                self._is_snapshot_due = True
                self._SyncObj__raftNextIndex[node] = self._journal.last + 1  # is refused, and so asked for again
                return self._entries_for(node)
        data, position = self._outgoing[node]
        end = position + _CHUNK_BYTES
        is_last = end >= len(data)
        if is_last:
            self._outgoing.pop(node, None)
            self._SyncObj__raftNextIndex[node] = self._snapshot_index + 1
        else:
            self._outgoing[node] = (data, end)
        return {"serialized": [data[position:end], is_first, is_last]}
