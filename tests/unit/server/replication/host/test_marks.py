"""What a replica counts as committed, and whether it takes messages, after its role or its log has changed."""

from __future__ import annotations

from liftpy_envelope.errors import AckErrorCode
from support.nats_frames import msg


def publish(side, *numbers):
    side.kit.receive(*(msg(b"orders.x", b"v%d" % number, reply=b"r%d" % number) for number in numbers))


def test_who_begins_to_lead_with_too_few_in_sync_refuses_from_the_first_message_on(three):
    three.lead("a", 2, isr="a")
    assert not three["a"].partition.is_accepting
    publish(three["a"], 0)
    assert three["a"].kit.errors() == [(b"r0", AckErrorCode.NOT_ENOUGH_REPLICAS)]


def test_a_log_that_began_anew_is_committed_up_to_its_start(three):
    publish(three["a"], 0, 1, 2)
    three.run("a")
    three.lead("a", 2, isr="ab", told="ab")
    three.run("ab")
    three["a"].partition.purge(3)
    three.lead("a", 2, isr="ab")
    three.run()
    log = three["c"].partition.log
    assert (log.log_start, log.log_end) == (3, 3)
    assert three["c"].partition.high_watermark == 3
