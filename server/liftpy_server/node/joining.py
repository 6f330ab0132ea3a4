"""How a new node asks to be taken into a running cluster, over NATS.

LIFT.API.NODE.JOIN               {}
answer of some node              {"node_id": ..., "challenge": ...}
LIFT.NODE.<that node>.NODE.JOIN  {"node_id": ..., "host": ..., "port": ...}, with a proof of the cluster's key
answer, with a proof             {"cluster_id": ..., "voters": [[node id, host, port], ...]}

Each of the answers may be {"error": {...}} instead. Neither side connects to an address before the other has proven
that it knows the key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from liftpy_client.connection.cancelling import KeptCancellation
from liftpy_envelope.errors import LiftError, NameInvalidError
from liftpy_envelope.limits import ADMIN_ANSWER_ITEMS_MAX
from liftpy_envelope.names import check_name
from liftpy_envelope.unpacking import read_json
from liftpy_server.consensus.settings import Voter
from liftpy_server.nats.link import NatsLink
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.requests.between_nodes import NODE_PREFIX, request_proven
from liftpy_server.requests.node_key import PROOF_HEADER, SENDER_HEADER, NodeKey, NotProvenError

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftpy_client.connection.nats_options import NatsOptions
    from liftpy_server.listeners.refusals import ListenerRefusals

__all__ = ["Invitation", "JoinError", "ask_to_join"]

logger = logging.getLogger(__name__)

_SUBJECT: Final = "LIFT.API.NODE.JOIN"
_ANSWER_S: Final = 15.0
_PROVEN_S: Final = 15.0
_FOREIGN_S: Final = 2.0
_AGAIN_S: Final = 0.5
_BUSY: Final = 503


class JoinError(LiftError):
    """The cluster did not take this node in."""


class Invitation(NamedTuple):
    """What a new node is told.

    Attributes:
        cluster_id: Id of the cluster.
        voters: Voters of its metadata, without the new node.
    """

    cluster_id: str
    voters: tuple[Voter, ...]


async def ask_to_join(
    options: NatsOptions, node: Voter, secret: bytes, timeout_s: float, refusals: ListenerRefusals
) -> Invitation:
    """Ask the cluster to take this node in, until it answers.

    Args:
        options: How to reach NATS.
        node: This one, and where it listens for the others.
        secret: Secret of the cluster.
        timeout_s: Time for the cluster to answer, once NATS is there, seconds.
        refusals: Counts answers of strangers.

    Raises:
        JoinError: it refuses, or nobody answers in time.
        NatsRefusedError: NATS refuses this node.
    """
    link = NatsLink(options, f"liftpy {node.node_id} joining")
    await link.start()
    try:
        return await _ask(link.client, options.shown_url, _Request(node, NodeKey(secret), refusals), timeout_s)
    finally:
        await link.stop()


class _Request:
    """What is asked, as often as it takes."""

    def __init__(self, node: Voter, key: NodeKey, refusals: ListenerRefusals) -> None:
        self.node = node
        self._key = key
        self._refusals = refusals
        self._run = secrets.token_hex(8)
        self._count = 0
        self._body = json.dumps({"node_id": node.node_id, "host": node.host, "port": node.port}).encode()

    async def ask(self, client: Client) -> dict[str, Any]:
        """Find somebody of the cluster, and ask there."""
        with KeptCancellation():
            reply = await client.request(_SUBJECT, b"{}", timeout=_ANSWER_S)
        found = _decode(_SUBJECT, reply.data)
        if "error" in found:
            return found
        try:
            other, challenge = check_name(found["node_id"], "node"), str(found["challenge"])
        except (LookupError, NameInvalidError) as error:
            raise NotProvenError("answer", f"what answers {_SUBJECT} is no liftpy node") from error
        self._count += 1
        sender = f"{self.node.node_id} {self._run} {self._count}"

        def prove(reply: str) -> dict[str, str]:
            proof = self._key.proof_of_request(sender, other, challenge, "NODE.JOIN", reply, self._body)
            return {SENDER_HEADER: sender, PROOF_HEADER: proof}

        subject = f"{NODE_PREFIX}.{other}.NODE.JOIN"
        answer = await request_proven(
            *(client, subject, self._body, prove, self._key, _PROVEN_S, self._refusals), foreign_s=_FOREIGN_S
        )
        return _decode(subject, answer)


async def _ask(client: Client, where: str, request: _Request, timeout_s: float) -> Invitation:
    node = request.node
    why = "no node answers: is the cluster running, and does it use this NATS?"
    warnings = RepeatedWarnings(logger)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    answer = await request.ask(client)
                    refusal = answer.get("error")
                    if refusal is None and answer.get("cluster_id") != "":
                        return _invitation(answer, node)
                    refusal = refusal or {"code": _BUSY, "description": "the cluster is only just starting"}
                    why = str(refusal.get("description", "it did not say why"))
                    if refusal.get("code") != _BUSY:
                        raise JoinError(f"the cluster does not take {node.node_id!r} in: {why}")
                except NoRespondersError:
                    pass
                except NotProvenError as error:
                    why = f"{error}; all nodes of a cluster need the same cluster.key_file"
                except (NatsError, TimeoutError) as error:
                    why = f"NATS: {str(error) or 'no answer in time'}"
                text = f"waiting for the cluster at {where} to take this node in: {why}"
                warnings.tell(why, text, asyncio.get_running_loop().time())
                await asyncio.sleep(_AGAIN_S)
    raise JoinError(f"{node.node_id!r} could not join a cluster over NATS at {where} within {timeout_s:g} s: {why}")


def _decode(subject: str, data: bytes) -> dict[str, Any]:
    try:
        answer = read_json(data, items_max=ADMIN_ANSWER_ITEMS_MAX)
    except ValueError as error:
        raise NotProvenError("answer", f"what answers {subject} is no liftpy node") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("error", {}), dict):
        raise NotProvenError("answer", f"what answers {subject} is no liftpy node")
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
