"""What loads coordinators of groups, each a process of its own: `python -m bench.group_load NAME JSON-ARGUMENTS`."""

from __future__ import annotations

import json
import os
import re
import selectors
import sys
import time
from itertools import islice

from bench.load import say
from bench.pull import RESPONSE_ID, GroupSocket, accepted_frame
from bench.wire import connect, ping, request
from liftpy_envelope.frames import encode_request
from liftpy_envelope.group_offsets import NO_MEMBER, OFFSETS_MAX, CommitOffset, CommitRequest, CommitStream
from liftpy_envelope.groups import LeaveRequest
from liftpy_envelope.pull import Api

_PATIENCE_S = 30.0
_OFFSET = (
    0  # the streams are empty, and nothing beyond their end can be committed; a newer commit is a record all the same
)
_CONFIRMED = re.compile(rb"MSG _INBOX\.ack\.(\d+) ")
_ACK_BEGIN = b"$JS.ACK."
_ACK_SUBJECT = re.compile(rb"(\$JS\.ACK\.\S+) ")


class _Committing:
    """A member with a connection of its own, which commits all it holds, again and again."""

    def __init__(self, nats_port, group, stream):
        self.link = GroupSocket(nats_port)
        self.group = group
        self.member = self.link.join(group, stream)
        self.sequence = 0
        self.sent_s = 0.0

    def settle(self, count):
        """Adopt what the group gives, until this member has `count` partitions and nothing is on its way."""
        self.member = self.link.heartbeat(self.group, self.member)
        return sum(len(stream.partitions) for stream in self.member.assignment) == count

    def send(self):
        self.sequence += 1
        streams = tuple(
            CommitStream(uuid, name, tuple(CommitOffset(number, _OFFSET) for number in numbers))
            for uuid, name, numbers in self.member.assignment
        )
        given = CommitRequest(self.group, self.member.member_id, "", self.member.generation, self.sequence, streams)
        self.sent_s = time.perf_counter()
        self.link.socket.send(encode_request(RESPONSE_ID, Api.OFFSET_COMMIT, 1, given))

    def leave(self):
        self.link.ask(Api.GROUP_LEAVE, LeaveRequest(self.group, self.member.member_id, ""))
        self.link.close()


