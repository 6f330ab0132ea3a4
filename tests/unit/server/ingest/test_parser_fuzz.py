"""A million frames at random: the parser finds what a naive one finds, in whatever pieces they come."""

from __future__ import annotations

from random import Random

import pytest

from liftpy_server.ingest.parser import MessageParser
from support.nats_frames import CONTROL_LINES, Frame, cut, encode_all, header_block, hear, reference_parse

FRAMES = 60_000
AT_ONCE = 1_500
FRAGMENTS = (
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"MSG a 1 3\r\n",
    b"\r\nMSG a 1 3\r\nabc\r\n",
    b"HMSG a 1 2 3\r\n",
    b"\xff",
    b"7",
)
TOKENS = (b"a", b"1", b"MSG", b"HMSG", b"orders.eu", b"_INBOX.x.1", "\u00fc.\u20ac".encode())


def value(rng):
    match rng.randrange(4):
        case 0:
            return rng.randbytes(rng.choice((0, 1, 9, 10, 99, 100, 128, 1_000, 5_000)))
        case 1:
            return b"".join(rng.choices(FRAGMENTS, k=rng.randrange(8)))
        case 2:
            return rng.choice(FRAGMENTS) * rng.randrange(300)
    return b"v" * rng.randrange(200)


def frame(rng):
    headers = header_block(**{f"H{number}": "x" * rng.randrange(40) for number in range(rng.randrange(3))})
    sid = rng.randrange(1, 10 ** rng.randrange(1, 9))
    subject = rng.choice(TOKENS) + b".%d" % rng.randrange(10 ** rng.randrange(1, 7))
    reply = rng.choice((b"", b"", rng.choice(TOKENS)))
    return Frame(subject, sid, reply, headers if rng.random() < 0.2 else None, value(rng))


def burst(rng):
    """Frames of one layout, as a publisher that goes flat out sends them: what is counted grows by a digit within."""
    subject, size, sid = rng.choice(TOKENS), rng.choice((1, 16, 95, 128)), rng.randrange(1, 12)
    counted, replied, of_one_size = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.7
    filling = rng.choice(FRAGMENTS)
    first = rng.choice((0, 90, 99_950))
    for number in range(first, first + rng.randrange(1, 400)):
        text = b"%d" % number + filling * size
        yield Frame(
            subject + b".%d" % number if counted else subject,
            sid,
            b"_INBOX.%d" % number if replied else b"",
            None,
            text[:size] if of_one_size else text[: size + number % 7],
        )


def stream(rng):
    items = []
    while len(items) < AT_ONCE:
        match rng.randrange(8):
            case 0:
                items.append(rng.choice(CONTROL_LINES))
            case 1 | 2 | 3:
                items += burst(rng)
            case _:
                items += [frame(rng) for _ in range(rng.randrange(1, 20))]
    return items


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 21))])
def test_parser_finds_what_a_naive_one_finds(seed):
    rng, count, budget = Random(seed), 0, FRAMES if seed > 1 else AT_ONCE
    while count < budget:
        items = stream(rng)
        data = encode_all(items)
        cuts = [rng.randrange(len(data)) for _ in range(rng.choice((0, 1, 10, 200)))]
        assert reference_parse(data) == hear(MessageParser(), cut(data, cuts))
        count += sum(isinstance(item, Frame) for item in items)
    print(f"{count:,} frames, no difference")
