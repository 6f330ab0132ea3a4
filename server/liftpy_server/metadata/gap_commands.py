"""The command by which nodes tell of gaps, so that any node can list them, and no node's end makes them forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_server.gaps.gap import Gap, all_told, bounded
from liftpy_server.metadata.changes import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.changes import Draft

__all__ = ["GAP_OPERATIONS"]


def _record_gaps(draft: Draft, _now: int, *, causes: list[str], gaps: list[list[Any]]) -> dict[str, Any]:
    """Keep gaps, and what is news of those that are known. Told twice, or late, they are kept once.

    `gaps` are [stream name, uuid, partition, id, version, since, until, number of the cause, messages]. Who tells need
    not lead, nor have a session: what was missed was missed. Those of streams that are gone are passed over.
    """
    told: dict[tuple[str, str], dict[int, list[Gap]]] = {}
    for name, uuid, partition, gap_id, version, since_ns, until_ns, cause, messages in gaps:
        gap = Gap.from_plain([gap_id, version, since_ns, until_ns, causes[cause], messages])
        told.setdefault((name, uuid), {}).setdefault(partition, []).append(gap)
    kept = 0
    for (name, uuid), by_partition in told.items():
        stream = draft.stream(name)
        if stream is None or stream.uuid != uuid:
            continue
        known = dict(stream.gaps)
        for number, more in by_partition.items():
            if type(number) is not int or not 0 <= number < len(stream.partitions):
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"stream {name!r} has no partition {number!r:.80}")
            known[number] = bounded(all_told(known.get(number, ()), more))
            kept += len(more)
        draft.put_stream(replace(stream, gaps=known))
    return {"kept": kept}


GAP_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {"record_gaps": _record_gaps}
