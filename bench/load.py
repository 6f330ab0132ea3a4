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
_INBOX = b"_INBOX.load."
_ANSWER_END = b"}\r\n"
_REFUSAL = b'"err_code"'
_CARRIED = len(_REFUSAL) - 1  # bytes of the read before, so that what comes in two reads is found


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


def _acked_frames(subject, size, count, *, ids):
    """So many frames in one piece, all equally long, each with a reply subject of its own; and the size of one."""
    payload, run = os.urandom(size), os.urandom(4).hex().encode()
    frames = []
    for number in range(count):
        reply = b"%b%07d" % (_INBOX, number)
        header = _HEADERS % (b"%b-%08d" % (run, number)) if ids else b""
        sizes = b"%d %d" % (len(header), len(header) + size) if ids else b"%d" % size
        verb = b"HPUB" if ids else b"PUB"
        frames.append(b"%b %b %b %b\r\n%b%b\r\n" % (verb, subject.encode(), reply, sizes, header, payload))
    return b"".join(frames), len(frames[0])


def acked(port, subject, size, count, window, *, ids=False, keep=False):
    """Publish with a reply subject, with `window` messages unacknowledged; `keep`: every latency is told.

    For every read, as many messages are sent at once as it has acks. A message costs next to nothing here: frames
    were made before and are equally long, and of an ack only its end is looked for.
    """
    sock = connect(port)
    sock.sendall(b"SUB %b* 1\r\n" % _INBOX)
    ping(sock)
    frames, length = _acked_frames(
        subject, size, count if ids else min(count, 20_000, (1 << 27) // (size + 64)), ids=ids
    )
    send, view, variants = sock.sendall, memoryview(frames), len(frames) // length
    answers = bytearray(_CARRIED + (1 << 17))
    into = memoryview(answers)[_CARRIED:]
    sent = done = refused = 0
    room = min(window, count)
    latencies = []
    started = time.perf_counter()
    while done < count:
        while room:
            at = sent % variants
            part = min(room, variants - at)
            asked = time.perf_counter()
            send(view[at * length : (at + part) * length])
            sent += part
            room -= part
        end = _CARRIED + sock.recv_into(into)
        if end == _CARRIED:
            raise ConnectionError("the server closed the connection")
        acks = answers.count(_ANSWER_END, _CARRIED + 1 - len(_ANSWER_END), end)
        if window == 1 and acks:
            latencies.append(time.perf_counter() - asked)
        # JetStream refuses what it would have to buffer beyond a limit; a refusal is an answer, not an ack.
        refused += answers.count(_REFUSAL, 0, end)
        answers[:_CARRIED] = answers[end - _CARRIED : end]
        done += acks
        room = min(acks, count - sent)
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
