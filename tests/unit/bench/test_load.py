"""The load generator keeps its window: with each read it sends as many messages as there were acks."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading

import pytest
from bench.load import acked
from bench.rig import ROOT

FRAME = re.compile(rb"H?PUB load (_INBOX\.load\.\d{7}) [\d ]+\r\n")
ACK = b'{"stream":"load","seq":%d}'
REFUSAL = b'{"error":{"code":503,"err_code":10167},"stream":"load","seq":%d}'


class Server:
    """Takes one publisher, and answers up to `together` messages at once, in pieces of `piece` bytes.

    Attributes:
        replies: the reply subjects, as they came.
        open_max: how many messages had no answer at most.
    """

    def __init__(self, together, piece, answer=ACK):
        self.replies, self.open_max = [], 0
        self._together, self._piece, self._answer = together, piece, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with self._listener, self._listener.accept()[0] as sock:
            sock.sendall(b"INFO {}\r\n")
            rest, answered = b"", 0
            while chunk := sock.recv(1 << 16):
                data = rest + chunk
                if data.endswith(b"PING\r\n"):
                    sock.sendall(b"PONG\r\n")
                    continue
                found = list(FRAME.finditer(data))
                self.replies += [frame.group(1) for frame in found]
                rest = data[found[-1].end() :] if found else data
                self.open_max = max(self.open_max, len(self.replies) - answered)
                answered = self._answer_to(sock, answered)

    def _answer_to(self, sock, answered):
        while answered < len(self.replies):
            some = self.replies[answered : answered + self._together]
            payloads = [self._answer % number for number in range(answered, answered + len(some))]
            acks = b"".join(
                b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(payload), payload)
                for reply, payload in zip(some, payloads, strict=True)
            )
            for at in range(0, len(acks), self._piece):
                sock.sendall(acks[at : at + self._piece])
            answered += len(some)
        return answered


@pytest.mark.parametrize(("together", "piece"), [(1, 1 << 16), (7, 11), (7, 1), (50, 1 << 16)])
@pytest.mark.parametrize("ids", [False, True])
def test_every_message_is_sent_and_no_more_than_the_window_are_open(capsys, together, piece, ids):
    server = Server(together, piece)
    acked(server.port, "load", 16, 333, 50, ids=ids)
    assert len(server.replies) == len(set(server.replies)) == 333
    assert server.open_max <= 50
    assert json.loads(capsys.readouterr().out)["refused"] == 0


@pytest.mark.parametrize("piece", [3, 1 << 16])
def test_refusals_are_counted_wherever_they_are_split(capsys, piece):
    acked(Server(5, piece, REFUSAL).port, "load", 16, 40, 10)
    assert json.loads(capsys.readouterr().out)["refused"] == 40


def test_it_is_a_process_of_its_own():
    arguments = {"port": Server(1, 1 << 16).port, "subject": "load", "size": 16, "count": 20, "window": 1}
    command = [sys.executable, "-m", "bench.load", "acked", json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["p50_us"] > 0
