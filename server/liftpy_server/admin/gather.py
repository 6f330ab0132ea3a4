"""What takes several nodes: numbers that only leaders know, and waiting until leaders do what the metadata says."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.admin.stream_view import Told, leaders_of, show_stream
from liftpy_server.requests.errors import AdminError, NodeSilentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.metadata.state import StreamInfo
    from liftpy_server.requests.between_nodes import Body, NodeRequests

__all__ = ["FOLLOW_TIMEOUT_S", "NUMBERS_TIMEOUT_S", "READY_TIMEOUT_S", "Gatherer"]

logger = logging.getLogger(__name__)

NUMBERS_TIMEOUT_S: Final = 2.0
FOLLOW_TIMEOUT_S: Final = 5.0
READY_TIMEOUT_S: Final = 10.0
_READY_ASK_S: Final = 3.0  # then it is looked again who leads
_READY_AGAIN_S: Final = 0.2


class Gatherer:
    """Collects what only leaders know, and waits until leaders do what the metadata says.

    Args:
        node: This node.
        requests: Asks nodes.
    """

    def __init__(self, node: NodeParts, requests: NodeRequests) -> None:
        self._node = node
        self._requests = requests

    async def show(self, infos: Sequence[StreamInfo], *, brief: bool = False) -> list[dict[str, Any]]:
        """Streams as JSON, with what their leaders know: one request to each leader, whatever the number of streams.

        A leader that does not answer within `NUMBERS_TIMEOUT_S` leaves its partitions without numbers.
        """
        wanted: dict[str, list[str]] = {}
        for info in infos:
            for leader in leaders_of(info):
                wanted.setdefault(leader, []).append(info.uuid)
        answers = await asyncio.gather(*(self._told_by(node_id, uuids, brief) for node_id, uuids in wanted.items()))
        told = dict(zip(wanted, answers, strict=True))
        return [show_stream(info, told, brief=brief) for info in infos]

    async def _told_by(self, node_id: str, uuids: list[str], brief: bool) -> Told:  # noqa: FBT001 - private
        """What one leader tells; asked again for what did not fit into one answer."""
        streams: dict[str, Any] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NUMBERS_TIMEOUT_S
        left = uuids
        while left:
            try:
                body = {"uuids": left, "brief": brief}
                answer = await self._requests.ask(node_id, "STREAM.INFO", body, max(deadline - loop.time(), 0.001))
            except LiftError as error:
                logger.debug("node %s did not tell about %d streams: %s", node_id, len(left), error)
                return Told(streams, str(error))
            streams |= answer["streams"]
            rest = [uuid for uuid in answer["rest"] if uuid not in streams]
            if len(rest) >= len(left):
                return Told(streams, f"node {node_id!r} can not tell: its answer would be larger than NATS takes")
            left = rest
        return Told(streams)

    async def wait_listening(self, uuid: str, name: str) -> None:
        """Wait until every leader of a stream has confirmed its subscriptions.

        Raises:
            AdminError: one is refused them or can not store the stream, or `READY_TIMEOUT_S` passed.
        """
        listening: set[str] = set()
        silent: NodeSilentError | None = None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while missing := [leader for leader in self._leaders(name, uuid) if leader not in listening]:
                    body = {"uuid": uuid, "revision": self._node.metadata.state.revision}
                    answers = await self._requests.ask_all(missing, "STREAM.READY", body, _READY_ASK_S)
                    listening |= {node_id for node_id, answer in answers.items() if isinstance(answer, dict)}
                    silent = _first_silent(answers.values())
                    if silent is not None:  # another may lead by then
                        await asyncio.sleep(_READY_AGAIN_S)
        except TimeoutError:
            why = "" if silent is None else f" (asked again and again, the last time: {silent})"
            text = (
                f"stream {name!r} is created, but is not listening everywhere after {READY_TIMEOUT_S:g} s{why}; "
                "`stream info` tells how it is"
            )
            raise AdminError(ErrorCode.OUTCOME_UNKNOWN, text) from None

    def _leaders(self, name: str, uuid: str) -> list[str]:
        info = self._node.metadata.state.streams.get(name)
        if info is None or info.uuid != uuid:
            raise AdminError(ErrorCode.UNKNOWN_STREAM, f"stream {name!r} was deleted while it was created")
        return leaders_of(info)

    async def wait_followed(self, uuid: str, nodes: Iterable[str]) -> tuple[str | None, list[str]]:
        """Wait until nodes do what the metadata says of a stream now, for at most `FOLLOW_TIMEOUT_S`.

        Returns:
            Why one of them is not allowed to subscribe what the stream wants now, or None; and a warning for each that
            did not follow in time.
        """
        body = {"uuid": uuid, "revision": self._node.metadata.state.revision}
        answers = await self._requests.ask_all(nodes, "STREAM.FOLLOWED", body, FOLLOW_TIMEOUT_S)
        told = [answer for answer in answers.values() if isinstance(answer, dict)]
        refusal = next((answer["refusal"] for answer in told if answer["refusal"] is not None), None)
        warnings = [
            f"node {node_id!r} does not follow the change yet: {answer}"
            for node_id, answer in answers.items()
            if isinstance(answer, LiftError)
        ]
        return refusal, warnings

    async def purge(self, info: StreamInfo, numbers: Iterable[int], offset: int | None) -> dict[str, int]:
        """Have the leaders of partitions purge them. Returns the new starts of their logs, by number as text.

        Raises:
            AdminError: some could not; the others are purged.
        """
        by_leader: dict[str | None, list[int]] = {}
        for number in numbers:
            by_leader.setdefault(info.partitions[number].leader, []).append(number)
        starts: dict[str, int] = {}
        failures = [f"partition {number} has no leader" for number in by_leader.pop(None, ())]
        answers = await asyncio.gather(
            *(self._purge_at(str(leader), info, led, offset) for leader, led in by_leader.items())
        )
        for leader, answer in zip(by_leader, answers, strict=True):
            if isinstance(answer, AdminError) and answer.code is ErrorCode.INVALID_REQUEST:
                raise answer  # an offset is of one partition: nothing is purged, and later it would be no better
            if isinstance(answer, LiftError):
                failures.append(f"partitions {by_leader[leader]} on node {leader!r}: {answer}")
            else:
                starts |= answer["log_starts"]
        if failures:
            text = f"stream {info.name!r} is not purged everywhere; try again later: {'; '.join(failures)}"
            raise AdminError(ErrorCode.NOT_AVAILABLE, text)
        return dict(sorted(starts.items(), key=lambda item: int(item[0])))

    async def _purge_at(
        self, leader: str, info: StreamInfo, numbers: list[int], offset: int | None
    ) -> Body | LiftError:
        body = {"name": info.name, "uuid": info.uuid, "partitions": numbers, "offset": offset}
        try:
            return await self._requests.ask(leader, "STREAM.PURGE", body, FOLLOW_TIMEOUT_S)
        except LiftError as error:
            return error


def _first_silent(answers: Iterable[Body | LiftError]) -> NodeSilentError | None:
    """The first node that was silent; a refusal counts for more, and is raised."""
    errors = [answer for answer in answers if isinstance(answer, LiftError)]
    refusal = next((error for error in errors if not isinstance(error, NodeSilentError)), None)
    if refusal is not None:
        raise refusal
    return next((error for error in errors if isinstance(error, NodeSilentError)), None)
