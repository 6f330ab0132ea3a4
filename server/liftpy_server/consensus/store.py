"""`MetadataStore`: propose commands, read the state, watch it change. The only way to the metadata.

The cluster has one to five voters, and further nodes that follow. The event loop talks to the tick thread by two
queues: proposals go down by `Raft.submit`, answers come up by `call_soon_threadsafe`. The state is immutable and
may be read at any time. A command has its id from its proposer, so trying again while no leader is known, or after one
was lost, applies it once.

Outcomes: applied, refused, or unknown. Unknown means that the command may have been applied, or may be yet: look
before trying again, or propose again with the same id.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.consensus.batches import batches, refuse_unfit
from liftpy_server.consensus.machine import MetadataMachine, encode_entry
from liftpy_server.consensus.membership import encode_change
from liftpy_server.consensus.proposing import Proposer
from liftpy_server.consensus.raft import Raft
from liftpy_server.consensus.settings import COMMAND_BYTES_MAX
from liftpy_server.consensus.storage.journal import NO_OP, REGULAR
from liftpy_server.consensus.ticker import Ticker, exit_process
from liftpy_server.consensus.wire.transport import RaftTransport
from liftpy_server.metadata.changes import RefusedError
from liftpy_server.metadata.commands import Command, Outcome, check_proposable
from liftpy_server.metadata.errors import MetadataRefusedError, MetadataUnavailableError, MetadataUnknownError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from liftpy_log.clock import Clock
    from liftpy_server.consensus.batches import Proposal
    from liftpy_server.consensus.settings import RaftSettings, Voter
    from liftpy_server.metadata.state import MetadataState

__all__ = ["MetadataUnknownError", "RaftMetadataStore"]

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.01
_ANNOUNCE_AGAIN_S: Final = 1.0
_ROOM_BYTES_MIN: Final = 1024 * 1024


class RaftMetadataStore:
    """The metadata as this node knows them, for the event loop; commands go to the voter on its own thread.

    Args:
        settings: Settings of this voter.
        clock: Stamps the commands.
        on_fatal: Called on the tick thread when the voter can not go on; the default ends the process with code 70.
        make_transport: Opens the port.
        on_applied: See `MetadataMachine`; called on the tick thread, must not raise, and must be quick.
    """

    def __init__(
        self,
        settings: RaftSettings,
        clock: Clock,
        *,
        on_fatal: Callable[[BaseException], None] = exit_process,
        make_transport: Callable[[RaftSettings], RaftTransport] = RaftTransport,
        on_applied: Callable[[MetadataState, MetadataState, int], None] = lambda _before, _after, _now_ns: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_fatal = on_fatal
        self._make_transport = make_transport
        self._machine = MetadataMachine(self._state_changed, on_applied)
        self._changed = asyncio.Event()
        self._is_change_told = False
        self._queued_barrier: asyncio.Task[None] | None = None
        self._running_barrier: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._raft: Raft
        self._transport: RaftTransport
        self._ticker: Ticker
        self._proposer: Proposer

    @property
    def state(self) -> MetadataState:
        """The state as this node knows it."""
        return self._machine.state

    @property
    def cluster_id(self) -> str:
        """32 hex digits; empty on a new node until it has heard from its cluster, which `read` waits for."""
        return self._raft.cluster_id

    @property
    def leader_id(self) -> str | None:
        """Who leads the metadata, as far as this node knows; never a reason to act as one."""
        return self._raft.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads the metadata; never a reason to act as if no other did."""
        return self._raft.is_leader

    @property
    def voters(self) -> tuple[Voter, ...]:
        """Who votes, by the log of this node."""
        return self._raft.voters

    @property
    def learners(self) -> tuple[Voter, ...]:
        """Who follows the log and does not vote (yet), by the log of this node."""
        return self._raft.learners

    @property
    def port(self) -> int:
        """Where it listens for the others; 0 when it does not."""
        return self._transport.port

    def silent_s(self, node_id: str) -> float:
        """For how many seconds nothing came from a node while this one listened; 0 for this one."""
        return 0.0 if node_id == self._settings.node_id else self._transport.silence.silent_s(node_id)

    def unheard_s(self) -> float:
        """For how many seconds this node has heard of no leader that a majority follows: it may have been given up."""
        return self._raft.unheard_s()

    def has_lost(self, node_id: str) -> bool:
        """Whether there was a connection with a node since this one was started, and there is none now."""
        return self._transport.has_lost(node_id)

    async def start(self) -> None:
        """Open journal, snapshot and port, and take part. A cluster of one has applied its journal on return.

        Raises:
            JournalError: the journal can not be used.
            SnapshotError: the snapshot can not be used.
            TransportError: the port can not be opened.
            PinnedVersionError: the consensus library is not the one this was written against.
        """
        self._loop = asyncio.get_running_loop()
        self._proposer = Proposer(self._submit, self._settings.propose_timeout_s)
        self._raft = await self._loop.run_in_executor(None, self._open)
        self._ticker = Ticker(self._raft, self._failed)
        self._ticker.start()
        try:
            if [voter.node_id for voter in self.voters] == [self._settings.node_id]:
                await self.read()
                await self._announce_address()
            else:
                self._announcing = self._loop.create_task(self._announce_address(), name="announce metadata address")
        except BaseException:
            await self.stop()
            raise

    def _submit(self, entry: bytes, callback: Callable[[Any, int], None]) -> None:
        self._raft.submit(entry, callback)  # the voter is made after the proposer, to whom it tells what it restores

    def _open(self) -> Raft:
        self._transport = self._make_transport(self._settings)
        try:
            return Raft(self._settings, self._transport, self._machine)
        except BaseException:
            self._transport.destroy()
            raise

    async def stop(self) -> None:
        """Stop, once what was proposed here is answered; each answer comes within the time-out of its proposal."""
        if self._announcing is not None:
            self._announcing.cancel()
            await asyncio.wait([self._announcing])
        await self._proposer.drain()
        await self._loop.run_in_executor(None, self._ticker.stop)
        self._proposer.end("the node is stopping")

    async def propose(self, op: str, /, *, command_id: str | None = None, **args: Any) -> Any:
        """Apply a command, on whichever node it is proposed.

        Args:
            op: The command.
            command_id: The same id proposed again is applied once.
            args: The command's arguments.

        Returns:
            The value of its outcome.

        Raises:
            MetadataRefusedError: its outcome is a refusal.
            MetadataUnavailableError: there was no leader in time; nothing changed.
            MetadataUnknownError: it may have been applied, or not.
        """
        command = Command(id=command_id or uuid4().hex, op=op, now_ns=self._clock.now_ns(), args=args)
        try:
            encoded = command.encode()
            Command.decode(encoded)
        except (LiftError, ValueError, ArithmeticError, TypeError, RecursionError) as error:
            text = f"{op}: an argument can not be written down: {error}"
            raise MetadataRefusedError(ErrorCode.INVALID_REQUEST, text) from error
        try:
            check_proposable(self.state, command)
        except RefusedError as error:
            raise MetadataRefusedError(error.code, str(error)) from error
        if len(encoded) > COMMAND_BYTES_MAX:
            text = f"{op}: {len(encoded)} bytes; a command has no more than {COMMAND_BYTES_MAX}"
            raise MetadataRefusedError(ErrorCode.INVALID_REQUEST, text)
        if len(self.voters) == 1:
            _check_room(self._settings.folder, op)
        entry = bytes((REGULAR,)) + encode_entry(encoded, self.state.revision)
        outcome: Outcome = await self._proposer.commit(entry, op)
        if outcome.error is not ErrorCode.NONE:
            raise MetadataRefusedError(outcome.error, outcome.message)
        return outcome.value

    async def propose_many(self, proposals: Sequence[Proposal]) -> list[Outcome]:
        """Apply many commands in order, in as few log entries as they fit in.

        Args:
            proposals: (op, command id or None, arguments) of each.

        Returns:
            Their outcomes, refusals among them: what applying them came to, or that they fit in no entry.

        Raises:
            MetadataRefusedError: an entry was not taken, so those of it, and later ones, have no outcome. What was
                proposed earlier under the same ids may be under way still.
            MetadataUnavailableError: there was no leader in time; those of later entries changed nothing.
            MetadataUnknownError: those of one entry may have been applied, or not.
        """
        outcomes = refuse_unfit(proposals)
        for batch in batches(proposals, outcomes):
            found = list(map(Outcome.from_plain, await self.propose("batch", commands=batch.items)))
            outcomes |= dict(zip(batch.positions, found, strict=True))
        return [outcomes[position] for position in range(len(proposals))]

    async def read(self, *, linearizable: bool = True) -> MetadataState:
        """The state; with `linearizable`, one that includes every command that was answered before the call.

        Raises:
            MetadataUnavailableError: there was no leader in time, so this node can not know.
        """
        if linearizable:
            if self._queued_barrier is None:
                self._queued_barrier = self._loop.create_task(self._barrier(self._running_barrier))
                self._queued_barrier.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(self._queued_barrier)
        return self.state

    async def _barrier(self, before: asyncio.Task[None] | None) -> None:
        """One entry for all readers that came while the barrier before it was under way."""
        if before is not None:
            await asyncio.wait([before])
        self._running_barrier, self._queued_barrier = self._queued_barrier, None
        try:
            await self._proposer.commit(bytes((NO_OP,)), "read")
        except MetadataUnknownError as error:  # a barrier changes nothing
            raise MetadataUnavailableError(str(error)) from error

    async def watch(self) -> AsyncIterator[MetadataState]:
        """The state now, and after changes. A slow watcher skips states, and always gets the newest."""
        seen = -1
        while True:
            changed, state = self._changed, self.state
            if state.revision == seen:
                await changed.wait()
            else:
                seen = state.revision
                yield state

    async def add_voter(self, voter: Voter) -> None:
        """Take a node in. It follows at once, and votes when it has the log, if there are fewer than five voters.

        Taking in one again that was never seen changes its address at most.

        Raises:
            MetadataRefusedError: it is a member already, or there are too many.
            MetadataUnavailableError: as for `propose`.
            MetadataUnknownError: as for `propose`.
        """
        known = self._members().get(voter.node_id)
        if known in self.voters or (known is not None and known.instance):
            text = f"{voter.node_id!r} is a member already; if its data directory was lost, remove it first"
            raise MetadataRefusedError(ErrorCode.CONFLICT, text)
        if known is None:
            await self._change("learn", voter)
        elif known != voter:
            await self._change("set", voter)

    async def remove_voter(self, node_id: str) -> None:
        """Take a node out, whether it votes or only follows. A leader hands over before it goes itself.

        Raises:
            MetadataRefusedError: the node is no member, or the only voter.
            MetadataUnavailableError: as for `propose`.
            MetadataUnknownError: as for `propose`.
        """
        found = self._members().get(node_id)
        if found is None:
            raise MetadataRefusedError(ErrorCode.CONFLICT, f"{node_id!r} is no member of the cluster")
        if len(self.voters) == 1 and found in self.voters:
            raise MetadataRefusedError(ErrorCode.CONFLICT, f"{node_id!r} is the only one that keeps the metadata")
        await self._change("rem", found)

    async def transfer_leadership(self) -> None:
        """Hand the leadership over to the voter with the newest log. Does nothing on a node that does not lead.

        Raises:
            MetadataUnavailableError: no other voter took over in time; this node leads on.
        """
        if not self._raft.is_leader:
            return
        self._raft.hand_over()
        deadline = self._loop.time() + 4 * self._settings.election_timeout_min_s
        while len(self.voters) > 1 and self._loop.time() < deadline:
            if not self.is_leader and self.leader_id not in {None, self._settings.node_id}:
                return
            await asyncio.sleep(_LOOK_AGAIN_S)
        raise MetadataUnavailableError("no other voter took over the leadership of the metadata; is one connected?")

    async def _change(self, op: str, voter: Voter) -> None:
        try:
            await self._proposer.commit(encode_change(op, voter), f"{op} member {voter.node_id}")
        except MetadataRefusedError as error:
            raise MetadataRefusedError(ErrorCode.CONFLICT, error.args[0]) from error

    async def _announce_address(self) -> None:
        """Tell the cluster where this node is, if that differs from what its log says."""
        own = {voter.node_id: voter for voter in self._settings.voters}.get(self._settings.node_id)
        while own is not None and own != self._members().get(own.node_id, own):
            try:
                await self._change("set", own)
            except (MetadataUnavailableError, MetadataUnknownError):
                await asyncio.sleep(_ANNOUNCE_AGAIN_S)
            except MetadataRefusedError as error:
                logger.warning("the cluster does not take the new address of this node: %s", error)
                return

    def _members(self) -> dict[str, Voter]:
        return {voter.node_id: voter for voter in (*self.voters, *self.learners)}

    def _state_changed(self) -> None:
        if not self._is_change_told:
            self._is_change_told = True
            self._proposer.on_loop(self._tell_change)

    def _tell_change(self) -> None:
        self._is_change_told = False
        self._changed.set()
        self._changed = asyncio.Event()

    def _failed(self, error: BaseException) -> None:
        try:
            self._proposer.on_loop(self._proposer.end, f"the metadata of this node failed: {error}")
        finally:
            self._on_fatal(error)


def _check_room(folder: Path, what: str) -> None:
    """See whether the disk has room for another entry, before a lone voter tries: it must stop if there is none.

    In a cluster of several a voter whose disk is full stops, and the others go on. A lone one has no others: it refuses
    changes of the metadata instead, and goes on serving what it has.

    Raises:
        MetadataUnavailableError: the disk is as good as full; nothing changed.
    """
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < _ROOM_BYTES_MIN:
        raise MetadataUnavailableError(
            f"{what}: the disk of {folder} is full ({free} bytes are left, and the metadata want {_ROOM_BYTES_MIN})"
        )
