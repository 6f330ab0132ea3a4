"""Every name that `import liftpy` offers, imported when the first of them is used."""

from liftpy_client.admin.details import (
    ClusterDetails,
    MoveDetails,
    NodeDetails,
    PartitionDetails,
    ReassignmentDetails,
    ReplicaDetails,
    StreamDetails,
)
from liftpy_client.admin.groups import GroupDetails, GroupMember, GroupOffset, GroupSummary
from liftpy_client.client import Lift, connect
from liftpy_client.consumer.consumer import BatchConsumer, Consumer
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.consumer.ranges import PandasMissingError, RangeTooLargeError
from liftpy_client.errors import (
    AdminError,
    ChangesMissedError,
    CommitRefusedError,
    ConsumerEndedError,
    CoordinatorUnavailableError,
    CorruptRecordsError,
    DisconnectedError,
    GroupFencedError,
    GroupRefusedError,
    HandlerFailedError,
    HandlerStuckError,
    LogDivergedError,
    NodeUnavailableError,
    NoStreamError,
    NotPermittedError,
    OffsetLostError,
    PublishTimeoutError,
    PullError,
    StreamGoneError,
    TableDecodeError,
    TableTimeoutError,
    TableTooLargeError,
    UndecodableError,
    UnreachableError,
    UsageError,
)
from liftpy_client.group.consumer import GroupConsumer
from liftpy_client.group.offsets import Committed
from liftpy_client.group.options import GroupOptions
from liftpy_client.group.transaction import Transaction
from liftpy_client.message import Message
from liftpy_client.processing.options import Batch, Retry
from liftpy_client.publisher.outgoing import PendingAck
from liftpy_client.publisher.publisher import Publisher
from liftpy_client.sync.client import SyncLift, SyncPublisher, connect_sync
from liftpy_client.sync.consumer import SyncConsumer, SyncGroupConsumer
from liftpy_client.sync.table import SyncTable
from liftpy_client.sync.typed import SyncTypedStream
from liftpy_client.table.changes import Change, Changes
from liftpy_client.table.table import Table
from liftpy_client.tracing.interceptors import Interceptor
from liftpy_client.tracing.otel import otel
from liftpy_client.typed.codecs import Codec, avro, json, msgpack, protobuf
from liftpy_client.typed.streams import TypedConsumer, TypedMessage, TypedStream
from liftpy_envelope.ack import Ack, AckPolicy, PublishRefusedError
from liftpy_envelope.errors import ConfigError, LiftError, SubjectInvalidError
from liftpy_envelope.headers import Headers
from liftpy_envelope.stream_config import AckMode, Compression, Spread, StreamConfig, SyncMode

__all__ = [
    "Ack",
    "AckMode",
    "AckPolicy",
    "AdminError",
    "Batch",
    "BatchConsumer",
    "Change",
    "Changes",
    "ChangesMissedError",
    "ClusterDetails",
    "Codec",
    "CommitRefusedError",
    "Committed",
    "Compression",
    "ConfigError",
    "ConsumeOptions",
    "Consumer",
    "ConsumerEndedError",
    "CoordinatorUnavailableError",
    "CorruptRecordsError",
    "DisconnectedError",
    "GroupConsumer",
    "GroupDetails",
    "GroupFencedError",
    "GroupMember",
    "GroupOffset",
    "GroupOptions",
    "GroupRefusedError",
    "GroupSummary",
    "HandlerFailedError",
    "HandlerStuckError",
    "Headers",
    "Interceptor",
    "Lift",
    "LiftError",
    "LogDivergedError",
    "Message",
    "MoveDetails",
    "NoStreamError",
    "NodeDetails",
    "NodeUnavailableError",
    "NotPermittedError",
    "OffsetLostError",
    "PandasMissingError",
    "PartitionDetails",
    "PendingAck",
    "PublishRefusedError",
    "PublishTimeoutError",
    "Publisher",
    "PullError",
    "RangeTooLargeError",
    "ReassignmentDetails",
    "ReplicaDetails",
    "Retry",
    "Spread",
    "StreamConfig",
    "StreamDetails",
    "StreamGoneError",
    "SubjectInvalidError",
    "SyncConsumer",
    "SyncGroupConsumer",
    "SyncLift",
    "SyncMode",
    "SyncPublisher",
    "SyncTable",
    "SyncTypedStream",
    "Table",
    "TableDecodeError",
    "TableTimeoutError",
    "TableTooLargeError",
    "Transaction",
    "TypedConsumer",
    "TypedMessage",
    "TypedStream",
    "UndecodableError",
    "UnreachableError",
    "UsageError",
    "avro",
    "connect",
    "connect_sync",
    "json",
    "msgpack",
    "otel",
    "protobuf",
]
