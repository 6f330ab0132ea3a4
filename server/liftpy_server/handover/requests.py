"""What the old leader and the next one say to each other: JSON, over NATS, proven like every request between nodes.

HANDOVER.LISTEN   name, partitions [uuid, number, leader epoch]    hear and hold; publish marks
                  -> tokens of the marks, partitions: which of them, by position; why not the others
HANDOVER.TAKE     name, stored [uuid, number, marks, refused]      what the old leader has stored, for good, and refused
                  -> partitions: which of them are ready to be led, by uuid and number
HANDOVER.GIVE     nothing                                          hand over all that others can lead
                  -> given: how many, left: how many not
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ListenAnswer", "ListenRequest", "TakeRequest", "read_keys", "show_keys"]


class ListenRequest(NamedTuple):
    """Partitions, with the leader epoch that is to end."""

    name: str
    partitions: dict[PartitionKey, int]

    def to_plain(self) -> dict[str, Any]:
        """The fields as JSON values."""
        rows = [[key.uuid.hex(), key.partition, epoch] for key, epoch in self.partitions.items()]
        return {"name": self.name, "partitions": rows}

    @classmethod
    def from_plain(cls, body: dict[str, Any]) -> ListenRequest:
        """Read fields that `to_plain` wrote.

        Raises:
            ConfigError: it is malformed.
        """
        with_errors = _Reading(body)
        rows = with_errors.rows("partitions", (str, int, int))
        return cls(with_errors.text("name"), {_key(uuid, number): epoch for uuid, number, epoch in rows})


class ListenAnswer(NamedTuple):
    """The marks that were published, and the partitions that are held."""

    tokens: list[str]
    partitions: list[PartitionKey]
    why: str

    def to_plain(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {"tokens": self.tokens, "partitions": show_keys(self.partitions), "why": self.why}

    @classmethod
    def from_plain(cls, body: dict[str, Any]) -> ListenAnswer:
        """Read fields that `to_plain` wrote.

        Raises:
            ConfigError: it is malformed.
        """
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ConfigError("tokens", "must be a list of texts")
        return cls(tokens, read_keys(body), _Reading(body).text("why"))


class TakeRequest(NamedTuple):
    """Request to take partitions: the end of the old leader's log at each mark, and the messages that it refused."""

    name: str
    stored: dict[PartitionKey, tuple[int, ...]]
    refused: dict[PartitionKey, list[str]]

    def to_plain(self) -> dict[str, Any]:
        """The fields as JSON values."""
        rows = [[key.uuid.hex(), key.partition, list(marks), self.refused[key]] for key, marks in self.stored.items()]
        return {"name": self.name, "stored": rows}

    @classmethod
    def from_plain(cls, body: dict[str, Any]) -> TakeRequest:
        """Read fields that `to_plain` wrote.

        Raises:
            ConfigError: it is malformed.
        """
        with_errors = _Reading(body)
        stored, refused = {}, {}
        for uuid, number, marks, names in with_errors.rows("stored", (str, int, list, list)):
            if any(type(mark) is not int for mark in marks) or sorted(marks) != marks:
                raise ConfigError("stored", "marks must be offsets, in order")
            if any(type(name) is not str for name in names):
                raise ConfigError("stored", "messages that were refused must be named by texts")
            stored[_key(uuid, number)], refused[_key(uuid, number)] = tuple(marks), names
        return cls(with_errors.text("name"), stored, refused)


def show_keys(keys: Iterable[PartitionKey]) -> list[list[Any]]:
    """Keys of partitions as JSON values."""
    return [[key.uuid.hex(), key.partition] for key in keys]


def read_keys(body: dict[str, Any]) -> list[PartitionKey]:
    """The partitions of an answer.

    Raises:
        ConfigError: it is malformed.
    """
    return [_key(uuid, number) for uuid, number in _Reading(body).rows("partitions", (str, int))]


def _key(uuid: str, number: int) -> PartitionKey:
    try:
        return PartitionKey(bytes.fromhex(uuid), number)
    except ValueError:
        raise ConfigError("partitions", f"{uuid!r:.40} is no uuid") from None


class _Reading:
    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body

    def text(self, name: str) -> str:
        value = self._body.get(name)
        if not isinstance(value, str):
            raise ConfigError(name, "must be a text")
        return value

    def rows(self, name: str, kinds: tuple[type, ...]) -> list[list[Any]]:
        rows = self._body.get(name)
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise ConfigError(name, "must be a list of lists")
        if any([type(each) for each in row] != list(kinds) for row in rows):
            raise ConfigError(name, f"must be lists of {', '.join(kind.__name__ for kind in kinds)}")
        return rows
