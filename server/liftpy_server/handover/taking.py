"""The next leader's side: it listens and holds before it leads, and appends what the old leader has not stored."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_envelope.errors import ErrorCode
from liftpy_server.handover.held import Held
from liftpy_server.handover.refused import Refused
from liftpy_server.handover.requests import ListenAnswer, ListenRequest, TakeRequest, show_keys
from liftpy_server.ingest.marks import MARK_SUBJECT
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.handover.held import Holding
    from liftpy_server.ingest.subscriptions import Subscriptions
    from liftpy_server.partition.partition import Partition
    from liftpy_server.replication.host.local import LocalReplica

__all__ = ["SKEW_S", "Taking"]

logger = logging.getLogger(__name__)

_MARKS: Final = 5
_MARK_INTERVAL_S: Final = 0.02
_SPREAD_S: Final = 0.05  # for NATS servers to tell each other of a subscription
_HEARD_TIMEOUT_S: Final = 3.0
_HELD_S_MAX: Final = 10.0  # from the last mark on; then it is called off
_LOOK_S: Final = 0.005
SKEW_S: Final = 0.05
"""By which two nodes may hear the same message apart."""


class _Take(NamedTuple):
    held: dict[PartitionKey, Held]
    epochs: dict[PartitionKey, int]
    hearing: Subscriptions


class Taking:
    """Takes partitions over: holds messages before it leads, and appends those that the old leader has not stored.

    Args:
        holding: Holding of this node.
        publish: Publishes a mark; returns when the server has it.

    Attributes:
        is_closed: This node takes nothing over any more: it stops.
    """

    def __init__(self, holding: Holding, publish: Callable[[str, bytes], Awaitable[None]]) -> None:
        self._holding = holding
        self._streams = holding.streams
        self._publish = publish
        self._takes: dict[str, _Take] = {}
        self.is_closed = False

    @property
    def is_holding(self) -> bool:
        """Whether something is held for this node to lead."""
        by_key = self._streams.by_key
        return any(
            key in by_key and by_key[key].held is held
            for take in self._takes.values()
            for key, held in take.held.items()
        )

    def call_off_all(self) -> None:
        """Hold nothing any more: what is led all the same has a gap."""
        for name in list(self._takes):
            self._call_off(name)

    async def listen(self, body: dict[str, Any]) -> dict[str, Any]:
        """Hold what comes for partitions that another node leads still."""
        request = ListenRequest.from_plain(body)
        await self._holding.steady()
        hearing = self._holding.ingest.hearing
        if self.is_closed or hearing is None or request.name in self._takes:
            raise AdminError(
                ErrorCode.NOT_AVAILABLE, "this node stops, or hears nothing of NATS, or holds this already"
            )
        if (misses := self._holding.ingest.misses) is not None:
            raise AdminError(ErrorCode.NOT_AVAILABLE, f"this node misses messages: {misses}")
        take = _Take({}, request.partitions, hearing)
        why = ""
        for key, epoch in request.partitions.items():
            refusal = self._refusal(key, epoch)
            if refusal is None:
                partition = self._streams.by_key[key]
                partition.let_go()  # of a handover that was called off
                take.held[key] = partition.held = Held(self._holding.room)
            else:
                why = f"{key.uuid.hex()}/{key.partition}: {refusal}"
        if not take.held:
            return ListenAnswer([], [], why).to_plain()
        self._takes[request.name] = take
        try:
            tokens = await self._hear(request.name, take)
        except BaseException:
            self._call_off(request.name)
            raise
        asyncio.get_running_loop().call_later(_HELD_S_MAX, self._call_off, request.name)
        return ListenAnswer(tokens, [key for key, held in take.held.items() if not held.is_broken], why).to_plain()

    def _refusal(self, key: PartitionKey, epoch: int) -> str | None:
        replica = self._streams.lookup_replica(key)
        if isinstance(replica, ErrorCode) or replica.core.view is None or replica.core.view.leader_epoch != epoch:
            return f"this node knows of no leader epoch {epoch} of it"
        if replica.partition.is_leading:
            return "this node leads it"
        if not replica.is_in_sync or replica.partition.storage_full:
            return "this node's copy is not in sync"
        return None

    async def _hear(self, name: str, take: _Take) -> list[str]:
        """Subscribe, and publish marks until they are heard; returns their tokens."""
        streams = {self._streams.by_uuid[key.uuid.hex()]: None for key in take.held}
        await self._streams.listening.bind(list(streams))
        refused = next((stream.refusal for stream in streams if stream.refusal is not None), None)
        if refused is None:  # what stood before may have been taken away since
            refused = self._holding.ingest.refusal([binding for stream in streams for binding in stream.bindings])
        if refused is not None:
            raise AdminError(ErrorCode.NOT_AVAILABLE, str(refused))
        await asyncio.sleep(_SPREAD_S)
        tokens = [secrets.token_hex(8) for _ in range(_MARKS)]

        def marked() -> None:
            for held in take.held.values():
                held.mark()

        await self._mark(name, tokens, marked)
        return tokens

    async def _mark(self, name: str, tokens: list[str], on_mark: Callable[[], None]) -> None:
        """Publish marks until they are heard, one after the other."""
        waiting = list(tokens)

        def marked(token: str) -> None:
            if waiting[:1] == [token]:
                del waiting[0]
                on_mark()

        self._holding.marks.expect(name, marked)
        try:
            async with asyncio.timeout(_HEARD_TIMEOUT_S):
                for token in tokens:
                    await self._publish(MARK_SUBJECT, f"{name} {token}".encode())
                    await asyncio.sleep(_MARK_INTERVAL_S)
                while waiting:  # noqa: ASYNC110 - they are heard in plain calls
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise AdminError(
                ErrorCode.NOT_AVAILABLE, f"marks on {MARK_SUBJECT} are not heard within {_HEARD_TIMEOUT_S:g} s"
            ) from None
        finally:
            self._holding.marks.forget(name)

    def _call_off(self, name: str) -> None:
        """Forget what is held of a handover, where it did not come to this node's leading."""
        take = self._takes.pop(name, None)
        if take is None:
            return
        for key, held in take.held.items():
            partition = self._streams.by_key.get(key)
            if partition is not None and partition.held is held and not partition.is_leading:
                partition.let_go()
                self._streams.listening.change(self._streams.by_uuid[key.uuid.hex()])

    async def take(self, body: dict[str, Any]) -> dict[str, Any]:
        """The old leader stores nothing more of these partitions; this is what it has."""
        request = TakeRequest.from_plain(body)
        take = self._takes.get(request.name)
        if take is None:
            raise AdminError(ErrorCode.NOT_AVAILABLE, "this node holds nothing of that name any more")
        # What the old leader heard is to be held when this node leads: a last mark tells that it has come.
        await self._mark(request.name, [secrets.token_hex(8)], lambda: None)
        await asyncio.sleep(SKEW_S)
        ready = []
        for key, stored in request.stored.items():
            held = take.held.get(key)
            if held is not None and not held.is_broken and held.marks == len(stored):
                held.stored, held.refused = stored, Refused(0, request.refused[key])
                ready.append(key)
        return {"partitions": show_keys(ready)}

    def took_over(self, replica: LocalReplica) -> bool:
        """A replica leads from now on: whether it heard all that was published since its leader before ceased to store.

        What of it is to be appended is, as soon as the replica knows who is in sync.
        """
        partition = replica.partition
        take, held = next(
            (
                (take, held)
                for take in self._takes.values()
                if (held := take.held.get(partition.key)) is not None and held is partition.held
            ),
            (None, None),
        )
        if held is None or take is None:  # what this node held to hand it over is not for here
            return False
        is_whole = (
            held.stored is not None
            and not held.is_broken
            and partition.epoch == take.epochs[partition.key] + 1
            and self._holding.ingest.hearing is take.hearing
            and self._holding.ingest.misses is None
        )
        if not is_whole:
            partition.let_go()
            return False
        since_s = self._streams.whole_until_s(partition)
        asyncio.get_running_loop().call_soon(self._append, partition, held, since_s)
        return True

    def _append(self, partition: Partition, held: Held, since_s: float) -> None:
        if partition.held is not held:
            return
        if partition.is_leading:
            if held.is_broken:  # only now: what was held is dropped
                cause = "too much was published while the lead was handed over"
                partition.gaps.missed(since_s, cause)
            log, config = partition.log, partition.stream.config
            self._holding.append(partition, held, lambda held: held.not_stored(log, config), since_s)
        else:
            partition.let_go()
