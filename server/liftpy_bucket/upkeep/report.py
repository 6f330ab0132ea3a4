"""What verifying and scrubbing have to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Kind", "Problem", "Report", "hole_of"]

Kind = Literal["corrupt", "epochs", "gap", "manifest", "missing", "overlap", "pin", "size", "sum"]


def hole_of(offset: int) -> str:
    """What it means that an object can not be read, and what to do.

    Args:
        offset: the first one of the object.
    """
    return f"the partition has a hole from offset {offset} on until it is put back, as it was and under its name"


class Problem(NamedTuple):
    """Something that is not as it must be.

    Attributes:
        kind: what is wrong.
        key: of the object it is about.
        offset: from which on the partition is concerned; None where that can not be said.
        text: for people.
    """

    kind: Kind
    key: str
    offset: int | None
    text: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What was found.

    Attributes:
        version: of the root that was looked at; 0 where there was none that could be read.
        start: the first offset.
        end: the offset after the last one that is visible.
        objects: how many hold data.
        records: how many they hold, as the manifests say.
        size: their bytes.
        problems: what is wrong; empty when all is well.
        orphans: keys that nobody names: work in progress, or not yet collected. They harm nobody.
    """

    version: int = 0
    start: int = 0
    end: int = 0
    objects: int = 0
    records: int = 0
    size: int = 0
    problems: list[Problem] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    def add(self, kind: Kind, key: str, offset: int | None, text: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(kind, key, offset, text))
