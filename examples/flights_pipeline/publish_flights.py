"""Publish the flights that left New York in 2013, in the order in which they left, for streaming.py to read."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from itertools import islice
from typing import TYPE_CHECKING, Final

import liftpy
from liftpy.demo.flights import FLIGHTS_COUNT, load_flights
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftpy.demo.flights import Flight

_CLOCK: Final = {"clock": "2014-02-01T00:00:00"}
_LINGER_S: Final = 0.005
_AHEAD: Final = 500  # half a day: what the publisher holds may change places, since it goes by subject
_FAILED: Final = 1


async def publish(servers: str, subject: str, flights: Iterable[Flight], *, clock: bool) -> int:
    """Publish flights, each below a subject, and wait until all are stored; gives how many.

    They are stored in their order, but for `_AHEAD` of them at a time: what comes days late is in no window.

    Args:
        servers: where NATS is.
        subject: what the subjects of all flights begin with.
        flights: which.
        clock: whether to say afterwards that no more come, which closes the last windows.

    Raises:
        LiftError: one was refused, or nobody acknowledges it.
    """
    count = 0
    async with liftpy.connect(servers) as lift:
        async with lift.publisher(linger_s=_LINGER_S) as publisher:
            for flight in flights:
                if count % _AHEAD == 0:
                    await publisher.flush()
                await publisher.publish(f"{subject}.{flight.subject.partition('.')[2]}", flight.payload)
                count += 1
        if clock:
            await lift.publish(f"{subject}.clock", json.dumps(_CLOCK).encode())
    return count


def _whole(text: str) -> int:
    """A whole number, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; gives the exit code."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--servers", default="nats://127.0.0.1:4222", help="where NATS is")
    made.add_argument("--subject", default="flights", help="what the subjects of all flights begin with")
    made.add_argument("--first", type=_whole, default=0, help="begin with this one; 0 is the first of the year")
    made.add_argument("--count", type=_whole, default=FLIGHTS_COUNT, help="publish so many")
    made.add_argument("--clock", action="store_true", help="say then that no more come, which closes the last windows")
    given = made.parse_args(arguments)
    try:
        flights = islice(load_flights(), given.first, given.first + given.count)
        count = asyncio.run(publish(given.servers, given.subject, flights, clock=given.clock))
    except LiftError as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILED
    print(f"{count:,} flights published")
    return 0


if __name__ == "__main__":
    sys.exit(main())
