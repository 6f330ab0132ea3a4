"""Which offset is the newest of every key, in a bounded number of bytes.

A key is kept as a hash of 128 bits under a secret seed, not as itself. The hash is multilinear (Lemire and Kaser,
"Strongly universal string hashing is fast", 2014) over the key's length and its 32-bit words, four times with
coefficients of their own: for any two different keys the probability that they share all 128 bits is 2^-128, whatever
the keys are as long as who chose them does not know the seed. Among a billion keys that any two do: 2^-69. Keys longer
than `_WORDS_MAX` words stand as their BLAKE2b digest of 256 bits under the same seed.

The table is open addressing with linear probing in one numpy array: 24 bytes a slot, at most 70 % of them in use, so
34 to 69 bytes per distinct key, and half of that again while it grows. All work is on whole columns, which lets other
threads run meanwhile.
"""

from __future__ import annotations

from hashlib import blake2b, shake_256
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["MEMORY_BYTES_MIN", "KeyHasher", "OffsetMap"]

_WORDS_MAX: Final = 64
_LANES: Final = 4
_DIGEST_BYTES: Final = 32
_SLOT_BYTES: Final = 24
_SLOTS_MIN: Final = 1_024
_LOAD_MAX: Final = 0.7
_PIECE_SLOTS: Final = 64 * 1024  # handled at once, so that other threads get their turn
_EMPTY: Final = np.uint64(2**64 - 1)
MEMORY_BYTES_MIN: Final = _SLOTS_MIN * _SLOT_BYTES


