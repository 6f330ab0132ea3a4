"""Commands on their way into the log: queued by any thread, appended or forwarded by a tick, answered when applied.

The answers to forwarding followers go out after the log was sent, so that they do not cause a flush each.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from enum import IntEnum
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from liftpy_server.consensus.membership import decode_change
from liftpy_server.consensus.messages import ENTRY_BYTES_MAX
from liftpy_server.consensus.storage.journal import MEMBERSHIP, NO_OP, REGULAR

if TYPE_CHECKING:
    from liftpy_server.consensus.leader import RaftLeader
    from liftpy_server.consensus.machine import Machine
    from liftpy_server.consensus.messages import Message
    from liftpy_server.consensus.peers import Peers
    from liftpy_server.consensus.pysyncobj_core import Core
    from liftpy_server.consensus.storage.journal import RaftJournal
    from liftpy_server.consensus.wire.transport import RaftTransport

__all__ = ["Callback", "Proposals", "Reason"]

_WAITING_MAX: Final = 10_000


class Reason(IntEnum):
    """How a proposal ended. The numbers are on the wire, and are those of pysyncobj."""

    SUCCESS = 0
    QUEUE_FULL = 1
    MISSING_LEADER = 2
    DISCARDED = 3
    """Another leader put another entry in its place."""
    NOT_LEADER = 4
    """Who was asked does not lead, or can not take it now: propose again."""
    LEADER_CHANGED = 5
    """The leader that it was forwarded to is gone: it may be in the log."""
    REQUEST_DENIED = 6
    UNKNOWN_OUTCOME = 7
    """It may be applied, and its result is not known here."""


Callback = Callable[[Any, int], None]
"""Called on the tick thread with what the state machine returned, and a `Reason`."""

_Forwarder = tuple[str, int]
"""The follower that forwarded a command, and its number for it."""


class Proposals:
    """The commands that were proposed on this node, or forwarded to it, and are not answered.

    Args:
        core: Knows who leads.
        journal: Journal with the entries of the Raft log.
        machine: Says which commands are sound.
        leader: Appends, while this node leads.
        peers: Says who is connected.
        transport: Carries what is forwarded.
    """

    def __init__(
        self,
        node_id: str,
        core: Core,
        journal: RaftJournal,
        machine: Machine,
        leader: RaftLeader,
        peers: Peers,
        transport: RaftTransport,
    ) -> None:
        self._node_id = node_id
        self._core = core
        self._journal = journal
        self._machine = machine
        self._leader = leader
        self._peers = peers
        self._transport = transport
        self._lock = Lock()
        self._is_closed = False  # under the lock: nothing may be woken after its socket is closed
        self._waiting: deque[tuple[bytes, Callback | _Forwarder]] = deque()
        self._forwarded: dict[int, Callback] = {}  # by their numbers; the leader has not said where in the log they are
        self._last_request_id = 0
        self._uncommitted: defaultdict[int, list[tuple[int, Callback]]] = defaultdict(list)  # by index: term, whom

    def submit(self, entry: bytes, callback: Callback) -> None:
        """Propose an entry, from any thread.

        Args:
            entry: Entry, whose first byte says what it is.
            callback: Called once, unless the answer is lost.
        """
        self._queue(entry, callback)

    def wake(self) -> None:
        """End the wait of a tick, from any thread."""
        with self._lock:
            if not self._is_closed:
                self._transport.wake()

    def close(self) -> None:
        """Take no more commands, and wake nobody."""
        with self._lock:
            self._is_closed = True

    def take(self) -> None:
        """Append or forward what waits."""
        if self._leader.is_handing_over:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        answers: list[tuple[str, Message]] = []
        is_leading = self._core.is_leader
        for command, callback in waiting:
            if is_leading:
                self._lead(command, callback, answers)
            else:
                self._forward(command, callback)
        if is_leading and waiting:
            self._core.send_log()
            for node, answer in answers:
                self._transport.send(node, answer)
            if not self._core.other_voters:
                self._transport.wake()  # no answer of others will begin the tick that commits

    def receive(self, node: str, message: Message) -> None:
        """Take a command that a follower forwards."""
        self._queue(message["command"], (node, message["request_id"]))

    def receive_answer(self, message: Message) -> None:
        """Take the leader's answer to a command that was forwarded: where it is in the log, or why it is not."""
        callback = self._forwarded.pop(message["request_id"], None)
        if callback is None:
            return
        error = message.get("error")
        if error is not None:
            callback(None, error)
        elif message["log_idx"] <= self._core.applied_index:  # it was applied before this came; its result is gone
            callback(None, Reason.UNKNOWN_OUTCOME)
        else:
            self._uncommitted[message["log_idx"]].append((message["log_term"], callback))

    def leader_changed(self) -> None:
        """Answers to what was forwarded will not come any more."""
        forwarded, self._forwarded = self._forwarded, {}
        for request_id in sorted(forwarded):
            forwarded[request_id](None, Reason.LEADER_CHANGED)

    def applied(self, index: int, term: int, result: Any) -> None:
        """Answer the proposers of an entry, now that the state has it."""
        for expected_term, callback in self._uncommitted.pop(index, []):
            if expected_term == term:
                callback(result, Reason.SUCCESS)
            else:
                callback(None, Reason.DISCARDED)

    def snapshot_installed(self, index: int, *, is_log_kept: bool) -> None:
        """Give up what a snapshot up to `index` swallowed, and all that follows it where the log was not kept."""
        for at in [at for at in self._uncommitted if at <= index or not is_log_kept]:
            for _, callback in self._uncommitted.pop(at):
                callback(None, Reason.UNKNOWN_OUTCOME)

    def _queue(self, entry: bytes, callback: Callback | _Forwarder) -> None:
        with self._lock:
            if not self._is_closed and len(self._waiting) < _WAITING_MAX:
                self._waiting.append((entry, callback))
                self._transport.wake()
                return
            reason = Reason.MISSING_LEADER if self._is_closed else Reason.QUEUE_FULL
        self._refuse(callback, reason)

    def _refuse(self, callback: Callback | _Forwarder, reason: Reason) -> None:
        if isinstance(callback, tuple):
            node, request_id = callback
            answer = {"type": "apply_command_response", "request_id": request_id, "error": int(reason)}
            self._transport.send(node, answer)
        else:
            callback(None, reason)

    def _lead(self, command: bytes, callback: Callback | _Forwarder, answers: list[tuple[str, Message]]) -> None:
        index, term = self._journal.last + 1, self._core.term
        if self._removes_this_node(command):
            self._leader.is_handing_over = True  # whoever leads next will do it
        if self._must_wait(command):
            self._refuse(callback, Reason.NOT_LEADER)  # the proposer tries again
            return
        if not self._may_append(command):
            self._refuse(callback, Reason.REQUEST_DENIED)
            return
        self._leader.append(command)
        if isinstance(callback, tuple):
            node, request_id = callback
            position = {"log_idx": index, "log_term": term}
            answers.append((node, {"type": "apply_command_response", "request_id": request_id} | position))
        else:
            self._uncommitted[index].append((term, callback))

    def _removes_this_node(self, command: bytes) -> bool:
        change = decode_change(command)
        is_removal = change is not None and change[0] == "rem" and change[1].node_id == self._node_id
        return is_removal and len(self._peers.voters) > 1

    def _must_wait(self, command: bytes) -> bool:
        """Whether this is a change of members that must not be made now, and may be later."""
        if command[:1] != bytes((MEMBERSHIP,)) or self._peers.membership.refusal(command) is not None:
            return False
        return self._leader.is_handing_over or not self._leader.may_change_voters()

    def _may_append(self, command: bytes) -> bool:
        if len(command) > ENTRY_BYTES_MAX:
            return False
        kind = command[0]
        if kind == REGULAR:
            return self._machine.accepts(command[1:])
        if kind == NO_OP:
            return len(command) == 1
        return kind == MEMBERSHIP and self._peers.membership.refusal(command) is None

    def _forward(self, command: bytes, callback: Callback | _Forwarder) -> None:
        leader = self._core.leader
        if isinstance(callback, tuple):
            self._refuse(callback, Reason.NOT_LEADER)
        elif leader is None or leader == self._node_id or leader not in self._peers.connected:
            self._refuse(callback, Reason.MISSING_LEADER)
        else:
            self._last_request_id += 1
            request_id = self._last_request_id
            self._forwarded[request_id] = callback
            self._transport.send(leader, {"type": "apply_command", "command": command, "request_id": request_id})
