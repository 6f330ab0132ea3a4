"""The client of liftpy: publish with acks, consume from any offset or time, administer. Needs no server package.

The only address a user gives is that of NATS. Requests and publishes go over NATS; consuming goes over a socket of
its own to the node that leads the partition, found through NATS.
"""

from liftpy_client.client import Lift, connect
from liftpy_client.message import Message

__all__ = ["Lift", "Message", "connect"]
