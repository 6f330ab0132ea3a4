"""Requests from node to node, over NATS: `LIFT.NODE.<node_id>.<endpoint>`, JSON like the public ones.

Numbers about a partition are known to its leader alone, so whichever node is asked something asks the leaders. A node
asks itself without the network. Requests and answers prove the cluster's key (`node_key`): an answer that does not is
somebody else's, and is passed over.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.api import Header

from liftpy_client.connection.cancelling import KeptCancellation
from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.limits import ADMIN_ANSWER_ITEMS_MAX
from liftpy_envelope.unpacking import read_json
from liftpy_server.requests.errors import AdminError, NodeSilentError
from liftpy_server.requests.node_key import PROOF_HEADER, SENDER_HEADER, NotProvenError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from liftpy_server.listeners.refusals import ListenerRefusals
    from liftpy_server.requests.node_key import NodeKey

__all__ = ["NODE_PREFIX", "Body", "NodeRequests", "request_proven"]

Body = dict[str, Any]

NODE_PREFIX: Final = "LIFT.NODE"
_NO_RESPONDERS: Final = "503"


class NodeRequests:
    """Sends requests to other nodes, and proves who asks.

    Args:
        node_id: Id of this node.
        local: Node-addressed endpoints of this node.
        client: Gives the NATS connection of the moment.
        key: Key of the cluster; None for a node that is alone and has none, which asks nobody else.
        token_of: Gives the token of a node's run in the metadata.
        refusals: Counts answers that are somebody else's.
    """

    def __init__(
        self,
        node_id: str,
        local: Mapping[str, Callable[[Body], Awaitable[Body]]],
        client: Callable[[], Client],
        key: NodeKey | None,
        token_of: Callable[[str], str],
        refusals: ListenerRefusals,
    ) -> None:
        self._node_id = node_id
        self._local = local
        self._client = client
        self._key = key
        self._token_of = token_of
        self._refusals = refusals
        self._run = secrets.token_hex(8)
        self._count = 0

    async def ask(self, node_id: str, endpoint: str, body: Body, timeout_s: float, *, token: str | None = None) -> Body:
        """Ask one node.

        Args:
            node_id: Id of the node.
            endpoint: What it is asked for.
            body: Body of the request.
            timeout_s: Time for the answer, seconds.
            token: Token of its run, for a node that the metadata have no longer.

        Raises:
            NodeSilentError: it does not answer in time.
            AdminError: it refuses, or another `LiftError` when it is this node that does.
        """
        if node_id != self._node_id:
            token = self._token_of(node_id) if token is None else token
            return await self._ask_other(node_id, endpoint, body, timeout_s, token)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._local[endpoint](body)
        except TimeoutError:
            raise NodeSilentError(f"node {node_id!r} is not through with it after {timeout_s:.1f} s") from None

    async def publish(self, subject: str, data: bytes) -> None:
        """Publish to all nodes; returns when the NATS server has it.

        Raises:
            NodeSilentError: NATS does not take it.
        """
        client = self._client()
        try:
            with KeptCancellation():
                await client.publish(subject, data)
                await client.flush()
        except (NatsError, OSError) as error:
            raise NodeSilentError(f"nothing can be published to {subject}: {error}") from error

    async def _ask_other(self, node_id: str, endpoint: str, body: Body, timeout_s: float, token: str) -> Body:
        key = self._key
        if key is None:
            raise NodeSilentError(f"node {node_id!r} can not be asked: this node has no cluster.key_file")
        self._count += 1
        sender = f"{self._node_id} {self._run} {self._count}"
        data = json.dumps(body).encode()

        def prove(reply: str) -> dict[str, str]:
            proof = key.proof_of_request(sender, node_id, token, endpoint, reply, data)
            return {SENDER_HEADER: sender, PROOF_HEADER: proof}

        subject = f"{NODE_PREFIX}.{node_id}.{endpoint}"
        try:
            reply = await request_proven(self._client(), subject, data, prove, key, timeout_s, self._refusals)
        except NoRespondersError:
            raise NodeSilentError(f"node {node_id!r} is not there: nobody answers for it over NATS") from None
        except NotProvenError as error:
            raise NodeSilentError(f"node {node_id!r} did not answer within {timeout_s:.1f} s; {error}") from None
        except TimeoutError:
            raise NodeSilentError(f"node {node_id!r} did not answer within {timeout_s:.1f} s") from None
        except (NatsError, OSError) as error:
            raise NodeSilentError(f"node {node_id!r} can not be asked over NATS: {error}") from error
        try:
            answer = read_json(reply, items_max=ADMIN_ANSWER_ITEMS_MAX)
            refusal = answer.get("error")
            if refusal is None:
                return dict(answer)
            code, description = ErrorCode(int(refusal["err_code"])), str(refusal["description"])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise NodeSilentError(f"what answers for node {node_id!r} is no node of liftpy: {error}") from error
        raise AdminError(code, description)

    async def ask_all(
        self, nodes: Iterable[str], endpoint: str, body: Body, timeout_s: float
    ) -> dict[str, Body | LiftError]:
        """Ask several nodes the same at once. Those that refuse or are silent are told as the error."""

        async def one(node_id: str) -> Body | LiftError:
            try:
                return await self.ask(node_id, endpoint, body, timeout_s)
            except LiftError as error:
                return error

        asked = list(dict.fromkeys(nodes))
        answers = await asyncio.gather(*(one(node_id) for node_id in asked))
        return dict(zip(asked, answers, strict=True))


async def request_proven(
    client: Client,
    subject: str,
    data: bytes,
    prove: Callable[[str], dict[str, str]],
    key: NodeKey,
    timeout_s: float,
    refusals: ListenerRefusals,
    *,
    foreign_s: float | None = None,
) -> bytes:
    """Send a request that proves the cluster's key, and wait for the answer that does.

    Args:
        client: Client that is connected to NATS.
        subject: Subject of the request.
        data: Body of the request.
        prove: Makes its headers for a reply subject.
        key: Key of the cluster.
        timeout_s: Time for the answer, seconds.
        refusals: Counts answers that are somebody else's.
        foreign_s: Time for the answer once somebody else's came, seconds; None waits as long as without it.

    Raises:
        NoRespondersError: nobody is there.
        NotProvenError: time is up, and there were answers of others.
        TimeoutError: time is up.
        NatsError: NATS does not take it.
    """
    inbox = client.new_inbox()
    answers: asyncio.Queue[Msg] = asyncio.Queue()

    async def take(message: Msg) -> None:
        answers.put_nowait(message)

    headers = prove(inbox)
    foreign: NotProvenError | None = None
    with KeptCancellation():
        subscription = await client.subscribe(inbox, cb=take)
    try:
        async with asyncio.timeout(timeout_s) as patience:
            with KeptCancellation():
                await client.publish(subject, data, reply=inbox, headers=headers)
            while True:
                message = await answers.get()
                if not message.data and (message.headers or {}).get(Header.STATUS) == _NO_RESPONDERS:
                    raise NoRespondersError
                try:
                    key.check_answer(headers[PROOF_HEADER], message.headers, message.data)
                except NotProvenError as error:
                    if foreign is None and foreign_s is not None:
                        patience.reschedule(asyncio.get_running_loop().time() + min(foreign_s, timeout_s))
                    foreign = NotProvenError(error.kind, f"{error} came: {message.data[:200]!r}")
                    refusals.auth_failed("node", f"an answer to {subject}", str(foreign), kind="answer")
                else:
                    return message.data
    except TimeoutError:
        if foreign is not None:
            raise foreign from None
        raise
    finally:
        with suppress(NatsError, OSError), KeptCancellation():  # the connection may be gone, and the subscription
            await subscription.unsubscribe()
