"""Which records are wanted, by subject and key; and which row groups can not have one, by their statistics."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from liftpy_envelope.subject_filter import SubjectMatcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

__all__ = ["Match", "RecordFilter"]

_MARK: Final = "\ufffd"  # subjects that are no text stand behind it, out of their order
_BEYOND: Final = "\U0010ffff"


class Match(Enum):
    """How many records of a row group are wanted."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


class RecordFilter:
    """Selects records by subject and key, and skips row groups whose statistics rule out a match.

    Args:
        subjects: NATS patterns, checked; () takes all.
        key: The only key that is wanted; None takes all.

    Attributes:
        subjects: Subjects, as given.
        columns: Columns that it looks at.
    """

    def __init__(self, subjects: Sequence[str], key: bytes | None) -> None:
        self.subjects = tuple(subjects)
        self._matcher = SubjectMatcher(self.subjects) if self.subjects else None
        self._spans = [_span(pattern) for pattern in self.subjects]
        self._key = key
        self.columns: tuple[str, ...] = ()
        if self._matcher is not None and not self._matcher.takes_all:
            self.columns += ("subject",)
        if key is not None:
            self.columns += ("key",)

    def judge(self, least: Mapping[str, Any], most: Mapping[str, Any], nulls: Mapping[str, int | None]) -> Match:
        """What statistics tell of the rows they are of.

        Args:
            least: Least value, by column; a column is missing where nobody knows.
            most: Greatest value, by column.
            nulls: Number of nulls, by column; None where nobody knows.
        """
        verdicts = []
        if "subject" in self.columns:
            verdicts.append(self._judge_subject(least.get("subject"), most.get("subject")))
        if "key" in self.columns:
            verdicts.append(self._judge_key(least.get("key"), most.get("key"), nulls.get("key")))
        if Match.NONE in verdicts:
            return Match.NONE
        return Match.SOME if Match.SOME in verdicts else Match.ALL

    def _judge_subject(self, least: str | None, most: str | None) -> Match:
        if least is None or most is None or most >= _MARK:
            return Match.SOME
        if least == most:
            assert self._matcher is not None, "there are subjects to look for"
            return Match.ALL if self._matcher.matches(least.encode()) else Match.NONE
        return Match.SOME if any(low <= most and least <= high for low, high in self._spans) else Match.NONE

    def _judge_key(self, least: bytes | None, most: bytes | None, nulls: int | None) -> Match:
        if least is None or most is None:
            return Match.SOME
        assert self._key is not None, "there is a key to look for"
        if not least <= self._key <= most:
            return Match.NONE
        return Match.ALL if least == most and nulls == 0 else Match.SOME

    def mask(self, columns: Mapping[str, pa.Array]) -> pa.BooleanArray | None:
        """Mask of the rows that pass the filter; None if all do.

        Args:
            columns: Those of `columns` at least; subjects as bytes.
        """
        mask = None
        if "subject" in self.columns:
            assert self._matcher is not None, "there are subjects to look for"
            mask = self._matcher.mask(columns["subject"])
        if "key" in self.columns:
            equal = pc.fill_null(pc.equal(columns["key"], self._key), fill_value=False)
            mask = equal if mask is None else pc.and_(mask, equal)
        return mask


def _span(pattern: str) -> tuple[str, str]:
    """The least and the greatest text between which every subject lies that a pattern matches."""
    tokens = pattern.split(".")
    literal: list[str] = []
    for token in tokens:
        if token in {"*", ">"}:
            prefix = "".join(each + "." for each in literal)
            return prefix, prefix + _BEYOND
        literal.append(token)
    return pattern, pattern
