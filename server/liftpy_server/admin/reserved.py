"""Which subjects streams may store: not those on which NATS, its clients and liftpy speak, unless the operator says so.

Replies to requests arrive under `_INBOX.`: a stream on `>` would keep what nodes tell clients, their tokens included.
Services share their requests in a queue group: a stream in it would take a part of them, and nobody would answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nats.micro.service import DEFAULT_QUEUE_GROUP

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.subject import covers, overlaps, reserved_overlap

if TYPE_CHECKING:
    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_server.settings.config import NodeConfig

__all__ = ["check_unreserved"]

_SETTING: Final = "allow_reserved_subjects"


def check_unreserved(stream: StreamConfig, node: NodeConfig) -> None:
    """Refuse a stream that stores what is not for streams.

    Args:
        stream: Stream to be created, or as it would be after a change.
        node: Names the subjects that may be stored all the same.

    Raises:
        ConfigError: it does.
    """
    if stream.is_internal or any(covers(allowed, stream.subject) for allowed in node.allow_reserved_subjects):
        return
    inboxes = f"{node.nats.inbox_prefix}.>"
    for subject in {stream.subject, stream.partition_subject(0)}:
        found = reserved_overlap(subject) or (inboxes if overlaps(inboxes, subject) else None)
        if found is not None:
            text = (
                f"{stream.subject!r:.200} overlaps {found}: the stream would store what NATS, its clients and liftpy "
                f"say to each other, tokens included; to store it all the same, list it in {_SETTING} of all nodes"
            )
            raise ConfigError("subject", text)
    if stream.group == DEFAULT_QUEUE_GROUP:
        text = (
            f"{DEFAULT_QUEUE_GROUP!r} is the queue group of NATS services: the stream would take requests that they "
            f"are to answer; use another one, or list the subject in {_SETTING} of all nodes"
        )
        raise ConfigError("group", text)