def commits(port, stream, groups, members, each, seconds):
    """Every member commits, and commits again when that is answered: `each` offsets per request, for so long."""
    run = os.urandom(4).hex()
    names = [f"bench-{run}-{number}" for number in range(groups)]
    first = GroupSocket(port)
    first.find(names)
    first.close()
    everybody = [_Committing(port, name, stream) for name in names for _ in range(members)]
    deadline = time.monotonic() + _PATIENCE_S
    while sum(one.settle(each) for one in everybody) < len(everybody):
        if time.monotonic() > deadline:
            raise TimeoutError("the members do not get their partitions")
    say(ready=True)
    answered, latencies, elapsed = _commit(everybody, seconds)
    for one in everybody:
        one.leave()
    latencies.sort()
    say(
        rate=answered * each / elapsed,
        requests=answered / elapsed,
        elapsed=elapsed,
        p50_ms=latencies[len(latencies) // 2] * 1e3,
        p99_ms=latencies[len(latencies) * 99 // 100] * 1e3,
    )


def _commit(everybody, seconds):
    accepted = accepted_frame()
    latencies = []
    with selectors.DefaultSelector() as selector:
        started = time.perf_counter()
        for one in everybody:
            selector.register(one.link.socket, selectors.EVENT_READ, one)
            one.send()
        under_way = len(everybody)
        while under_way:
            ready = selector.select(_PATIENCE_S)
            if not ready:
                raise TimeoutError("the node does not answer")
            for key, _ in ready:
                one = key.data
                answer = one.link.socket.recv(65_536)
                assert answer == accepted, f"not everything was committed: {answer}"
                now = time.perf_counter()
                latencies.append(now - one.sent_s)
                if now - started < seconds:
                    one.send()
                else:
                    under_way -= 1
        return len(latencies), latencies, time.perf_counter() - started


def fill(port, stream, groups, partitions):
    """Every group commits every partition of a stream, once."""
    (found,) = request(port, "LIFT.API.METADATA", {"streams": [stream]})["streams"]
    uuid = bytes.fromhex(found["uuid"])
    link = GroupSocket(port)
    link.find(groups)
    for group in groups:
        for start in range(0, partitions, OFFSETS_MAX):
            numbers = range(start, min(partitions, start + OFFSETS_MAX))
            rows = tuple(CommitOffset(number, _OFFSET) for number in numbers)
            result = link.ask(
                Api.OFFSET_COMMIT, CommitRequest(group, NO_MEMBER, "", -1, 0, (CommitStream(uuid, stream, rows),))
            )
            assert not result.refusals, result.refusals[0]
    say(committed=len(groups) * partitions)


class _Acks:
    """The acks of a pull consumer that it owes, oldest first: subjects to publish them to."""

    def __init__(self, number, subjects):
        self.number = number
        self.subjects = iter(subjects)

    def next(self, count):
        """Up to `count` acks, as frames that ask for a confirmation."""
        return [
            b"PUB %b _INBOX.ack.%d 4\r\n+ACK\r\n" % (subject, self.number) for subject in islice(self.subjects, count)
        ]


def acks(port, stream, consumers, count, window, seconds):
    """Consumers with AckAll acknowledge one message after the other, and wait for the confirmations."""
    sock = connect(port)
    everybody = [_Acks(number, _delivered(port, stream, number, count)) for number in range(consumers)]
    sock.sendall(b"SUB _INBOX.ack.* 1\r\n")
    ping(sock)
    confirmed, tail = 0, b""
    started = time.perf_counter()
    under_way = 0
    first = [frame for one in everybody for frame in one.next(window)]
    under_way += len(first)
    sock.sendall(b"".join(first))
    while under_way:
        data = tail + sock.recv(1 << 18)
        end = data.rfind(b"\r\n\r\n") + 4 if b"\r\n\r\n" in data else 0
        numbers = [int(number) for number in _CONFIRMED.findall(data[:end])]
        tail = data[end:]
        confirmed += len(numbers)
        under_way -= len(numbers)
        if time.perf_counter() - started < seconds:
            more = [frame for number in numbers for frame in everybody[number].next(1)]
            under_way += len(more)
            sock.sendall(b"".join(more))
    elapsed = time.perf_counter() - started
    say(rate=confirmed / elapsed, confirmed=confirmed, elapsed=elapsed)


def _delivered(port, stream, number, count):
    """Have a new consumer delivered `count` messages. The subjects of their acks."""
    name = f"place-{number}"
    config = {"durable_name": name, "ack_policy": "all", "deliver_policy": "all", "max_ack_pending": -1}
    config |= {"ack_wait": 3_600_000_000_000}
    answer = request(
        port, f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}
    )
    assert "error" not in answer, answer
    with connect(port) as sock:
        body = json.dumps({"batch": count, "expires": 30_000_000_000}).encode()
        sock.sendall(b"SUB _INBOX.pull 1\r\n")
        sock.sendall(
            b"PUB $JS.API.CONSUMER.MSG.NEXT.%b.%b _INBOX.pull %d\r\n%b\r\n"
            % (stream.encode(), name.encode(), len(body), body)
        )
        data, seen = bytearray(), 0
        while seen < count or not data.endswith(b"\r\n"):
            chunk = sock.recv(1 << 18)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            begin = max(0, len(data) - len(_ACK_BEGIN) + 1)  # one may be cut in two
            data += chunk
            seen += data.count(_ACK_BEGIN, begin)
        return _ACK_SUBJECT.findall(bytes(data))[:count]


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
