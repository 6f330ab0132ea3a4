"""liftpy: durable streams for the NATS you already run.

async with liftpy.connect("nats://127.0.0.1:4222") as lift:
    await lift.create_stream("orders", subject="orders.>")
    ack = await lift.publish("orders.new", b"...", key=b"42")
    async for message in lift.consume("orders", start="earliest"):
        ...
"""

from liftpy_client.admin import PartitionDetails, StreamDetails
from liftpy_client.client import Lift, connect
from liftpy_client.consumer import BatchConsumer, ConsumeOptions, Consumer
from liftpy_client.details import ClusterDetails, MoveDetails, NodeDetails, ReassignmentDetails, ReplicaDetails
from liftpy_client.errors import (
    AdminError,
    CorruptRecordsError,
    DisconnectedError,
    LogDivergedError,
    NodeUnavailableError,
    NoStreamError,
    OffsetLostError,
    PublishTimeoutError,
    PullError,
    StreamGoneError,
    UnreachableError,
    UsageError,
)
from liftpy_client.message import Message
from liftpy_client.outgoing import PendingAck
from liftpy_client.publisher import Publisher
from liftpy_envelope.ack import Ack, AckPolicy, PublishRefusedError
from liftpy_envelope.errors import ConfigError, LiftError
from liftpy_envelope.stream_config import AckMode, Compression, Spread, StreamConfig, SyncMode

__all__ = [
    "Ack",
    "AckMode",
    "AckPolicy",
    "AdminError",
    "BatchConsumer",
    "ClusterDetails",
    "Compression",
    "ConfigError",
    "ConsumeOptions",
    "Consumer",
    "CorruptRecordsError",
    "DisconnectedError",
    "Lift",
    "LiftError",
    "LogDivergedError",
    "Message",
    "MoveDetails",
    "NoStreamError",
    "NodeDetails",
    "NodeUnavailableError",
    "OffsetLostError",
    "PartitionDetails",
    "PendingAck",
    "PublishRefusedError",
    "PublishTimeoutError",
    "Publisher",
    "PullError",
    "ReassignmentDetails",
    "ReplicaDetails",
    "Spread",
    "StreamConfig",
    "StreamDetails",
    "StreamGoneError",
    "SyncMode",
    "UnreachableError",
    "UsageError",
    "connect",
]
