"""Which records a consumer wants, by subject.

A node leaves out only what it can cheaply: so whatever arrives is filtered here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from liftpy_envelope.errors import SubjectInvalidError
from liftpy_envelope.subject import check_patterns
from liftpy_envelope.subject_filter import SubjectMatcher

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SubjectFilter"]


class SubjectFilter:
    """Takes the records that a NATS subscription to one of some subjects would have received.

    Args:
        patterns: NATS subjects, with the wildcards `*` and `>` where wanted; or a single one. Up to 64.

    Raises:
        SubjectInvalidError: one is not a subject, or there are too many, or none.

    Attributes:
        patterns: Patterns, as a fetch request takes them.
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        given: Iterable[str] = (patterns,) if isinstance(patterns, str) else patterns
        self.patterns = check_patterns(given)
        if not self.patterns:
            raise SubjectInvalidError("subjects: an empty filter matches nothing; leave it out to consume all subjects")
        self._matcher = SubjectMatcher(self.patterns)

    def matches(self, subject: bytes) -> bool:
        """Whether records of this subject are wanted."""
        return self._matcher.matches(subject)

    def mask(self, subjects: pa.Array) -> pa.BooleanArray:
        """For every one of some subjects whether it is wanted; an array of strings or of binary."""
        return self._matcher.mask(subjects.cast(pa.binary()))

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The wanted records of a decoded batch, which has a column `subject`; None when there are none.

        The batch itself when all of them are wanted.
        """
        mask = self.mask(batch.column("subject"))
        wanted = mask.true_count
        if not wanted:
            return None
        return batch if wanted == batch.num_rows else batch.filter(mask)
