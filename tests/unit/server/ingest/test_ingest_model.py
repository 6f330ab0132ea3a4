"""Any messages in any passes: what is stored and what is answered is what a simple model of a partition says."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples
from support.ingest_model import MESSAGE_BYTES_MAX, Model, answer_of, passes, plain, with_id
from support.server_kit import Kit

settings = st.fixed_dictionaries(
    {
        "sync": st.sampled_from(["always", "interval"]),
        "acks": st.sampled_from(["reply", "reply", "envelope", "off"]),
        "ack_policy": st.sampled_from(["all", "leader", "none"]),
        "compression": st.sampled_from(["none", "lz4"]),
        "keep_replies": st.booleans(),
    }
)


def sent(kit):
    kit.outbox.flush()
    return [answer_of(*ack) for ack in kit.acks()]


def check_not_early(answers, durable_end, stream):
    """No ack of a stored message before it is as durable as the stream promises."""
    for answer in answers:
        assert stream["sync"] != "always" or answer.offset is None or answer.offset < durable_end


def check(kit, model, answers, taken):
    key = lambda answer: (answer.destination, answer.offset or 0, answer.correlation or "", *map(repr, answer))
    assert sorted(model.answers, key=key) == sorted(answers, key=key)
    assert model.log == [(record.key, record.value, record.message_id) for record in kit.records()]
    assert list(range(len(model.log))) == [record.offset for record in kit.records()]
    counters = kit.stream.counters
    assert (len(model.log), model.lookalikes) == (counters.messages, counters.lookalikes)
    assert model.gaps == sum(gap.messages for gap in kit.gaps())
    refused = sum(answer.error is not None for answer in model.answers) + model.gaps
    assert refused == counters.refused.total()
    assert taken == refused + counters.duplicates + model.stored


def run(directory, stream, all_passes):
    kit = Kit(directory, message_bytes_max=MESSAGE_BYTES_MAX, **stream)
    model = Model(acks=stream["acks"], policy=stream["ack_policy"])
    answers = []
    for number, specs in enumerate(all_passes):
        for spec in specs:
            model.take(spec)
        kit.receive(*(spec.frame() for spec in specs))
        early = sent(kit)
        check_not_early(early, kit.log.synced_end, stream)
        answers += early
        if number % 2:
            kit.sync()
    kit.partition.end_pass()
    kit.sync()
    kit.outbox.flush()
    answers += sent(kit)
    return kit, model, answers


@given(settings, passes)
@examples(150)
def test_partition_does_what_the_model_does(stream, all_passes):
    with tempfile.TemporaryDirectory() as directory:
        kit, model, answers = run(Path(directory), stream, all_passes)
        check(kit, model, answers, sum(map(len, all_passes)))
        assert len(model.log) == kit.partition.high_watermark
        kit.close()


@given(settings, st.lists(st.lists(st.one_of(plain, with_id), min_size=1, max_size=12), min_size=1, max_size=4))
@examples(60)
def test_short_ways_do_what_the_model_does(stream, all_passes):
    with tempfile.TemporaryDirectory() as directory:
        kit, model, answers = run(Path(directory), stream, all_passes)
        check(kit, model, answers, sum(map(len, all_passes)))
        kit.close()
