"""How a new node asks to be taken into a running cluster, over NATS.

LIFT.API.NODE.JOIN   {"node_id": ..., "host": ..., "port": ...}
answer               {"cluster_id": ..., "voters": [[node id, host, port], ...]}, or {"error": {...}}
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from liftpy_envelope.errors import LiftError
from liftpy_envelope.limits import ADMIN_ANSWER_ITEMS_MAX
from liftpy_envelope.unpacking import read_json
from liftpy_server.limits import LOG_REPEAT_S
from liftpy_server.metadata.raft.settings import Voter
from liftpy_server.nats_link import NatsLink

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftpy_client.nats_options import NatsOptions

__all__ = ["Invitation", "JoinError", "ask_to_join"]

logger = logging.getLogger(__name__)

_SUBJECT: Final = "LIFT.API.NODE.JOIN"
_ANSWER_S: Final = 15.0
_AGAIN_S: Final = 0.5
_BUSY: Final = 503


class JoinError(LiftError):
    """The cluster did not take this node in."""


class Invitation(NamedTuple):
    """What a new node is told.

    Attributes:
        cluster_id: of the cluster.
        voters: who keeps its metadata, without the new node.
    """

    cluster_id: str
    voters: tuple[Voter, ...]


async def ask_to_join(options: NatsOptions, node: Voter, timeout_s: float) -> Invitation:
    """Ask the cluster to take this node in, until it answers.

    Args:
        options: how to reach NATS.
        node: this one, and where it listens for the others.
        timeout_s: for the cluster to answer, once NATS is there.

    Raises:
        JoinError: it refuses, or nobody answers in time.
        NatsRefusedError: NATS refuses this node.
    """
    link = NatsLink(options, f"liftpy {node.node_id} joining")
    await link.start()
    try:
        return await _ask(link.client, options.shown_url, node, timeout_s)
    finally:
        await link.stop()


async def _ask(client: Client, where: str, node: Voter, timeout_s: float) -> Invitation:
    body = json.dumps({"node_id": node.node_id, "host": node.host, "port": node.port}).encode()
    why = "no node answers: is the cluster running, and does it use this NATS?"
    told, tell_at_s = "", 0.0
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    reply = await client.request(_SUBJECT, body, timeout=_ANSWER_S)
                    answer = _decode(reply.data)
                    refusal = answer.get("error")
                    if refusal is None and answer.get("cluster_id") != "":
                        return _invitation(answer, node)
                    refusal = refusal or {"code": _BUSY, "description": "the cluster is only just starting"}
                    why = str(refusal.get("description", "it did not say why"))
                    if refusal.get("code") != _BUSY:
                        raise JoinError(f"the cluster does not take {node.node_id!r} in: {why}")
                except NoRespondersError:
                    pass
                except NatsError as error:
                    why = f"NATS: {error}"
                now_s = asyncio.get_running_loop().time()
                if why != told or now_s >= tell_at_s:
                    told, tell_at_s = why, now_s + LOG_REPEAT_S
                    logger.info("waiting for the cluster at %s to take this node in: %s", where, why)
                await asyncio.sleep(_AGAIN_S)
    raise JoinError(f"{node.node_id!r} could not join a cluster over NATS at {where} within {timeout_s:g} s: {why}")


def _decode(data: bytes) -> dict[str, Any]:
    try:
        answer = read_json(data, items_max=ADMIN_ANSWER_ITEMS_MAX)
    except ValueError as error:
        raise JoinError(f"what answers {_SUBJECT} is no liftpy node: {error}") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("error", {}), dict):
        raise JoinError(f"what answers {_SUBJECT} is no liftpy node")
    return answer


def _invitation(answer: dict[str, Any], node: Voter) -> Invitation:
    try:
        voters = tuple(map(Voter.from_plain, answer["voters"]))
        cluster_id = str(answer["cluster_id"])
    except (LookupError, TypeError, ValueError) as error:
        raise JoinError(f"the answer of the cluster can not be understood: {error!r}") from error
    others = tuple(voter for voter in voters if voter.node_id != node.node_id)
    if not others:
        raise JoinError("the answer of the cluster names none of its nodes")
    return Invitation(cluster_id, others)
