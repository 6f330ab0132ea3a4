"""What changed between two states of the metadata: no stream is missed, and none is looked at without need."""

from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.metadata.state import PartitionInfo, StreamInfo
from liftpy_server.streams.changes import StreamChanges

FIRST, SECOND, THIRD = ("1" * 32, "2" * 32, "3" * 32)


def stream(name, uuid):
    partition = PartitionInfo(replicas=("a",), isr=("a",), leader="a", leader_epoch=1)
    config = StreamConfig(name=name, subject=f"{name}.>")
    return StreamInfo(uuid=uuid, config=config, created_ns=1, partitions=(partition,))


def as_bytes(*uuids):
    return {bytes.fromhex(uuid) for uuid in uuids}


def test_only_what_is_new_or_another_is_told():
    changes, orders, logs = StreamChanges(), stream("orders", FIRST), stream("logs", SECOND)
    assert changes.take({"orders": orders}) == ([], [orders])
    assert changes.take({"orders": orders, "logs": logs}) == ([], [logs])
    assert changes.take({"orders": orders, "logs": logs}) == ([], [])
    other = stream("orders", FIRST)
    gone, changed = changes.take({"orders": other, "logs": logs})
    assert gone == []
    assert changed[0] is other
    assert changes.known == as_bytes(FIRST, SECOND)


def test_a_stream_that_is_created_again_under_its_name_is_gone_and_new():
    changes, other = StreamChanges(), stream("orders", THIRD)
    changes.take({"orders": stream("orders", FIRST), "logs": stream("logs", SECOND)})
    assert changes.take({"orders": other}) == ([FIRST, SECOND], [other])
    assert changes.known == as_bytes(THIRD)


def test_what_failed_is_told_again_until_it_succeeds():
    changes, orders = StreamChanges(), stream("orders", FIRST)
    changes.take({"orders": orders})
    changes.failed(FIRST)
    assert changes.take({"orders": orders}) == ([], [orders])
    assert changes.take({"orders": orders}) == ([], [])
    changes.failed(FIRST)
    assert changes.take({}) == ([FIRST], [])
    changes.failed(FIRST)  # its directory could not be removed
    assert changes.take({}) == ([FIRST], [])
    assert changes.take({}) == ([], [])
