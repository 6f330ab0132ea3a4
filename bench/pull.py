"""The pull protocol on a raw socket, for requests of consumer groups: no client library is what is measured."""

from __future__ import annotations

import os
import socket
import struct
import time

from bench.wire import request
from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.frames import ResponseHeader, encode_request, encode_response
from liftpy_envelope.group_offsets import CommitResult, OffsetFetchResult
from liftpy_envelope.group_routing import FindCoordinatorRequest, FindCoordinatorResult
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, MembershipResult
from liftpy_envelope.pull import Api, HelloRequest

__all__ = ["RESPONSE_ID", "GroupSocket", "accepted_frame"]

RESPONSE_ID = 1  # of every request: one is under way at a time
_LENGTHS = struct.Struct("<IQ")
_PATIENCE_S = 30.0
_RETRY_S = 0.02
_SESSION_MS = 600_000  # members do not heartbeat while they are measured
_RESULTS = {
    Api.FIND_COORDINATOR: FindCoordinatorResult,
    Api.GROUP_JOIN: MembershipResult,
    Api.GROUP_HEARTBEAT: MembershipResult,
    Api.GROUP_LEAVE: MembershipResult,
    Api.OFFSET_COMMIT: CommitResult,
    Api.OFFSET_FETCH: OffsetFetchResult,
}


def accepted_frame():
    """The response to a commit of which nothing was refused."""
    return encode_response(RESPONSE_ID, CommitResult(GroupError.NONE))


class GroupSocket:
    """A connection to the only node there is. Requests block until they are answered, and are repeated if need be.

    Args:
        nats_port: where the node's address and token are to be had.
    """

    def __init__(self, nats_port):
        (node,) = request(nats_port, "LIFT.API.METADATA", {"streams": []})["nodes"]
        self.socket = socket.create_connection((node["pull_host"], node["pull_port"]), _PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask(Api.HELLO, HelloRequest("bench", node["pull_token"]))

    def close(self):
        self.socket.close()

    def _ask(self, api, body):
        self.socket.sendall(encode_request(RESPONSE_ID, api, 1, body))
        header_length, _ = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
        header = unpack_body(ResponseHeader, self._exactly(header_length))
        assert header.error == 0, header.message
        return header.result

    def _exactly(self, size):
        data = self.socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError("the node closed the connection")
        return data

    def ask(self, api, given):
        """A request, repeated while the coordinator is not ready."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            result = unpack_body(_RESULTS[api], self._ask(api, given))
            errors = {row.error for row in result.coordinators} if api is Api.FIND_COORDINATOR else {result.error}
            if not any(error.retriable for error in errors):
                assert not any(errors), result
                return result
            if time.monotonic() > deadline:
                raise TimeoutError(f"{api.name}: {result}")
            time.sleep(_RETRY_S)

    def find(self, groups):
        """Wait until these groups have a coordinator."""
        self.ask(Api.FIND_COORDINATOR, FindCoordinatorRequest(tuple(groups)))

    def join(self, group, stream):
        """A new member of a group that consumes one stream."""
        return self.ask(
            Api.GROUP_JOIN,
            JoinRequest(group, os.urandom(16), 0, "", "bench", "", _SESSION_MS, _SESSION_MS, (stream,)),
        )

    def heartbeat(self, group, member):
        """The member as it is now; it has adopted what it knew."""
        beat = HeartbeatRequest(group, member.member_id, "", member.generation)
        now = self.ask(Api.GROUP_HEARTBEAT, beat)
        return member if now.assignment is None else now
