"""What can go wrong between Spark and liftpy, and how it reaches a person.

Spark shows an error of a Python data source with its traceback, unless the Python worker is told to hide it. A worker
in which one of our errors was raised ends with that, so telling it concerns nobody else.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BucketError",
    "BucketSilentError",
    "BucketUnreachableError",
    "DataLossError",
    "NatsError",
    "NatsSilentError",
    "NoSuchStreamError",
    "ReadStalledError",
    "plain_errors",
    "this_place",
]

_OF_WORKERS: Final = "SPARK_BUFFER_SIZE"  # Spark sets it for its Python workers, and for nobody else
_HIDES: Final = "SPARK_HIDE_TRACEBACK"


class NatsError(LiftError):
    """NATS, or a node behind it, can not be reached from where the message says."""


class NatsSilentError(NatsError):
    """NATS was reached before, and nobody answers now; `lift` may give a connection on which somebody does."""

    retriable = True


class BucketError(LiftError):
    """The bucket can not be read from where the message says."""


class BucketUnreachableError(BucketError):
    """The store of the bucket was never reached from where the message says."""


class BucketSilentError(BucketError):
    """The bucket was read before, and its store does not answer at the moment."""

    retriable = True


class NoSuchStreamError(LiftError):
    """A stream or partition that is to be read does not exist."""


class DataLossError(LiftError):
    """Records that are to be read are gone; with `failOnDataLoss` false this is a warning."""


class ReadStalledError(LiftError):
    """Nothing came for a long time, though there is something to read."""

    retriable = True


@contextmanager
def plain_errors() -> Iterator[None]:
    """Whatever of liftpy is raised within is shown without a traceback by the Python worker that this is."""
    try:
        yield
    except LiftError:
        if _OF_WORKERS in os.environ:
            os.environ[_HIDES] = "1"
        raise


def this_place() -> str:
    """Where this runs, for messages: the driver, or an executor and its host."""
    from pyspark import TaskContext  # noqa: PLC0415 (the driver's own process may have no Spark)

    return "the driver" if TaskContext.get() is None else f"an executor on {socket.gethostname()}"
