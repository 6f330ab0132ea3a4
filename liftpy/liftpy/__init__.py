"""liftpy: durable streams for the NATS you already run.

async with liftpy.connect("nats://127.0.0.1:4222") as lift:
    await lift.create_stream("orders", subject="orders.>")
    ack = await lift.publish("orders.new", b"...", key=b"42")
    async for message in lift.consume("orders", start="earliest"):
        ...

In scripts and notebooks `connect_sync` does the same without asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftpy.public import *  # noqa: F403 - the names, for type checkers
    from liftpy.public import __all__ as __all__


def __getattr__(name: str) -> Any:
    public = import_module("liftpy.public")
    if name == "__all__" or name in public.__all__:
        return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *import_module("liftpy.public").__all__]
