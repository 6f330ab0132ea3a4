"""What to do in place of an option that does not exist: told to who comes from elsewhere, or misspelled a name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from liftpy_spark.options.names import SINK_OPTIONS, SOURCE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_TABLE", "hint_for"]

NO_TABLE: Final = (
    "CREATE TABLE keeps no options of a data source in Python; make a view: "
    "CREATE TEMPORARY VIEW v USING liftpy OPTIONS (servers '...', subscribe '...')"
)

_NO_PATH: Final = "load() and save() take no path here; streams are named by options of their own"
_STREAM: Final = "what to write to is said by 'stream', what to read by 'subscribe'"
_NO_GROUP: Final = "a query is no consumer group, and keeps its offsets in its checkpoint; leave it out"
_NO_WAITING: Final = "a batch waits for nothing; let batches begin less often: trigger(processingTime='1 minute')"
_NO_CHOICE: Final = "how long nodes are waited for is fixed; leave it out"
_OF_NATS: Final = "credentials of NATS are in the file of 'credentialsFile', or in a 'context' of the nats CLI"
_HINTS: Final = {
    "path": _NO_PATH,
    "stream": _STREAM,
    "streams": _STREAM,
    "subscribe": _STREAM,
    "topic": _STREAM,
    "topics": _STREAM,
    "kafka.bootstrap.servers": "NATS takes the place of the brokers: the option 'servers' says where it is",
    "kafka.group.id": _NO_GROUP,
    "groupidprefix": _NO_GROUP,
    "minoffsetspertrigger": _NO_WAITING,
    "maxtriggerdelay": _NO_WAITING,
    "kafkaconsumer.polltimeoutms": _NO_CHOICE,
    "fetchoffset.numretries": _NO_CHOICE,
    "fetchoffset.retryintervalms": _NO_CHOICE,
    "maxrecordspertrigger": "records are counted by their offsets: 'maxOffsetsPerTrigger'",
    "maxrecordsperpartition": "'minPartitions' makes more tasks, and so smaller ones",
    "includeheaders": "headers are written where there is a column headers; leave it out",
    "checkpointlocation": "a checkpoint is of a streaming query: give it to df.writeStream",
    "mode": "it is no option: df.write.mode('append')",
    "outputmode": "it is no option: df.writeStream.outputMode('append')",
    "user": _OF_NATS,
    "username": _OF_NATS,
    "password": _OF_NATS,
    "token": _OF_NATS,
    "nkey": _OF_NATS,
    "owner": NO_TABLE,
    "provider": NO_TABLE,
}
"""By names in lower case."""

_OF_KAFKA: Final = "options of Kafka's clients mean nothing to NATS; leave it out"
_SECRETS: Final = ("accesskey", "secretkey", "secretaccess", "sessiontoken")
_NO_SECRETS: Final = (
    "credentials of the bucket are no options, which Spark may show: the environment of driver and executors has them, "
    "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the role of the machine"
)
_OF_READING: Final = "it is of reading: spark.read and spark.readStream; leave it out"
_OF_WRITING: Final = "it is of writing: df.write and df.writeStream; leave it out"
_ELSEWHERE: Final = {name.lower(): _OF_READING for name in SOURCE_OPTIONS} | {
    name.lower(): _OF_WRITING for name in SINK_OPTIONS
}


def hint_for(key: str, spelled: Mapping[str, str]) -> str:
    """What may have been meant by an option that does not exist, or what to do instead.

    Args:
        key: Name of the option, as it was given.
        spelled: The options that there are, by their names in lower case.
    """
    name = key.lower()
    letters = "".join(filter(str.isalnum, name))
    if any(secret in letters for secret in _SECRETS):
        return _NO_SECRETS
    if name in _HINTS:
        return _HINTS[name]
    if name.startswith("kafka."):
        return _OF_KAFKA
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    near = difflib.get_close_matches(name, spelled, n=1)
    known = ", ".join(sorted(set(spelled.values()), key=str.lower))
    return f"did you mean {spelled[near[0]]!r}?" if near else f"the options are {known}"
