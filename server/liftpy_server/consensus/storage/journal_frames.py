"""The bytes of a voter's journal: frames in two files that are written one after the other and hold the same.

    raft.journal, raft.journal.copy    frames, one after the other
      frame   magic u32 | version u32 | generation u64 | position u64 (of this frame) | length u64 (of its body)
              | previous_crc32c u32 (of the frame before it; 0 for the first) | crc32c u32 (of all these and the body)
              | body

A frame is written to `raft.journal` and synced, then to the copy and synced, and only then the journal is flushed. So:

- What was flushed is whole in both files. Damage of one file is repaired from the other.
- What is whole in neither file, was not begun in the copy, and has nothing good behind it, was never flushed.
- What is whole in neither file otherwise is damage of both, and is named.

A file that is rewritten gets the next generation, `raft.journal` first. The newest generation counts. Little-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Contents", "FramesDamagedError", "FramesNewerError", "encode_frame", "read_copies"]

_MAGIC: Final = 0x4A52464C
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<IIQQQII")
_CRC_BYTES: Final = 4


class FramesDamagedError(Exception):
    """What was flushed is whole in neither copy.

    Attributes:
        position: The byte at which the first such frame begins.
    """

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class FramesNewerError(Exception):
    """A newer liftpy wrote it.

    Attributes:
        version: The version of the format.
    """

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class Contents(NamedTuple):
    """What two copies hold together.

    Attributes:
        generation: The newest.
        bodies: Bodies of the frames that count.
        sound: The bytes that both copies should have.
        last: Position of the last frame in `sound`.
        crc: CRC-32C of the last frame.
    """

    generation: int
    bodies: list[bytes]
    sound: bytes
    last: int
    crc: int

    def is_unfinished(self, copy: bytes | None, *, is_first: bool) -> bool:
        """Whether a copy that is not as it should be may be so because a flush was cut short, without damage."""
        is_rewritten = self.last == 0
        if copy is None:
            return not is_first and is_rewritten and self.generation == 1
        if is_first:
            return copy.startswith(self.sound)
        if is_rewritten:
            generation = _generation(copy)
            return generation is not None and generation < self.generation
        if copy[: self.last] != self.sound[: self.last]:
            return False
        # Sectors that were never written read as zeros.
        return all(
            byte in {0, wanted} for byte, wanted in zip(copy[self.last :], self.sound[self.last :], strict=False)
        )


class _Frame(NamedTuple):
    body: bytes
    crc: int
    end: int


def encode_frame(body: bytes, *, generation: int, position: int, previous_crc: int) -> tuple[bytes, int]:
    """A frame and its checksum."""
    bare = _HEAD.pack(_MAGIC, _VERSION, generation, position, len(body), previous_crc, 0)[:-_CRC_BYTES]
    crc = int(google_crc32c.extend(google_crc32c.value(bare), body))
    return b"".join((bare, crc.to_bytes(_CRC_BYTES, "little"), body)), crc


def _decode_frame(copy: bytes, position: int, generation: int | None, previous_crc: int | None) -> _Frame | None:
    """The frame at `position`; None when there is no good one of this generation, or not after that frame."""
    head = copy[position : position + _HEAD.size]
    if len(head) < _HEAD.size:
        return None
    magic, version, found_generation, found_position, length, found_previous, crc = _HEAD.unpack(head)
    end = position + _HEAD.size + length
    if magic != _MAGIC or found_position != position or end > len(copy):
        return None
    body = copy[position + _HEAD.size : end]
    if google_crc32c.extend(google_crc32c.value(head[:-_CRC_BYTES]), body) != crc:
        return None
    if version > _VERSION:
        raise FramesNewerError(version)
    if generation not in {None, found_generation} or previous_crc not in {None, found_previous}:
        return None
    return _Frame(body, crc, end)


def _generation(copy: bytes | None) -> int | None:
    """The generation of a copy; None when its first frame does not tell."""
    if copy is None or _decode_frame(copy, 0, None, 0) is None:
        return None
    return int(_HEAD.unpack_from(copy)[2])


def _has_frame_behind(copy: bytes, position: int, generation: int) -> bool:
    magic = _MAGIC.to_bytes(4, "little")
    found = copy.find(magic, position + 1)
    while found >= 0:
        if _decode_frame(copy, found, generation, None) is not None:
            return True
        found = copy.find(magic, found + 1)
    return False


def read_copies(first: bytes | None, second: bytes | None) -> Contents:
    """What was flushed, and perhaps what was about to be, from two copies of which one may be damaged in any way.

    Args:
        first: The content of the file that is written first; None when there is none.
        second: Bytes of the other copy.

    Raises:
        FramesDamagedError: both are damaged, so that something is lost that was flushed.
        FramesNewerError: a newer liftpy wrote them.
    """
    generations = [_generation(first), _generation(second)]
    known = [generation for generation in generations if generation is not None]
    if not known:
        raise FramesDamagedError(0)
    newest = max(known)
    copies = [
        copy if copy is not None and generation in {None, newest} else b""
        for copy, generation in zip((first, second), generations, strict=True)
    ]
    bodies: list[bytes] = []
    pieces: list[bytes] = []
    last = position = crc = 0
    while (frame := _agreed_frame(copies, position, newest, crc)) is not None:
        found, piece = frame
        bodies.append(found.body)
        pieces.append(piece)
        last, position, crc = position, found.end, found.crc
    is_copy_begun = len(copies[1]) > position and len(copies[0]) != position
    if is_copy_begun or any(_has_frame_behind(copy, position, newest) for copy in copies):
        raise FramesDamagedError(position)
    return Contents(newest, bodies, b"".join(pieces), last, crc)


def _agreed_frame(
    copies: Sequence[bytes], position: int, generation: int, previous_crc: int
) -> tuple[_Frame, bytes] | None:
    """The frame at `position`, by whichever copy has it, and its bytes."""
    found = [(frame, copy) for copy in copies if (frame := _decode_frame(copy, position, generation, previous_crc))]
    if len({frame.crc for frame, _ in found}) > 1:
        raise FramesDamagedError(position)
    if not found:
        return None
    frame, copy = found[0]
    return frame, copy[position : frame.end]
