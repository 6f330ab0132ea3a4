"""Load generators and limits, each a process of its own: `python -m bench.load NAME JSON-ARGUMENTS`.

Prints one line of JSON when ready (where others wait for it) and one with its figures at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time

from bench.wire import connect, ping

_HEADERS = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"


def say(**figures):
    print(json.dumps(figures), flush=True)


def plain(port, subjects, size, count):
    """Publish flat out, without asking for acks, round robin over the subjects."""
    sock = connect(port)
    payload = os.urandom(size)
    frames = [b"PUB %b %d\r\n%b\r\n" % (subject.encode(), size, payload) for subject in subjects]
    per_block = max(1, (1 << 17) // (size + 32))
    per_block = max(per_block, len(frames)) // len(frames) * len(frames)
    block = b"".join(frames * (per_block // len(frames)))
    started = time.time()
    for _ in range(count // per_block):
        sock.sendall(block)
    rest = count % per_block
    sock.sendall(b"".join((frames * (rest // len(frames) + 1))[:rest]))
    ping(sock)
    say(started=started, ended=time.time(), sent=count)


def acked(port, subject, size, count, window, *, ids=False, keep=False):
    """Publish with a reply subject, keeping `window` messages unacknowledged; `keep`: every latency is told."""
    sock = connect(port)
    sock.sendall(b"SUB _INBOX.load.* 1\r\n")
    ping(sock)
    payload = os.urandom(size)
    variants = max(1, min(count, 20_000, (1 << 28) // (size + 64)))
    run = os.urandom(4).hex().encode()

    def frame(number):
        reply = b"_INBOX.load.%07d" % (number % variants)
        if not ids:
            return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, size, payload)
        header = _HEADERS % (b"%b-%d" % (run, number))
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
            subject.encode(),
            reply,
            len(header),
            len(header) + size,
            header,
            payload,
        )

    frames = [frame(number) for number in range(count if ids else variants)]
    sent = done = refused = 0
    tail = b""
    latencies = []
    started = time.perf_counter()
    while done < count:
        room = min(window - (sent - done), count - sent, 2_000)
        if room > 0:
            at = sent % len(frames)
            batch = frames[at : at + room]
            sock.sendall(b"".join(batch))
            sent += len(batch)
            if len(batch) < room or (sent - done < window and sent < count and size > 8_192):
                continue
        asked = time.perf_counter()
        data = tail + sock.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        if window == 1:
            latencies.append(time.perf_counter() - asked)
        end = data.rfind(b"\n") + 1
        done += data.count(b"MSG _INBOX.load.", 0, end)
        # JetStream refuses what it would have to buffer beyond a limit; a refusal is an answer, not an ack.
        refused += data.count(b'"err_code"', 0, end)
        tail = data[end:]
    elapsed = time.perf_counter() - started
    latencies.sort()
    figures = {"rate": (count - refused) / elapsed, "refused": refused}
    if latencies:
        figures["p50_us"] = latencies[len(latencies) // 2] * 1e6
        figures["p99_us"] = latencies[len(latencies) * 99 // 100] * 1e6
    if keep:
        figures["latencies_us"] = [round(latency * 1e6) for latency in latencies]
    say(**figures)


def null_subscriber(port, subject, size, count):
    """Count bytes and do nothing with them: no subscriber can be faster."""
    sock = connect(port)
    sock.sendall(b"SUB %b 1\r\n" % subject.encode())
    ping(sock)
    say(ready=True)
    expected = count * (len(b"MSG %b 1 %d\r\n" % (subject.encode(), size)) + size + 2)
    buffer = bytearray(1 << 20)
    got = 0
    while got < expected:
        received = sock.recv_into(buffer)
        if not received:
            break
        got += received
    say(ended=time.time(), received=got * count // expected)


def null_responder(port, subject):
    """Acknowledge and store nothing: no store outside the NATS server can be faster. Runs until it is ended."""
    sock = connect(port, None)
    sock.sendall(b"SUB %b 1\r\n" % subject.encode())
    ping(sock)
    say(ready=True)
    rest, number = b"", 0
    while True:
        chunk = sock.recv(1 << 18)
        if not chunk:
            return
        data = rest + chunk if rest else chunk
        position, acks = 0, []
        while True:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                break
            fields = data[position:line_end].split(b" ")
            if fields[0] != b"MSG":
                if fields[0] == b"PING":
                    sock.sendall(b"PONG\r\n")
                position = line_end + 2
                continue
            end = line_end + 4 + int(fields[-1])
            if end > len(data):
                break
            position = end
            number += 1
            acks.append(b'PUB %b 35\r\n{"stream":"orders","seq":%9d}\r\n' % (fields[3], number))
        rest = data[position:]
        sock.sendall(b"".join(acks))


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
