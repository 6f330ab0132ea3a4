"""The old leader's side: it goes on storing until the next leader hears, and then says what it has stored.

    the next one listens and holds    every message reaches both from here on; marks cut what they hear alike
    this one has heard the marks      it holds, too, and stores nothing more
    all that it stored is committed   acks for it are out; the next one has it
    the metadata have the next one    which appends what it held and this one did not store

Where any of it fails, or takes too long, this node appends what it held, and goes on as the leader it is.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.pull import PartitionKey
from liftpy_server.handover.held import Held
from liftpy_server.handover.refused import Refused
from liftpy_server.handover.requests import ListenAnswer, ListenRequest, TakeRequest, read_keys
from liftpy_server.handover.taking import SKEW_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.handover.held import Holding
    from liftpy_server.metadata.outcomes import Outcome
    from liftpy_server.partition.partition import Partition

    Ask = Callable[[str, str, dict[str, Any], float], Awaitable[dict[str, Any]]]

__all__ = ["Giving", "LeaderMove"]

logger = logging.getLogger(__name__)

LeaderMove = dict[str, Any]
"""The arguments of a `move_leader`."""

_AT_ONCE_MAX: Final = 100
_REFUSED_MAX: Final = 200  # of a partition: all that are handed over at once are told in one request
_TIMEOUT_S: Final = 5.0
_LISTEN_TIMEOUT_S: Final = 4.0
_TAKE_TIMEOUT_S: Final = 3.0
_MARKS_HEARD_MAX: Final = 32
_LOOK_S: Final = 0.005


@dataclass(slots=True, eq=False)
class _Given:
    """A partition that is handed over.

    Attributes:
        partition: Partition on this node.
        move: Node that it is given to.
        marks: End of the log at each mark, by token.
        held: What came since this node ceased to store; None before, and where it goes on storing.
        refused: Messages that were not stored since the first mark, as their publishers were told.
    """

    partition: Partition
    move: LeaderMove
    marks: dict[str, int] = field(default_factory=dict)
    held: Held | None = None
    refused: Refused = field(default_factory=lambda: Refused(_REFUSED_MAX))

    @property
    def is_led(self) -> bool:
        """Whether this node leads it still, as it did."""
        return self.partition.is_leading and self.partition.epoch == self.move["leader_epoch"]

    @property
    def is_held(self) -> bool:
        """Whether nothing is stored any more until another node leads."""
        return self.is_led and self.held is not None and self.partition.held is self.held

    @property
    def is_committed(self) -> bool:
        """Whether all that was stored is."""
        return self.partition.high_watermark >= self.partition.log.log_end


class Giving:
    """Gives partitions that this node leads to their next leaders.

    Args:
        holding: Holding of this node.
        ask: Asks a node.
        metadata: Metadata of the cluster.
    """

    def __init__(self, holding: Holding, ask: Ask, metadata: RaftMetadataStore) -> None:
        self._holding = holding
        self._streams = holding.streams
        self._ask = ask
        self._metadata = metadata
        self._giving: set[PartitionKey] = set()

    @property
    def is_giving(self) -> bool:
        """Whether a partition is being handed over."""
        return bool(self._giving)

    async def give(self, moves: Sequence[LeaderMove]) -> list[LeaderMove]:
        """Hand partitions over. Returns those that can not be now: whoever moves them all the same leaves a gap.

        Partitions that nobody publishes to are just moved, and those whose publishers' messages are shared among the
        members of a queue group.
        """
        plain, by_target = [], dict[str, list[LeaderMove]]()
        for move in moves:
            partition = self._streams.by_key.get(_key_of(move))
            config = None if partition is None else partition.stream.config
            if config is not None and (config.is_internal or config.group is not None):
                plain.append(move)
            else:
                by_target.setdefault(move["leader"], []).append(move)
        if plain:
            await self._propose(plain)
        left = await asyncio.gather(*(self._give_to(target, its) for target, its in by_target.items()))
        return [move for some in left for move in some]

    async def _propose(self, moves: Sequence[LeaderMove]) -> list[Outcome]:
        state = self._metadata.state  # the version may have changed since, but not the leader epoch
        versions = {stream.uuid: [each.version for each in stream.partitions] for stream in state.streams.values()}
        commands = []
        for move in moves:
            version = versions[move["uuid"]][move["partition"]] if move["uuid"] in versions else move["version"]
            commands.append(("move_leader", None, move | {"version": version}))
        return await self._metadata.propose_many(commands)

    async def _give_to(self, target: str, moves: Sequence[LeaderMove]) -> list[LeaderMove]:
        loop = asyncio.get_running_loop()
        left: list[LeaderMove] = []
        for start in range(0, len(moves), _AT_ONCE_MAX):
            some = [move for move in moves[start : start + _AT_ONCE_MAX] if self._is_led(move)]
            if not some:
                continue
            began_s = loop.time()
            is_late = False
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    why = await self._give_some(target, some)
            except TimeoutError:
                is_late = True
                why = f"it takes longer than {_TIMEOUT_S:g} s"
            except LiftError as error:
                why = str(error)
            stay = [move for move in some if self._is_led(move) and _key_of(move) not in self._giving]
            took_s = loop.time() - began_s
            leaders = self._leaders_of([move for move in some if not self._is_led(move)])
            if moved := leaders.count(target):
                logger.info("handed over the lead of %d partitions to node %s in %.3f s", moved, target, took_s)
            if others := len(leaders) - moved:
                logger.warning(
                    "%d partitions that were to be handed over to node %s are led by others: this node was deposed "
                    "meanwhile, and their streams tell of the gaps",
                    others,
                    target,
                )
            if stay:
                logger.warning("%d partitions can not be handed over to node %s now: %s", len(stay), target, why)
                left += stay
            if is_late:  # nor will it be quicker with the next ones
                return left + [move for move in moves[start + _AT_ONCE_MAX :] if self._is_led(move)]
        return left

    def _is_led(self, move: LeaderMove) -> bool:
        partition = self._streams.by_key.get(_key_of(move))
        return partition is not None and partition.is_leading and partition.epoch == move["leader_epoch"]

    def _leaders_of(self, moves: Sequence[LeaderMove]) -> list[str]:
        """Who leads partitions now, but for those that are gone or that nobody leads."""
        streams = {stream.uuid: stream.partitions for stream in self._metadata.state.streams.values()}
        leaders = (streams[move["uuid"]][move["partition"]].leader for move in moves if move["uuid"] in streams)
        return [leader for leader in leaders if leader is not None]

    async def _give_some(self, target: str, moves: Sequence[LeaderMove]) -> str:
        """Hand over to one node what fits into a request. Returns why something may be left."""
        await self._holding.steady()
        if self._holding.ingest.hearing is None:
            return "this node hears nothing of NATS itself"
        given: dict[PartitionKey, _Given] = {}
        for move in moves:
            key = _key_of(move)
            if self._is_led(move) and key not in self._giving:
                partition = self._streams.by_key[key]
                given[key] = _Given(partition, move)
        if not given:
            return "they are led by other nodes, or are about to be"
        self._giving |= given.keys()
        try:
            return await self._give_held(target, given)
        finally:
            for each in given.values():
                each.partition.on_refused = None
            self._giving -= given.keys()

    async def _give_held(self, target: str, given: dict[PartitionKey, _Given]) -> str:
        name = secrets.token_hex(8)
        heard: list[str] = []

        def marked(token: str) -> None:
            if len(heard) < _MARKS_HEARD_MAX and token not in heard:
                heard.append(token)
                for each in given.values():
                    each.partition.on_refused = each.refused.note
                    each.marks[token] = each.partition.log.log_end

        self._holding.marks.expect(name, marked)
        try:
            request = ListenRequest(name, {key: each.partition.epoch for key, each in given.items()})
            listening = ListenAnswer.from_plain(
                await self._ask(target, "HANDOVER.LISTEN", request.to_plain(), _LISTEN_TIMEOUT_S)
            )
            ready = {key: given[key] for key in listening.partitions if key in given and given[key].is_led}
            if not ready:
                return listening.why
            while not set(listening.tokens) <= set(heard):  # noqa: ASYNC110 - they are heard in plain calls
                await asyncio.sleep(_LOOK_S)
        finally:
            self._holding.marks.forget(name)
        await asyncio.sleep(SKEW_S)
        holding = [each for each in ready.values() if each.is_led and each.partition.held is None]
        try:
            for each in holding:
                each.held = each.partition.held = Held(self._holding.room, self._too_much(each))
            return await self._move(target, name, listening.tokens, holding) or listening.why
        finally:
            for each in holding:
                self._go_on(each)

    def _too_much(self, given: _Given) -> Callable[[Held], None]:
        return lambda _held: self._go_on(given)

    async def _move(self, target: str, name: str, tokens: list[str], holding: list[_Given]) -> str:
        """What this node stores is final; let the next leader have it, and lead. Returns why something may be left."""
        while any(each.is_held and not each.is_committed for each in holding):  # noqa: ASYNC110 - as above
            await asyncio.sleep(_LOOK_S)
        told = [each for each in holding if each.is_held and not each.refused.is_full]
        if not told:
            return "too many messages are refused meanwhile"
        stored = {each.partition.key: tuple(each.marks[token] for token in tokens) for each in told}
        refused = {each.partition.key: each.refused.names for each in told}
        request = TakeRequest(name, stored, refused)
        answer = await self._ask(target, "HANDOVER.TAKE", request.to_plain(), _TAKE_TIMEOUT_S)
        ready = set(read_keys(answer))
        moving = [each for each in holding if each.partition.key in ready and each.is_held]
        if not moving:
            return "it does not hold everything: too much is published meanwhile, or there was an error"
        outcomes = await self._propose([each.move for each in moving])
        moved = [each for each, outcome in zip(moving, outcomes, strict=True) if outcome.error is ErrorCode.NONE]
        while any(each.is_led for each in moved):  # noqa: ASYNC110 - roles change in plain calls
            await asyncio.sleep(_LOOK_S)
        return next((outcome.message for outcome in outcomes if outcome.error is not ErrorCode.NONE), "it is not ready")

    def _go_on(self, given: _Given) -> None:
        """Append what was held, if this node leads still after all."""
        partition, held = given.partition, given.held
        if held is None or partition.held is not held:
            return
        if partition.is_leading:  # perhaps in another epoch
            self._holding.append(partition, held, Held.all, partition.heard_s)
        else:  # another node does, and held it, too
            partition.let_go()
            self._streams.listening.change(self._streams.by_uuid[partition.stream.uuid])


def _key_of(move: LeaderMove) -> PartitionKey:
    return PartitionKey(bytes.fromhex(move["uuid"]), move["partition"])
