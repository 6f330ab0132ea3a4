"""The canary's process: gets its settings as a line on its standard input, tells of each message, and ends with it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from nats.errors import Error

from liftpy_client.client import connect_as
from liftpy_client.connection.nats_options import NatsOptions
from liftpy_envelope.errors import LiftError
from liftpy_envelope.settings import parse_settings
from liftpy_server.canary.canary import Canary
from liftpy_server.settings.canary import CanaryConfig
from liftpy_server.settings.tier import store_settings
from liftpy_server.workers.child_process import become_child, leave
from liftpy_server.workers.json_lines import read_line, to_line

if TYPE_CHECKING:
    from liftpy_server.canary.canary import ReadBucket
    from liftpy_server.canary.ledger import Ledger

__all__ = ["main"]

_NICENESS: Final = 5


def main() -> None:
    """Run until the node goes."""
    become_child(_NICENESS)
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr)
    settings = read_line(sys.stdin.buffer.readline())
    try:
        asyncio.run(_run(settings))
    except asyncio.CancelledError:
        pass  # the node wants it to end
    except (LiftError, Error, OSError) as error:
        _tell({"problem": f"{error!s:.500}"})
        sys.exit(1)


async def _run(settings: dict[str, Any]) -> None:
    config = parse_settings(CanaryConfig, settings["canary"])
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end_with_input() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(task.cancel)

    threading.Thread(target=end_with_input, daemon=True).start()
    async with connect_as(NatsOptions(**settings["nats"]), name=settings["name"]) as lift:
        await Canary(lift, config, settings["group"], _bucket(settings["tier"]), _tell_of).run(None)


def _bucket(tier: dict[str, Any] | None) -> ReadBucket | None:
    if tier is None:
        return None
    from liftpy_bucket.store.s3 import S3Store  # noqa: PLC0415 - only where there is a bucket
    from liftpy_server.canary.bucket import BucketLook  # noqa: PLC0415

    return BucketLook(S3Store(store_settings(tier)))


def _tell_of(ledger: Ledger) -> None:
    _tell(ledger.take().to_plain())


def _tell(message: dict[str, Any]) -> None:
    try:
        sys.stdout.buffer.write(to_line(message))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        leave()


if __name__ == "__main__":
    main()
