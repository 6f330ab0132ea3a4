"""A sum over a set of records: the same whatever the order and the grouping, another if any record is another.

Source: setsum of wal3 (rescrv/blue). The digest of a record, 32 bytes, is read as eight little-endian u32 columns; each
column is added modulo its own prime, the eight largest below 2**32. Taking away is adding the inverse.
"""

from __future__ import annotations

import struct
from operator import add, lt, mod, sub
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

__all__ = ["DIGEST_BYTES", "NO_RECORDS", "Setsum"]

DIGEST_BYTES: Final = 32
_PRIMES: Final = (4294967291, 4294967279, 4294967231, 4294967197, 4294967189, 4294967161, 4294967143, 4294967111)
_COLUMNS: Final = struct.Struct("<8I")


class Setsum:
    """A sum over a set of records. Immutable; compares and hashes by value.

    Args:
        digest: 32 bytes, as `digest` gives them.
    """

    __slots__ = ("digest",)

    def __init__(self, digest: bytes = bytes(DIGEST_BYTES)) -> None:
        if len(digest) != DIGEST_BYTES or not all(map(lt, _COLUMNS.unpack(digest), _PRIMES)):
            raise ValueError(f"{digest.hex()} is not a setsum")
        self.digest = digest

    @classmethod
    def of_digests(cls, digests: bytes | bytearray | memoryview) -> Self:
        """The sum of records.

        Args:
            digests: Digests of the records, one after the other.
        """
        columns = np.frombuffer(digests, dtype="<u4").reshape(-1, len(_PRIMES))
        # One by one: numpy takes four times as long for the sums of all of them at once.
        return cls._of_columns(int(columns[:, place].sum(dtype=np.uint64)) for place in range(len(_PRIMES)))

    @classmethod
    def total(cls, sums: Iterable[Setsum]) -> Self:
        """The sum of sums, in one go."""
        return cls.of_digests(b"".join(each.digest for each in sums))

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """Read what `hex` wrote.

        Raises:
            ValueError: it is not a setsum.
        """
        return cls(bytes.fromhex(text))

    @classmethod
    def _of_columns(cls, columns: Iterable[int]) -> Self:
        return cls(_COLUMNS.pack(*map(mod, columns, _PRIMES)))

    def __add__(self, other: Setsum) -> Setsum:
        return self._of_columns(map(add, _COLUMNS.unpack(self.digest), _COLUMNS.unpack(other.digest)))

    def __sub__(self, other: Setsum) -> Setsum:
        return self._of_columns(map(sub, _COLUMNS.unpack(self.digest), _COLUMNS.unpack(other.digest)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setsum) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __bool__(self) -> bool:
        return self.digest != bytes(DIGEST_BYTES)

    def __repr__(self) -> str:
        return f"Setsum({self.hex()})"

    def hex(self) -> str:
        """The setsum as 64 hexadecimal digits."""
        return self.digest.hex()


NO_RECORDS: Final = Setsum()
"""The sum of nothing."""