class KeyHasher:
    """Hashes columns of keys.

    Args:
        seed: Secret bytes, of which the hashes are a function; at least 16.
    """

    def __init__(self, seed: bytes) -> None:
        assert len(seed) >= 16
        self._seed = seed[:64]
        count = _LANES * (2 + _WORDS_MAX)
        stream = shake_256(seed).digest(8 * count)
        self._coefficients = np.frombuffer(stream, "<u8").reshape(2 + _WORDS_MAX, _LANES)

    def hash(self, keys: pa.BinaryArray) -> npt.NDArray[np.uint64]:
        """Two numbers of 64 bits, a row, for every key of an array without nulls."""
        data, starts, lengths, left = self._layout(keys)
        first, of_length, *of_words = self._coefficients
        sums = np.repeat(first[:, None], len(starts), axis=1)  # modulo 2^64, as all that follows
        sums += of_length[:, None] * lengths
        words: npt.NDArray[np.uint32] = np.ndarray(max(0, len(data) - 3), "<u4", data, strides=(1,))
        rows = None
        for coefficients in of_words:
            more = left > 0
            if not more.all():
                kept = np.flatnonzero(more)
                starts, left, rows = starts[kept], left[kept], kept if rows is None else rows[kept]
            if not len(starts):
                break
            word = words[starts].astype(np.uint64)
            if (left < 4).any():
                word &= (np.uint64(1) << (8 * np.minimum(left, 4)).astype(np.uint64)) - np.uint64(1)
            if rows is None:
                sums += coefficients[:, None] * word
            else:
                sums[:, rows] += coefficients[:, None] * word
            starts, left = starts + 4, left - 4
        high = sums >> np.uint64(32)
        return np.stack((high[0] << np.uint64(32) | high[1], high[2] << np.uint64(32) | high[3]), axis=1)

    def _layout(
        self, keys: pa.BinaryArray
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Bytes to hash; where in them each key begins; how long it is; and how many bytes of it are hashed."""
        _, places, content = keys.buffers()
        ends = np.frombuffer(places, "<i4", len(keys) + 1, 4 * keys.offset).astype(np.int64)
        low, high = int(ends[0]), int(ends[-1])
        raw = b"" if content is None else bytes(memoryview(content)[low:high])
        starts, lengths = ends[:-1] - low, np.diff(ends)
        left = lengths.copy()
        digests: list[bytes] = []
        for row in np.flatnonzero(lengths > 4 * _WORDS_MAX).tolist():
            key = raw[starts[row] : starts[row] + lengths[row]]
            starts[row] = len(raw) + _DIGEST_BYTES * len(digests)
            left[row] = _DIGEST_BYTES
            digests.append(blake2b(key, digest_size=_DIGEST_BYTES, key=self._seed).digest())
        padded = np.frombuffer(b"".join((raw, *digests, bytes(4))), np.uint8)
        return padded, starts, lengths.astype(np.uint64), left


class OffsetMap:
    """The newest offset of every key that was put in.

    Args:
        memory_bytes_max: What the table may take, also while it grows; at least `MEMORY_BYTES_MIN`.

    Attributes:
        memory_bytes: What it took at most.
    """

    def __init__(self, memory_bytes_max: int) -> None:
        assert memory_bytes_max >= MEMORY_BYTES_MIN
        self._memory_bytes_max = memory_bytes_max
        self._table = _empty_table(_SLOTS_MIN)
        self._count = 0
        self.memory_bytes = self._table.nbytes

    def __len__(self) -> int:
        return self._count

    def put(self, hashes: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64]) -> int:
        """Remember where keys are.

        Args:
            hashes: Hashes of the keys, as from `KeyHasher.hash`.
            offsets: Theirs; ascending, and all above those that were put in before.

        Returns:
            How many were taken; fewer than all when there is no room for more.
        """
        taken = 0
        while taken < len(offsets):
            slots = len(self._table)
            room = int(slots * _LOAD_MAX) - self._count
            if room < min(len(offsets) - taken, slots // 16):
                if not self._grow():
                    break
                continue
            some = slice(taken, taken + room)
            entries = np.column_stack((hashes[some], offsets[some].astype(np.uint64)))
            self._count += _insert(self._table, entries)
            taken += len(entries)
        return taken

    def newest(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The newest offset of each key; -1 for those that were not put in."""
        found = np.full(len(hashes), -1, np.int64)
        mask = len(self._table) - 1
        rows = np.arange(len(hashes))
        slots = (hashes[:, 0] & np.uint64(mask)).astype(np.int64)
        while len(rows):
            entries = self._table[slots]
            is_match = (entries[:, :2] == hashes[rows]).all(axis=1)
            is_used = entries[:, 2] != _EMPTY
            is_found = is_match & is_used
            found[rows[is_found]] = entries[is_found, 2].astype(np.int64)
            further = np.flatnonzero(is_used & ~is_match)
            rows, slots = rows[further], (slots[further] + 1) & mask
        return found

    def _grow(self) -> bool:
        old = self._table
        peak = 3 * old.nbytes
        if peak > self._memory_bytes_max:
            return False
        self.memory_bytes = max(self.memory_bytes, peak)
        self._table = _empty_table(2 * len(old))
        for start in range(0, len(old), _PIECE_SLOTS):
            piece = old[start : start + _PIECE_SLOTS]
            _insert(self._table, piece[piece[:, 2] != _EMPTY])
        return True


def _empty_table(slots: int) -> npt.NDArray[np.uint64]:
    return np.full((slots, 3), _EMPTY, np.uint64)


def _insert(table: npt.NDArray[np.uint64], entries: npt.NDArray[np.uint64]) -> int:
    """Put entries (hash, hash, offset) into a table with room for them. Returns how many keys are new.

    Of entries that are written to one slot at once the last one stays, as numpy promises; the others find it there.
    """
    mask = len(table) - 1
    added = 0
    slots = (entries[:, 0] & np.uint64(mask)).astype(np.int64)
    while len(entries):
        there = table[slots]
        is_empty = there[:, 2] == _EMPTY
        if is_empty.any():
            table[slots[is_empty]] = entries[is_empty]
            there = table[slots]
            added += int((there[is_empty, 2] == entries[is_empty, 2]).sum())
        is_match = (there[:, :2] == entries[:, :2]).all(axis=1)
        table[slots[is_match], 2] = entries[is_match, 2]
        further = np.flatnonzero(~is_match)
        entries, slots = entries[further], (slots[further] + 1) & mask
    return added
