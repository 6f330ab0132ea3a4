"""The settings of a stream as options of `liftpy stream add` and `edit`, by the fields of `StreamConfig`.

An option has the name of its setting. The unit at the end of a name is left out: a time span says its own. What the
nats CLI calls otherwise is accepted by that name, too.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_type_hints

import typer

from liftpy.cli.gathering import gathered
from liftpy.cli.units import parse_bytes, parse_duration
from liftpy_client.errors import UsageError
from liftpy_envelope.stream_config import StreamConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CREATE_ONLY", "OPTIONS", "parsed", "stream_options"]


class _Option(NamedTuple):
    """How a setting is given.

    Attributes:
        help: Help for people.
        nats: What the nats CLI calls it, where that is another name.
    """

    help: str
    nats: str | None = None


OPTIONS: Final[dict[str, _Option]] = {
    "subject": _Option("NATS subject to store, wildcards included."),
    "partitions": _Option("Number of partitions."),
    "spread": _Option("How messages are assigned to partitions: hash or mapping."),
    "partition_prefix": _Option("First token of the subjects of --spread mapping."),
    "replicas": _Option("Number of replicas of each partition, on different nodes."),
    "min_isr": _Option("Fewest in-sync replicas that accept messages; by default a majority."),
    "unclean_leader_election": _Option(
        "Elect the best log left without an operator, where acknowledged messages may be lost."
    ),
    "observers": _Option("Number of observer replicas. Observers copy all records and never delay acks."),
    "group": _Option("NATS queue group to join; an empty name leaves it."),
    "acks": _Option("Where acks go: reply (subject), envelope (if it asks), or off."),
    "ack_policy": _Option("When the ack is sent: all (committed), leader, or none."),
    "sync": _Option("When records are fsynced: always (before the ack), interval or never."),
    "retention_age_s": _Option("Delete records older than this; 0 keeps them.", "--max-age"),
    "retention_bytes": _Option("Delete the oldest records beyond this, per partition.", "--max-bytes"),
    "retention_messages": _Option("Delete the oldest records beyond this, per partition.", "--max-msgs"),
    "message_bytes_max": _Option("Refuse larger messages.", "--max-msg-size"),
    "dedupe_window_s": _Option("Time for which message ids are remembered.", "--dupe-window"),
    "dedupe_ids_max": _Option("Number of message ids remembered per partition."),
    "segment_bytes": _Option("Size at which a segment is closed."),
    "segment_age_s": _Option("Age at which a segment is closed."),
    "compression": _Option("none, lz4 or zstd."),
    "keep_replies": _Option("Store reply subjects."),
    "compact": _Option("Keep the last record of every key."),
    "min_compaction_lag_s": _Option("Do not compact records younger than this."),
    "delete_retention_s": _Option("Time for which tombstones are kept."),
    "min_dirty_ratio": _Option("Fraction of uncompacted log that starts a compaction, 0 to 1."),
    "tier": _Option("Upload the stream to the cluster's bucket."),
    "local_retention_age_s": _Option("Delete older records from disk once they are in the bucket; 0 keeps them."),
    "local_retention_bytes": _Option("Delete the oldest beyond this, per partition, from disk once in the bucket."),
}
CREATE_ONLY: Final = ("partitions", "spread", "partition_prefix", "replicas", "observers")
_SHOWN_DEFAULTS: Final = {"partitions", "spread", "partition_prefix", "replicas"}
"""Fields whose default the help shows; all others are left to the node where they are not given."""


def _parser(name: str) -> Callable[[str], float] | None:
    if name.endswith("_s"):
        return parse_duration
    return parse_bytes if "bytes" in name else None


def parsed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, in the stream configuration's own units.

    Raises:
        UsageError: one can not be read.
    """
    settings = {name: value for name, value in given.items() if value is not None}
    return {name: value if (parse := _parser(name)) is None else _read(name, parse, value)
            for name, value in settings.items()}  # fmt: skip


def _read(name: str, parse: Callable[[str], float], text: str) -> float:
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{_flag(name)}: {error}") from None


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")


def _parameter(name: str, kind: Any) -> inspect.Parameter:
    parse = _parser(name)
    metavar = None if parse is None else "SPAN" if parse is parse_duration else "SIZE"
    plain = str if parse else next((each for each in (bool, int, float) if kind in {each, each | None}), str)
    flags = [_flag(name)]
    if plain is bool:
        flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"]
    elif nats := OPTIONS[name].nats:
        flags.append(nats)
    is_shown = name in _SHOWN_DEFAULTS
    default = StreamConfig.__dataclass_fields__[name].default if is_shown else None
    option = typer.Option(*flags, help=OPTIONS[name].help, metavar=metavar, show_default=is_shown)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=getattr(default, "value", default),
        annotation=Annotated[plain | None, option],
    )


def stream_options(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each setting of a stream; it gets what was given as `given`, for `parsed`.

    Args:
        left_out: Fields without an option.
    """
    kinds = get_type_hints(StreamConfig)
    options = [_parameter(name, kinds[name]) for name in OPTIONS if name not in left_out]
    return gathered("given", options, dict)
