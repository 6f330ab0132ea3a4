r"""Many `MSG` frames at once, with numpy and Arrow instead of a loop over messages.

    MSG <subject> <sid> [reply] <size>\r\n<payload>\r\n

Frames are sequential: where one begins is known only from the size of the one before. So candidates are found first
(every line feed followed by `MSG `), their sizes are read, and then the chain is verified: each frame must end where
the next candidate begins. As far as that holds the parse is exact, whatever the payloads contain; at the first place
where it does not, the caller goes on with the plain loop. Chunks of small messages parse three times as fast as in a
loop over `find` and slices.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from liftpy_envelope.envelope import COOKIE
from liftpy_server.messages.packed import PackedColumn
from liftpy_server.messages.runs import Block, BlockRun

__all__ = ["VectorResult", "parse_block"]

_U64 = np.uint64
_MSG: Final = _U64(int.from_bytes(b"MSG ", "little"))
_COOKIE: Final = np.uint32(int.from_bytes(COOKIE, "little"))
_LOW_32: Final = _U64(0xFFFFFFFF)
_DIGIT_BIT: Final = _U64(0x1010101010101010)  # set in the ASCII digits, clear in a space
_NIBBLES: Final = _U64(0x0F0F0F0F0F0F0F0F)
_U64_BYTES: Final = 8
_LINE_FEED: Final = 10
_SPACE: Final = 32
_FIELDS: Final = 6  # edges of subject, reply and value of one frame


class VectorResult(NamedTuple):
    """The frames that were parsed: runs by subscription id, how many they are, and the position after the last."""

    runs: list[tuple[int, BlockRun]]
    frames: int
    end: int


class _Frames(NamedTuple):
    """Where the parts of every frame are; `sid` is one number where all have the same."""

    subject_start: npt.NDArray[np.int64]
    subject_end: npt.NDArray[np.int64]
    sid: npt.NDArray[np.int64] | int
    reply_start: npt.NDArray[np.int64]
    reply_end: npt.NDArray[np.int64]
    value_start: npt.NDArray[np.int64]
    value_end: npt.NDArray[np.int64]


def parse_block(data: bytes, start: int) -> VectorResult | None:
    """Parse the `MSG` frames from `start`, where one begins.

    Returns:
        As many frames as follow one another without anything else between them and are complete; None when there are
        none of those.
    """
    octets = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # the 8 bytes from every position on
    frames = _find_frames(octets, words, start)
    if frames is None:
        return None
    sizes = frames.value_end - frames.value_start
    count = len(sizes)
    order, groups = (None, [(frames.sid, 0, count)]) if isinstance(frames.sid, int) else _group(frames.sid)
    block = _gather(data, frames, order, int(sizes.max()))
    special = _has_cookie(data, frames, sizes)
    if special is not None and order is not None:
        special = special[order]
    runs = [
        (sid, BlockRun(block, first, last, is_plain=special is None or not special[first:last].any()))
        for sid, first, last in groups
    ]
    return VectorResult(runs, count, int(frames.value_end[-1]) + 2)


def _find_frames(octets: npt.NDArray[np.uint8], words: npt.NDArray[np.uint64], start: int) -> _Frames | None:
    line_feeds = np.flatnonzero(octets[start:] == _LINE_FEED) + start
    if len(line_feeds) < 2:
        return None
    after = line_feeds[:-1] + 1  # what follows the last line feed can not be complete
    candidates = np.flatnonzero((words[np.minimum(after, len(words) - 1)] & _LOW_32) == _MSG)
    starts = np.concatenate(([start], after[candidates]))
    line_ends = line_feeds[np.concatenate(([0], candidates + 1))]
    usable = line_ends - starts >= 9  # room for the 8 bytes before the carriage return
    sizes, digits = _numbers(words, line_ends - 1)
    value_starts = line_ends + 1
    value_ends = value_starts + sizes
    usable &= (digits > 0) & (digits < 8)
    usable &= value_ends + 2 <= len(octets)
    usable[1:] &= value_ends[:-1] + 2 == starts[1:]  # a frame begins where the one before it ends, or it is none
    count = len(usable) if usable.all() else int(np.argmin(usable))
    if count == 0:
        return None
    first_spaces = np.flatnonzero(octets[start : int(value_ends[count - 1])] == _SPACE) + start
    spaces = np.searchsorted(first_spaces, starts[:count] + 4)
    if spaces[-1] + 1 >= len(first_spaces):
        return None
    subject_ends = first_spaces[spaces]
    size_starts = line_ends[:count] - 1 - digits[:count]
    one = _one_sid(octets, words, subject_ends, int(first_spaces[spaces[0] + 1]))
    if one is not None:
        sids: npt.NDArray[np.int64] | int = one
        sid_ends = subject_ends + (first_spaces[spaces[0] + 1] - subject_ends[0])
        usable = size_starts > sid_ends
    else:
        sid_ends = first_spaces[spaces + 1]
        sids, sid_digits = _numbers(words, sid_ends)
        usable = (sid_digits == sid_ends - subject_ends - 1) & (sid_digits < 8) & (size_starts > sid_ends)
    if not usable.all():
        return None
    return _Frames(
        starts[:count] + 4,
        subject_ends,
        sids,
        np.minimum(sid_ends + 1, size_starts - 1),
        size_starts - 1,
        value_starts[:count],
        value_ends[:count],
    )


def _one_sid(
    octets: npt.NDArray[np.uint8], words: npt.NDArray[np.uint64], subject_ends: npt.NDArray[np.int64], sid_end: int
) -> int | None:
    """The subscription id of the first frame, which ends at `sid_end`, where all have the same; most chunks are so."""
    first = int(subject_ends[0])
    field = octets[first + 1 : sid_end].tobytes()
    if not field.isdigit() or len(field) > _U64_BYTES - 2:
        return None
    mask = _U64((1 << 8 * (len(field) + 2)) - 1)  # the number with the spaces around it
    found = words[np.minimum(subject_ends, len(words) - 1)] & mask
    return int(field) if np.count_nonzero(found == found[0]) == len(found) else None


def _numbers(
    words: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The decimal numbers that end before `ends`, each after a space, and how many digits they have (8: too many).

    Eight bytes at a time: the last byte without the bit that all digits have is the space in front of the number.
    """
    tail = words[np.maximum(ends - 8, 0)]
    if ends[0] < 8:  # only the first number of a chunk can be nearer to its beginning
        tail[0] <<= _U64(8 * (8 - int(ends[0])))
    gaps = ~tail & _DIGIT_BIT
    space = (np.frexp(gaps.astype(np.float64))[1] + 3) // 8 - 1  # index of the last byte that is no digit; -1: none
    digits = (7 - space).astype(np.int64)
    shift = ((space + 1) * 8).astype(_U64)
    shift = np.minimum(shift, _U64(63))
    value = (tail >> shift << shift) & _NIBBLES
    value = value * _U64(10) + (value >> _U64(8))
    value = (value & _U64(0x00FF00FF00FF00FF)) * _U64(100) + ((value >> _U64(16)) & _U64(0x00FF00FF00FF00FF))
    value = (value & _U64(0x0000FFFF0000FFFF)) * _U64(10000) + ((value >> _U64(32)) & _U64(0x0000FFFF0000FFFF))
    return (value & _LOW_32).astype(np.int64), digits


