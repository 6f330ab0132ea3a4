"""A node that was given up, and is not taken back."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.replicas.sessions import NodeSession
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
    session = NodeSession(Refusing(cluster.state), NODE | {"node_id": "a"}, 1.0, pytest.fail, ended.append)
    session.incarnation = cluster.incarnation("a")
    await session.follow(cluster.state)
    (why,) = ended
    assert "upgrade it" in why
