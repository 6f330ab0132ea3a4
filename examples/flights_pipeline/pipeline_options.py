"""What both programs share: options, the Spark session, and errors that are for people."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nats.errors import Error as NatsError
from pyspark.errors import PySparkException

from delay_results import Results
from error_words import in_words
from liftpy_envelope.errors import LiftError
from liftpy_spark.jobs.sessions import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

__all__ = ["connection", "open_session", "parser", "positive", "results", "run", "tell"]

_FAILED: Final = 1
_INTERRUPTED: Final = 130


def parser(description: str) -> argparse.ArgumentParser:
    """The options that both programs take."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--servers", default="nats://127.0.0.1:4222", help="where NATS is")
    made.add_argument(
        "--s3-endpoint",
        default=os.environ.get("LIFTPY_TIER_ENDPOINT"),
        help="of the bucket of the nodes, where it is not AWS; AWS_* variables have the credentials",
    )
    made.add_argument("--stream", default="flights", help="the stream of flights")
    made.add_argument("--results", default="delays", help="the compacted stream of results")
    made.add_argument("--home", type=Path, default=Path("flights-pipeline"), help="for checkpoints and Delta tables")
    made.add_argument(
        "--late-days", type=positive, default=7, help="how late the message of a flight may come, in days"
    )
    made.add_argument("--master", default="local[2]", help="where Spark runs its tasks")
    made.add_argument("--memory", default="1g", help="of Spark's driver")
    made.add_argument("--json", action="store_true", help="print JSON, for scripts")
    return made


def positive(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def connection(given: argparse.Namespace) -> dict[str, str]:
    """How NATS and the bucket are reached, as Spark's format takes it."""
    options = {"servers": given.servers}
    return options | ({"s3.endpoint": given.s3_endpoint} if given.s3_endpoint else {})


def results(given: argparse.Namespace) -> Results:
    """Where results are."""
    return Results(connection(given), given.results, given.home)


@contextmanager
def open_session(given: argparse.Namespace) -> Iterator[SparkSession]:
    """A Spark session of bounded memory; `spark-submit` has settings of its own."""
    settings = {
        "spark.driver.memory": given.memory,
        "spark.sql.shuffle.partitions": "2",  # windows that are open are few; a checkpoint keeps this number for ever
        "spark.sql.catalogImplementation": "in-memory",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine takes its time to start a worker
    }
    with session(given.master, settings) as spark:
        spark.sparkContext.setLogLevel("OFF")  # what fails is told once, in words
        yield spark


def tell(given: argparse.Namespace, text: str) -> None:
    """Say how things go; on the standard error where JSON is to come."""
    print(text, file=sys.stderr if given.json else sys.stdout, flush=True)


def run(given: argparse.Namespace, work: Callable[[argparse.Namespace], tuple[dict[str, Any], int]]) -> int:
    """Run a program, print the JSON that it gives where that was asked for, and say what went wrong.

    Returns:
        The exit code.
    """
    try:
        report, code = work(given)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (LiftError, NatsError, OSError, PySparkException) as error:
        print(f"error: {in_words(error)}", file=sys.stderr)
        return _FAILED
    if given.json:
        print(json.dumps(report, default=str))
    return code
