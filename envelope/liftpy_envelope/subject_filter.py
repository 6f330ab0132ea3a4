"""Which records of a batch have a subject that one of some NATS patterns matches: decided per distinct subject.

Subjects of records are bytes, which need not be UTF-8; patterns are text. Both are compared byte by byte, by the rules
of `liftpy_envelope.subject.matches`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from liftpy_envelope.subject import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SubjectMatcher"]

_FEW: Final = 32  # so many subjects are looked up one by one in less time than array operations take
_CACHED_MAX: Final = 4_096
_CACHED_BYTES_MAX: Final = 256
_ONE_TOKEN: Final = r"[^.]*"


class SubjectMatcher:
    """See the module. May be used by several threads.

    Args:
        patterns: Checked ones; without any, every subject matches.

    Attributes:
        takes_all: Whether no subject is left out.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.takes_all = not patterns or ">" in patterns
        self._patterns = [_as_text(pattern.encode()) for pattern in patterns]
        self._cache: dict[bytes, bool] = {}
        literals, self._prefixes, self._expressions = [], [], []
        for pattern in patterns:
            *leading, last = tokens = pattern.split(".")
            if not {"*", ">"} & set(tokens):
                literals.append(pattern.encode())
            elif last == ">" and "*" not in tokens:
                self._prefixes.append(".".join(leading) + ".")
            else:
                self._expressions.append(_expression(tokens))
        self._literals = pa.array(literals, pa.binary())

    def matches(self, subject: bytes) -> bool:
        """Whether one of the patterns matches a subject."""
        found = self._cache.get(subject)
        if found is None:
            text = _as_text(subject)
            found = self.takes_all or any(matches(pattern, text) for pattern in self._patterns)
            if len(subject) <= _CACHED_BYTES_MAX:
                if len(self._cache) >= _CACHED_MAX:
                    self._cache.clear()
                self._cache[subject] = found
        return found

    def mask(self, subjects: pa.BinaryArray) -> pa.BooleanArray:
        """For every one of some subjects whether a pattern matches it."""
        if self.takes_all:
            return pa.repeat(pa.scalar(value=True), len(subjects))
        if len(subjects) <= _FEW:
            return self._one_by_one(subjects)
        encoded = subjects.dictionary_encode()
        distinct = encoded.dictionary
        mask = self._one_by_one(distinct) if len(distinct) <= _FEW else self._at_once(distinct)
        return mask.take(encoded.indices)

    def _one_by_one(self, subjects: pa.BinaryArray) -> pa.BooleanArray:
        return pa.array([self.matches(subject) for subject in subjects.to_pylist()], pa.bool_())

    def _at_once(self, subjects: pa.BinaryArray) -> pa.BooleanArray:
        mask = pc.is_in(subjects, value_set=self._literals)
        for prefix in self._prefixes:
            mask = pc.or_(mask, pc.starts_with(subjects, prefix))
        for expression in self._expressions:
            mask = pc.or_(mask, pc.match_substring_regex(subjects, expression))
        return mask


def _as_text(subject: bytes) -> str:
    """One character per byte, so that bytes are compared and not what they may mean."""
    return subject.decode("latin-1")


def _expression(tokens: Sequence[str]) -> str:
    """A pattern as a regular expression over bytes."""
    *leading, last = (_ONE_TOKEN if token == "*" else re.escape(token) for token in tokens)
    return r"(?s)\A" + "".join(token + r"\." for token in leading) + (r"" if tokens[-1] == ">" else last + r"\z")
