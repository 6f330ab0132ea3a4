"""Many commands as few log entries: `batch` commands of a bounded size, in the order they were given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import msgpack

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.unpacking import unpack
from liftpy_server.consensus.settings import COMMAND_BYTES_MAX
from liftpy_server.metadata.commands import COMMAND_BOUNDS, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Batch", "Proposal", "batches", "refuse_unfit"]

Proposal = tuple[str, "str | None", "Mapping[str, Any]"]
"""Op, command id or None for a new one, arguments."""

_BATCH_BYTES_MAX: Final = 200 * 1024
_ITEM_BYTES_MAX: Final = COMMAND_BYTES_MAX - 1024
_ITEMS_MAX: Final = 2_000


class Batch(NamedTuple):
    """Commands that go into one entry.

    Attributes:
        positions: Where each was in what was given.
        items: [id, op, args] of each.
    """

    positions: list[int]
    items: list[list[Any]]


def refuse_unfit(proposals: Sequence[Proposal]) -> dict[int, Outcome]:
    """The refusals of those that fit in no entry, by position."""
    refused: dict[int, Outcome] = {}
    for position, (op, command_id, args) in enumerate(proposals):
        try:
            encoded = msgpack.packb([command_id or "", op, dict(args)])
            unpack(encoded, COMMAND_BOUNDS)
        except (ValueError, ArithmeticError, TypeError, RecursionError) as error:
            text = f"{op}: an argument can not be written down: {error}"
            refused[position] = Outcome(error=ErrorCode.INVALID_REQUEST, message=text)
            continue
        if len(encoded) > _ITEM_BYTES_MAX:
            text = f"{op}: {len(encoded)} bytes; a command has no more than {_ITEM_BYTES_MAX}"
            refused[position] = Outcome(error=ErrorCode.INVALID_REQUEST, message=text)
    return refused


def batches(proposals: Sequence[Proposal], refused: Mapping[int, Outcome]) -> Iterator[Batch]:
    """The commands that are not refused, in order, divided into batches of at most the size of an entry."""
    batch, size = Batch([], []), 0
    for position, (op, command_id, args) in enumerate(proposals):
        if position in refused:
            continue
        item = [command_id or uuid4().hex, op, dict(args)]
        item_size = len(msgpack.packb(item))
        if batch.items and (size + item_size > _BATCH_BYTES_MAX or len(batch.items) >= _ITEMS_MAX):
            yield batch
            batch, size = Batch([], []), 0
        batch.positions.append(position)
        batch.items.append(item)
        size += item_size
    if batch.items:
        yield batch