def _group(sids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], list[tuple[int, int, int]]]:
    """The order that brings subscriptions together, and (sid, first, last) of each."""
    order = np.argsort(sids, kind="stable")
    ordered = sids[order]
    firsts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    edges = [*firsts.tolist(), len(sids)]
    numbers = ordered[firsts].tolist()
    return order, list(zip(numbers, edges, edges[1:], strict=False))


def _gather(data: bytes, frames: _Frames, order: npt.NDArray[np.int64] | None, value_bytes_max: int) -> Block:
    """Copy subjects, replies and values together, each into one contiguous column."""
    count = len(frames.subject_end)
    edges = np.empty((count, _FIELDS), np.int32)
    edges[:, 0] = frames.subject_start
    edges[:, 1] = frames.subject_end
    edges[:, 2] = frames.reply_start
    edges[:, 3] = frames.reply_end
    edges[:, 4] = frames.value_start
    edges[:, 5] = frames.value_end
    # One binary array over the chunk as it is, in which fields and what stands between them alternate.
    offsets = np.append(edges.ravel(), np.int32(len(data)))
    everything = pa.BinaryArray.from_buffers(
        pa.binary(), count * _FIELDS, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    if order is None:
        wanted = np.arange(0, count * _FIELDS, _FIELDS, dtype=np.int32)
    else:
        wanted = order.astype(np.int32) * np.int32(_FIELDS)
    subjects, replies, values = (
        PackedColumn.of_array(everything.take(pa.array(wanted + np.int32(field)))) for field in (0, 2, 4)
    )
    return Block(subjects, replies, values, value_bytes_max)


def _has_cookie(data: bytes, frames: _Frames, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Which values begin like an envelope; None when none does."""
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))  # the 4 bytes from every position on
    found = (words[np.minimum(frames.value_start, len(words) - 1)] == _COOKIE) & (sizes >= len(COOKIE))
    return found if found.any() else None
