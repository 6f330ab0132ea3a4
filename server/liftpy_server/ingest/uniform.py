r"""`MSG` frames of equal size and layout, many in a row: what a publisher in a loop sends.

    MSG <subject> <sid> [reply] <size>\r\n<payload>\r\n

When the first frame was read, it is known where the next ones have their parts if they are like it, and whether they
are is seen by comparing those places with those of the first. So each part is gathered by one strided copy, and no
byte of a payload is looked at. The parse is exact: a frame counts only if its verb, its subscription id, its size, and
what separates them stand where they do in the first one, and if subject and reply hold nothing that could separate
fields. The plain loop would cut it in the same places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from liftpy_envelope.envelope import COOKIE
from liftpy_server.ingest.vector import VectorResult
from liftpy_server.messages.packed import PackedColumn, strided
from liftpy_server.messages.runs import Block, BlockRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["UNIFORM_FRAMES_MIN", "parse_uniform"]

UNIFORM_FRAMES_MIN: Final = 16  # below this the fixed cost of some twenty array operations is more than a loop's
_SHARE_MIN: Final = 4  # the least part of what is left of a chunk that is worth a run of its own: one in so many
_VERB_END: Final = len(b"MSG ")
_COOKIE: Final = np.uint32(int.from_bytes(COOKIE, "little"))
_TOKEN_MIN: Final = 33  # the first character that is neither white space nor control


class _Layout(NamedTuple):
    """The first frame, whose parts stand one after the other."""

    head: bytes  # verb, subject, and subscription id, with a space behind each
    subject_end: int
    reply_bytes: int
    tail: bytes  # from the reply to the value: the size, with the end of the line
    value_bytes: int

    @property
    def tail_at(self) -> int:
        return len(self.head) + self.reply_bytes

    @property
    def value_at(self) -> int:
        return self.tail_at + len(self.tail)

    @property
    def frame_bytes(self) -> int:
        return self.value_at + self.value_bytes + 2


def parse_uniform(data: bytes, start: int, fields: Sequence[bytes], value_bytes: int) -> VectorResult | None:
    """Parse the frames that are like the first.

    Args:
        data: The chunk.
        start: Where the first frame begins, which is whole.
        fields: Fields of its `MSG` line; the subscription id is a number.
        value_bytes: Size of its payload.

    Returns:
        As many frames as follow one another; None when they are few, or little of what is left of the chunk: each run
        becomes a batch, and cutting many of them costs more than is saved here.
    """
    layout = _layout_of(fields, value_bytes)
    step, left = layout.frame_bytes, len(data) - start
    count = left // step
    if count < UNIFORM_FRAMES_MIN or not _is_likely(data, start, layout):
        return None
    subjects, count = _subjects(strided(data, start, step, count, len(layout.head)).tobytes(), layout)
    if count < UNIFORM_FRAMES_MIN:
        return None
    tails = strided(data, start + layout.tail_at, step, count, len(layout.tail)).tobytes()
    count = _count_equal(tails, layout.tail)
    replies = b""
    if layout.reply_bytes:
        replies = strided(data, start + len(layout.head), step, count, layout.reply_bytes).tobytes()
        count = _count_tokens(replies, layout.reply_bytes)
    if count < UNIFORM_FRAMES_MIN or _SHARE_MIN * count * step < left:
        return None
    run = _run(data, start, layout, count, subjects, replies)
    return VectorResult([(int(fields[2]), run)], count, start + count * step)


def _layout_of(fields: Sequence[bytes], value_bytes: int) -> _Layout:
    has_reply = len(fields) > 4
    return _Layout(
        b"MSG %b %b " % (fields[1], fields[2]),
        _VERB_END + len(fields[1]),
        len(fields[3]) if has_reply else 0,
        b"%b%b\r\n" % (b" " if has_reply else b"", fields[-1]),
        value_bytes,
    )


def _is_likely(data: bytes, start: int, layout: _Layout) -> bool:
    """Whether the next frame, and one further on, look like the first: most chunks that are not uniform end here."""
    sid, sid_at, tail_at = layout.head[layout.subject_end :], layout.subject_end, layout.tail_at
    for number in (1, UNIFORM_FRAMES_MIN - 1):
        at = start + number * layout.frame_bytes
        if not (
            data.startswith(b"MSG ", at)
            and data.startswith(sid, at + sid_at)
            and data.startswith(layout.tail, at + tail_at)
        ):
            return False
    return True


def _subjects(heads: bytes, layout: _Layout) -> tuple[bytes, int]:
    """The subjects, as far as they are ones, and how many heads are those of the layout but for them."""
    head, subject_end = layout.head, layout.subject_end
    width = subject_end - _VERB_END
    count = len(heads) // len(head)
    if heads == head * count:
        return head[_VERB_END:subject_end] * count, count
    count = _count_equal(strided(heads, 0, len(head), count, _VERB_END).tobytes(), head[:_VERB_END])
    sid = head[subject_end:]
    count = _count_equal(strided(heads, subject_end, len(head), count, len(sid)).tobytes(), sid)
    if not width:
        return b"", count
    subjects = strided(heads, _VERB_END, len(head), count, width).tobytes()
    return subjects, _count_tokens(subjects, width)


def _count_equal(strings: bytes, wanted: bytes) -> int:
    """How many are the wanted one, until one is not."""
    count = len(strings) // len(wanted)
    if strings == wanted * count:
        return count
    return _leading(_table(strings, len(wanted)) == np.frombuffer(wanted, np.uint8))


def _count_tokens(tokens: bytes, width: int) -> int:
    """How many can not be anything but one field each, until one can."""
    found = _table(tokens, width)
    return len(found) if np.minimum.reduce(found, None) >= _TOKEN_MIN else _leading(found >= _TOKEN_MIN)


def _leading(fits: npt.NDArray[np.bool_]) -> int:
    """How many rows are true throughout, before one that is not."""
    misfits = np.flatnonzero(~fits.all(axis=1))
    return int(misfits[0]) if len(misfits) else len(fits)


def _table(strings: bytes, width: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(strings, np.uint8).reshape(-1, width)


def _run(data: bytes, start: int, layout: _Layout, count: int, subjects: bytes, replies: bytes) -> BlockRun:
    value_at, value_bytes, step = start + layout.value_at, layout.value_bytes, layout.frame_bytes
    values = strided(data, value_at, step, count, value_bytes).tobytes() if value_bytes else b""
    is_plain = True
    if value_bytes >= len(COOKIE):
        is_plain = not np.count_nonzero(np.ndarray((count,), "<u4", values, 0, (value_bytes,)) == _COOKIE)
    subject_bytes = layout.subject_end - _VERB_END
    block = Block(
        PackedColumn.of_equal(subjects[: count * subject_bytes], subject_bytes, count),
        PackedColumn.of_equal(replies[: count * layout.reply_bytes], layout.reply_bytes, count),
        PackedColumn.of_equal(values, value_bytes, count),
        value_bytes,
    )
    return BlockRun(block, 0, count, is_plain=is_plain)
