"""How large a publisher's batch becomes when it is stored: each of its records gets the subject that it came on.

A long subject makes a small payload a huge record batch. One beyond the limit could never be read back, so it must
not be acknowledged either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.limits import BATCH_BYTES_MAX
from liftpy_server.messages.incoming import Refusal

if TYPE_CHECKING:
    from liftpy_envelope.envelope import BatchEnvelope

__all__ = ["stored_size_refusal"]

_OFFSET_BYTES: Final = 4  # where a subject ends, in Arrow
_BYTES_MAX: Final = BATCH_BYTES_MAX - 64 * 1024  # leaves room for headers and padding


def stored_size_refusal(batch: BatchEnvelope, subject: bytes) -> Refusal | None:
    """Why a batch would become too large to be read back; None when it would not."""
    size = sum(array.nbytes for array in batch.arrays) + batch.count * (len(subject) + _OFFSET_BYTES)
    if size <= _BYTES_MAX:
        return None
    return Refusal(
        AckErrorCode.TOO_LARGE,
        f"batch of {batch.count} records would take {size} bytes with their subjects; the limit is {_BYTES_MAX}",
    )
