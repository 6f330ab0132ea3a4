"""An operator's decision about partitions that nobody can lead without it: what each replica has, then who leads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.admin.cluster.recovering import plan_stream, what_follows, with_bucket
from liftpy_server.admin.cluster.requests import read_recover
from liftpy_server.admin.gather import NUMBERS_TIMEOUT_S, Gatherer
from liftpy_server.admin.tier.restore_requests import RESTORED_PARTITIONS_MAX
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from liftpy_server.admin.cluster.recovering import PartitionRecovery
    from liftpy_server.admin.cluster.requests import RecoverRequest
    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.metadata.state import StreamInfo
    from liftpy_server.requests.between_nodes import Body, NodeRequests

__all__ = ["RecoverHandlers"]

_SHOWN_MAX: Final = 128  # with their replicas the answer stays well below the payload that NATS takes
_REASONS_MAX: Final = 3
_BUCKET_TIMEOUT_S: Final = 5.0


class RecoverHandlers:
    """The handlers of one node. Streams of the system may be recovered like others.

    Args:
        node: This node.
        requests: Asks other nodes.
        look_in_bucket: Answers RESTORE.LOOK.
    """

    def __init__(
        self, node: NodeParts, requests: NodeRequests, look_in_bucket: Callable[[Body], Awaitable[Body]]
    ) -> None:
        self._look_in_bucket = look_in_bucket
        self._node = node
        self._requests = requests
        self._gather = Gatherer(node, requests)

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {"STREAM.RECOVER": self.recover}

    async def recover(self, body: Body) -> Body:
        """Let the best log there is lead where nobody can tell that nothing was lost; or tell what that comes to."""
        request, versions = read_recover(body)
        state = await self._node.metadata.read()
        stream = state.streams.get(request.name)
        if stream is None:
            raise AdminError(ErrorCode.UNKNOWN_STREAM, f"there is no stream {request.name!r}")
        keeping = sorted({node for partition in stream.partitions for node in partition.replicas})
        asked = [node for node in keeping if node in state.nodes and not state.nodes[node].expired]
        answers = await self._requests.ask_all(asked, "STREAM.LOGS", {"uuid": stream.uuid}, NUMBERS_TIMEOUT_S)
        found = plan_stream(state, stream, request, answers)
        if found and stream.config.tier:
            if self._node.tier is not None:
                found = with_bucket(found, await self._told_by_bucket(stream, found))
            elif with_tier := [node for node, answer in answers.items() if _has_bucket(answer)]:
                found = with_bucket(found, self._without_bucket(with_tier))
        told: Body = {"partitions": [each.to_plain() for each in found[:_SHOWN_MAX]], "partition_count": len(found)}
        if request.dry_run:
            return told | {"recovered": 0, "warnings": []}
        _check_decided(stream, found, request)
        warnings = await self._decide(stream, found, request, versions)
        return told | {"recovered": len(found), "warnings": [*what_follows(stream, found), *warnings]}

    def _without_bucket(self, others: Sequence[str]) -> str:
        return (
            f"what the bucket has is not known: node {self._node.config.node_id}, which answers, is configured without "
            f"one; stop it, or give it the bucket of {', '.join(sorted(others))}"
        )

    async def _told_by_bucket(self, stream: StreamInfo, found: Sequence[PartitionRecovery]) -> Sequence[Body] | str:
        """What the bucket has of partitions, or why nobody knows: that does not keep an operator from deciding."""
        told: list[Body] = []
        try:
            async with asyncio.timeout(_BUCKET_TIMEOUT_S):
                for first in range(0, len(found), RESTORED_PARTITIONS_MAX):
                    some = [[stream.uuid, each.number] for each in found[first : first + RESTORED_PARTITIONS_MAX]]
                    told += (await self._look_in_bucket({"partitions": some}))["partitions"]
        except TimeoutError:
            return f"the bucket did not answer within {_BUCKET_TIMEOUT_S:g} s; see liftpy tier status"
        except LiftError as error:
            return str(error)
        return told

    async def _decide(
        self,
        stream: StreamInfo,
        found: Sequence[PartitionRecovery],
        request: RecoverRequest,
        versions: dict[int, int],
    ) -> list[str]:
        """Propose it for partitions that have not changed since, and wait until the leaders know. Returns warnings.

        Raises:
            AdminError: some were refused; the others are decided.
        """
        where = {"name": stream.name, "uuid": stream.uuid}
        outcomes = await self._node.metadata.propose_many(
            [
                (
                    "recover_partition",
                    None,
                    where
                    | {
                        "partition": each.number,
                        "version": versions.get(each.number, each.info.version),
                        "logs": [list(report) for report in each.told.values()],
                        "given_up": each.given_up,
                        "leader": None if each.plan.leader is None else each.plan.leader.node_id,
                        "accept_data_loss": request.accept_data_loss,
                    },
                )
                for each in found
            ]
        )
        refused = [outcome for outcome in outcomes if outcome.error is not ErrorCode.NONE]
        if refused:
            reasons = "; ".join(dict.fromkeys(outcome.message for outcome in refused[:_REASONS_MAX]))
            text = f"{len(refused)} of {len(outcomes)} partitions were not recovered: {reasons}"
            raise AdminError(refused[0].error, text)
        leaders = {each.plan.leader.node_id for each in found if each.plan.leader is not None}
        _, warnings = await self._gather.wait_followed(stream.uuid, sorted(leaders))
        return warnings


def _has_bucket(answer: Body | LiftError) -> bool:
    return isinstance(answer, dict) and answer["has_bucket"]


def _check_decided(stream: StreamInfo, found: Sequence[PartitionRecovery], request: RecoverRequest) -> None:
    """Refuse all of it when a part of it can not be decided, or loses what nobody has accepted to lose.

    Raises:
        AdminError: that is so.
    """
    refused = [f"{stream.name}/{each.number}: {each.plan.refusal}" for each in found if each.plan.refusal is not None]
    if refused:
        raise AdminError(ErrorCode.CONFLICT, "; ".join(refused[:_REASONS_MAX]))
    losses = [f"{stream.name}/{each.number}: {each.loss}" for each in found if each.loss is not None]
    if losses and not request.accept_data_loss:
        text = "; ".join(losses[:_REASONS_MAX])
        raise AdminError(ErrorCode.CONFLICT, f"{text}. To give that up, accept it in words (accept_data_loss)")
