"""Damage for decoders: every flipped bit, every truncation, numbers that lie, and random mixtures of them.

The exhaustive generators are cheap enough to run over whole small messages, and need no luck to hit a field.
"""

import random
import struct
from itertools import chain

from hypothesis import strategies as st

SECTOR = 512
HOSTILE_NUMBERS = (
    *(struct.pack("<i", number) for number in (-(2**31), -1, 0, 1, 7, 2**16, 2**24, 2**31 - 1)),
    *(struct.pack("<q", number) for number in (-(2**63), -1, 0, 1, 2**31, 2**40, 2**62, 2**63 - 8, 2**63 - 1)),
)


def bit_flips(data, start=0, stop=None):
    """Every copy of `data` with one bit turned between `start` and `stop`."""
    for position in range(start, len(data) if stop is None else stop):
        for bit in range(8):
            turned = bytes((data[position] ^ 1 << bit,))
            yield data[:position] + turned + data[position + 1 :]


def truncations(data, start=0):
    """Every proper prefix of `data` from a length of `start` on, the longest last."""
    for length in range(start, len(data)):
        yield data[:length]


def lies(data, start=0, stop=None):
    """Every copy of `data` in which a hostile number stands at some multiple of four."""
    for position in range(start, len(data) if stop is None else stop, 4):
        for number in HOSTILE_NUMBERS:
            yield data[:position] + number + data[position + len(number) :]


def every_damage(data):
    """Every flipped bit, every truncation, every lie."""
    return chain(bit_flips(data), truncations(data), lies(data))


def disk_damage(data, rng, places=200):
    """(what it is, the bytes after it): what a disk makes of a file, at many places of it."""
    for position in sorted({0, *range(0, len(data), max(1, len(data) // places)), max(len(data) - 1, 0)}):
        flipped = bytes([data[position] ^ 1 << rng.randrange(8)]) if data else b""
        yield f"bit {position}", data[:position] + flipped + data[position + 1 :]
        yield f"cut {position}", data[:position]
    sectors = [data[at : at + 512] for at in range(0, len(data), 512)]
    for number, sector in enumerate(sectors):
        yield f"zeros {number}", b"".join((*sectors[:number], bytes(len(sector)), *sectors[number + 1 :]))
        other = rng.randrange(len(sectors))
        swapped = list(sectors)
        swapped[number], swapped[other] = swapped[other], sector
        yield f"swap {number} {other}", b"".join(swapped)
    yield "noise", rng.randbytes(len(data))
    yield "longer", data + rng.randbytes(100)


@st.composite
def damaged(draw, valid):
    """Bytes drawn from `valid`, with one to four edits."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, max(len(data) - 1, 0)))
        edit = draw(st.sampled_from(("bit", "byte", "number", "cut", "insert", "delete")))
        if edit == "bit" and data:
            data[position] ^= 1 << draw(st.integers(0, 7))
        elif edit == "byte" and data:
            data[position] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xC1, 0xFF)))
        elif edit == "number":
            number = draw(st.sampled_from(HOSTILE_NUMBERS))
            data[position : position + len(number)] = number
        elif edit == "cut":
            del data[position:]
        elif edit == "insert":
            data[position:position] = draw(st.binary(min_size=1, max_size=9))
        else:
            del data[position : position + draw(st.integers(1, 9))]
    return bytes(data)


def attempt(decode, data, *documented):
    """What `decode` makes of `data`, or None when it raises one of its documented errors.

    Any other error passes through and carries the input as a note.
    """
    try:
        return decode(data)
    except documented:
        return None
    except BaseException as error:
        shown = data.hex() if isinstance(data, bytes) else repr(data)
        error.add_note(f"input: {shown[:4000]}")
        raise


def flipped(data: bytes, rng: random.Random) -> bytes:
    """One bit is another; the end of a file is as likely as all of the rest."""
    at = rng.randrange(len(data)) if rng.random() < 0.5 else max(0, len(data) - 1 - rng.randrange(100))
    return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]


def zeroed(data: bytes, rng: random.Random) -> bytes:
    """A sector holds nothing."""
    at = rng.randrange(0, len(data), SECTOR)
    size = min(SECTOR, len(data) - at)
    return data[:at] + bytes(size) + data[at + size :]


def swapped(data: bytes, rng: random.Random) -> bytes:
    """Two sectors took each other's place; of a short file, its halves."""
    size = min(SECTOR, len(data) // 2)
    one, other = sorted((rng.randrange(0, len(data) - size + 1), rng.randrange(0, len(data) - size + 1)))
    if other < one + size:
        return flipped(data, rng)
    first, second = data[one : one + size], data[other : other + size]
    return data[:one] + second + data[one + size : other] + first + data[other + size :]
