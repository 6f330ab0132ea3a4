"""A node that is given up, and when; and one that is not taken back."""

from __future__ import annotations

import asyncio
import socket

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.replication.host.sessions import NodeSession
from support.metadata_commands import NODE, Cluster


class Refusing:
    """A metadata store that registers nobody."""

    def __init__(self, state) -> None:
        self.state = state

    async def propose(self, *_args, **_options):
        raise MetadataRefusedError(ErrorCode.CONFLICT, "upgrade it")


async def test_a_node_that_the_cluster_does_not_take_back_stops_rather_than_to_go_on_as_if():
    cluster = Cluster("a", "b", "c")
    cluster.expire("a")
    ended = []
    session = NodeSession(
        Refusing(cluster.state), NODE | {"node_id": "a"}, 1.0, pytest.fail, ended.append, lambda _: ()
    )
    session.incarnation = cluster.incarnation("a")
    await session.follow(cluster.state)
    (why,) = ended
    assert "upgrade it" in why


class Hearing:
    """The metadata store of the leader, who has heard nothing of `b` for a while."""

    is_leader = True

    def __init__(self, cluster: Cluster, silent_s: float, *, lost: bool = False) -> None:
        self.cluster = cluster
        self._silent_s = silent_s
        self._lost = lost

    def has_lost(self, node_id: str) -> bool:
        return self._lost and node_id == "b"

    @property
    def state(self):
        return self.cluster.state

    def silent_s(self, node_id: str) -> float:
        return self._silent_s if node_id == "b" else 0.0

    async def propose(self, op: str, **args):
        return self.cluster.do(op, **args).value


@pytest.mark.parametrize(
    ("silent_s", "lost", "listens", "is_given_up"),
    [
        (0.2, False, False, False),
        (0.6, False, True, False),
        (0.3, False, False, True),
        (1.1, False, True, True),
        (0.1, True, False, True),
        (0.1, True, True, False),
    ],
)
async def test_a_silent_node_is_given_up_sooner_when_nobody_listens_on_its_port(silent_s, lost, listens, is_given_up):
    """A process that stands still accepts connections all the same; it has its whole time-out."""
    cluster = Cluster("a", "b", "c")
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster.register("b", pull_host="127.0.0.1", pull_port=server.getsockname()[1])
        if not listens:
            server.close()
        session = NodeSession(
            *(Hearing(cluster, silent_s, lost=lost), NODE | {"node_id": "a"}, 1.0, pytest.fail, pytest.fail),
            lambda _: (),
        )
        session.start()
        await asyncio.sleep(0.3)  # it looks ten times in each time-out
        await session.stop()
    assert cluster.state.nodes["b"].expired is is_given_up
    assert not cluster.state.nodes["c"].expired
