"""Whether what a pipeline made of the flights is what they say: their delays, added up here once more. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from liftpy.demo.check import CheckFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from liftpy.demo.flights import Flight

__all__ = ["check_pipeline", "delays_of", "windows_of"]

_LATE_MIN: Final = 15
_CLOCKS: Final = 1


def delays_of(flights: Iterable[Flight]) -> dict[str, dict[str, Any]]:
    """By carrier: how many `flights`, `cancelled` ones, `late` ones (15 minutes or more), and `delay_sum_min`."""
    sums: dict[str, dict[str, Any]] = {}
    for flight in flights:
        row = json.loads(flight.payload)
        name, delay_min = row["carrier"], row["dep_delay"]
        of_carrier = sums.setdefault(name, {"name": name, "flights": 0, "cancelled": 0, "late": 0, "delay_sum_min": 0})
        of_carrier["flights"] += 1
        of_carrier["cancelled"] += delay_min is None
        of_carrier["late"] += delay_min is not None and delay_min >= _LATE_MIN
        of_carrier["delay_sum_min"] += delay_min or 0
    return sums


def check_pipeline(
    streaming: Mapping[str, Any], batch: Mapping[str, Any], flights: Iterable[Flight], *, records: int, stored: int
) -> None:
    """See that all was read, nothing came too late, all agree to the row, and the sums are those of the flights.

    Args:
        streaming: What the streaming job reported.
        batch: What the batch job reported.
        flights: All of them.
        records: How many there are.
        stored: How many records the stream of results has.

    Raises:
        CheckFailedError: something is otherwise.
    """
    faults = [*_of_rows(streaming, batch), *_of_counts(batch, records)]
    rows = windows_of(batch)
    if stored != sum(rows.values()):
        faults.append(f"the stream of results has {stored:,} records, and there are {sum(rows.values()):,} windows")
    if {row["name"]: row for row in batch["carriers"]} != delays_of(flights):
        faults.append("the sums of carriers are not those of the flights")
    if faults:
        raise CheckFailedError(f"the pipeline: {'; '.join(faults)}")


def windows_of(batch: Mapping[str, Any]) -> dict[str, int]:
    """How many windows there are, by grouping."""
    return {each["grouping"]: each["rows"] for each in batch["compared"]}


def _of_rows(streaming: Mapping[str, Any], batch: Mapping[str, Any]) -> Iterator[str]:
    for name, query in streaming.items():
        if query["dropped"]:
            yield f"for the query {name}, {query['dropped']:,} rows came too late"
    compared = {(each["grouping"], each["where"]) for each in batch["compared"]}
    if compared != {(name, where) for name in streaming for where in ("stream", "table")}:
        yield f"only this was compared: {sorted(compared)}"
    for each in batch["compared"]:
        if each["differ"]:
            yield f"of {each['rows']:,} rows by {each['grouping']}, {each['differ']:,} differ in the {each['where']}"


def _of_counts(batch: Mapping[str, Any], records: int) -> Iterator[str]:
    if batch["records"] != records + _CLOCKS:
        yield f"history has {batch['records']:,} records of {records + _CLOCKS:,}"
    for name, count in batch["flights_by_grouping"].items():
        if count != records:
            yield f"the windows by {name} hold {count:,} flights of {records:,}"
