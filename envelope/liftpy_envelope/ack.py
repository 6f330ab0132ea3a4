"""Acks and error acks, in the JSON that JetStream clients already parse.

    {"stream":"orders","seq":43,"offset":42,"partition":0,"epoch":7,"count":1}

`seq` is the offset plus one, because JetStream counts from one. For a batch the numbers are those of its last record
and `count` is its size. `duplicate` and `correlation_id` stand only where they apply. A refusal carries
`{"type": ..., "error": {"code", "err_code", "description"}, "stream": ...}`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from liftpy_envelope.errors import AckErrorCode, LiftError
from liftpy_envelope.limits import ACK_BYTES_MAX

__all__ = [
    "ACK_TYPE",
    "Ack",
    "AckPolicy",
    "AckUnreadableError",
    "PublishRefusedError",
    "decode_ack",
    "encode_ack",
]
__all__ += ["encode_error_ack"]

ACK_TYPE: Final = "io.nats.jetstream.api.v1.pub_ack_response"


class AckPolicy(StrEnum):
    """When a message is acknowledged."""

    LEADER = "leader"  # durable on the leader
    ALL = "all"  # durable on every in-sync replica
    NONE = "none"  # never


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """A message, or a batch of them, is stored as its ack policy says.

    Attributes:
        offset: Offset of the message; of the last one in a batch.
        count: How many records the ack covers; the first has offset `offset - count + 1`.
        duplicate: The message was stored before, at this offset, and was not stored again.
    """

    stream: str
    offset: int
    partition: int = 0
    epoch: int = 0
    count: int = 1
    duplicate: bool = False
    correlation_id: str | None = None


class AckUnreadableError(LiftError):
    """The reply is not an ack of liftpy: something else answers on this subject."""


class PublishRefusedError(LiftError):
    """The node refused the message and says why.

    Attributes:
        code: Why, as a stable number.
        stream: The stream that refused it.
        correlation_id: Correlation id of the refused message.
    """

    def __init__(self, code: int, message: str, stream: str | None = None, correlation_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.stream = stream
        self.correlation_id = correlation_id

    @property
    def may_be_stored(self) -> bool:
        """Whether the message may have been stored all the same."""
        return self.code == AckErrorCode.OUTCOME_UNKNOWN


def encode_ack(ack: Ack) -> bytes:
    """The JSON of one ack."""
    tail = ',"duplicate":true' if ack.duplicate else ""
    if ack.correlation_id is not None:
        tail += f',"correlation_id":{json.dumps(ack.correlation_id)}'
    return (
        f'{{"stream":"{ack.stream}","seq":{ack.offset + 1},"offset":{ack.offset},"partition":{ack.partition},'
        f'"epoch":{ack.epoch},"count":{ack.count}{tail}}}'
    ).encode()


def encode_error_ack(
    code: AckErrorCode, description: str, stream: str | None = None, correlation_id: str | None = None
) -> bytes:
    """The JSON of one refusal."""
    body: dict[str, Any] = {
        "type": ACK_TYPE,
        "error": {"code": code.http_status, "err_code": int(code), "description": description},
    }
    if stream is not None:
        body["stream"] = stream
    if correlation_id is not None:
        body["correlation_id"] = correlation_id
    return json.dumps(body).encode()


def decode_ack(data: bytes) -> Ack:
    """Read an ack.

    Raises:
        PublishRefusedError: it is a refusal.
        AckUnreadableError: it is no ack at all.
    """
    if len(data) > ACK_BYTES_MAX:
        raise AckUnreadableError(f"the reply is no ack: {len(data)} bytes, that begin with {data[:80]!r}")
    try:
        body = json.loads(data)
        get = body.get
        error, stream, correlation_id = get("error"), get("stream"), get("correlation_id")
        if correlation_id is not None and type(correlation_id) is not str:
            raise TypeError("correlation_id is no text")
        if error is not None:
            raise _refusal(error, stream, correlation_id)
        sequence = body["seq"]
        offset = get("offset", sequence - 1)
        partition, epoch, count = get("partition", 0), get("epoch", 0), get("count", 1)
        is_whole = type(offset) is type(partition) is type(epoch) is type(count) is type(sequence) is int
        if not is_whole or type(stream) is not str or sequence < 1:
            raise TypeError("the reply lacks the stream or one of the numbers of an ack")
        return Ack(
            stream=stream,
            offset=offset,
            partition=partition,
            epoch=epoch,
            count=count,
            duplicate=bool(get("duplicate", False)),
            correlation_id=correlation_id,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AckUnreadableError(f"the reply is no ack: {data[:80]!r}") from error


def _refusal(error: dict[str, Any], stream: object, correlation_id: str | None) -> PublishRefusedError:
    code = error["err_code"]
    if type(code) is not int or not (stream is None or isinstance(stream, str)):
        raise TypeError("err_code is no whole number, or stream is no text")
    return PublishRefusedError(code, str(error.get("description", "")), stream, correlation_id)
