"""The client of liftpy: publish with acks, consume from any offset or time, administer. Needs no server package.

The only address a user gives is that of NATS. Requests and publishes go over NATS; consuming goes over a socket of
its own to the node that leads the partition, found through NATS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftpy_client.client import Lift, connect
    from liftpy_client.message import Message

__all__ = ["Lift", "Message", "connect"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: a command that only lists streams needs no Arrow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"liftpy_client.{'message' if name == 'Message' else 'client'}"), name)
