"""Streams do not store what NATS, its clients and liftpy say to each other, unless the operator says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_envelope.errors import ConfigError
from liftpy_envelope.stream_config import StreamConfig
from liftpy_envelope.subject import covers, matches
from liftpy_server.admin.reserved import check_unreserved
from liftpy_server.settings.config import NodeConfig
from support.admin_cluster import AdminCluster

WATCHED = [">", "*.>", "*", "*.*", "*.API.>", "_INBOX.>", "_INBOX.*", "_INBOX.a.b", "LIFT.>", "LIFT.API.METADATA"]
WATCHED += ["LIFT.*.NODE.LEFT", "$SRV.>", "$SYS.ACCOUNT.>", "$JS.ACK.>", "$x"]


def stream(subject, **settings):
    return StreamConfig(**({"name": "s", "subject": subject, "acks": "off"} | settings))


def refused_field(config, **node):
    with pytest.raises(ConfigError, match="allow_reserved_subjects") as refused:
        check_unreserved(config, NodeConfig(**node))
    return refused.value.field


@pytest.mark.parametrize("subject", WATCHED)
@pytest.mark.parametrize("acks", ["off", "envelope"])
def test_what_others_say_is_not_stored(subject, acks):
    assert refused_field(stream(subject, acks=acks)) == "subject"
    assert refused_field(stream(subject), allow_reserved_subjects=("_INBOX.other", "$JS.API.>")) == "subject"
    check_unreserved(stream(subject), NodeConfig(allow_reserved_subjects=("orders.>", subject)))
    check_unreserved(stream(subject), NodeConfig(allow_reserved_subjects=(">",)))


@pytest.mark.parametrize("subject", ["orders", "orders.>", "orders.*.LIFT", "LIFT", "LIFTS.>", "_INBOXES.>", "a.$SYS"])
def test_everything_else_is(subject):
    check_unreserved(stream(subject), NodeConfig())


def test_an_inbox_prefix_of_the_nodes_is_theirs():
    nats = NatsOptions(inbox_prefix="replies.lift")
    assert refused_field(stream("replies.>"), nats=nats) == "subject"
    assert refused_field(stream("*.lift.>"), nats=nats) == "subject"
    check_unreserved(stream("replies.other"), NodeConfig(nats=nats))


def test_the_queue_group_of_services():
    assert refused_field(stream("orders", group="q")) == "group"
    check_unreserved(stream("orders", group="q"), NodeConfig(allow_reserved_subjects=("orders",)))
    check_unreserved(stream("orders", group="workers"), NodeConfig())


def test_a_setting_that_is_no_subject():
    with pytest.raises(ConfigError) as refused:
        NodeConfig(allow_reserved_subjects=("a b",))
    assert refused.value.field == "allow_reserved_subjects"


TOKENS = st.sampled_from(["a", "b", "*"])
PATTERNS = st.builds(
    lambda head, tail: ".".join([*head, *tail]), st.lists(TOKENS, min_size=1, max_size=3), st.sampled_from([[], [">"]])
)
LITERALS = [
    ".".join(each)
    for each in [
        (a, *rest)
        for a in "abc"
        for rest in [
            (),
            *((b,) for b in "abc"),
            *((b, c) for b in "abc" for c in "abc"),
            *((b, c, d) for b in "abc" for c in "abc" for d in "abc"),
            *((b, c, d, "c") for b in "abc" for c in "abc" for d in "abc"),
        ]
    ]
]


@given(PATTERNS, PATTERNS)
def test_a_pattern_covers_another_when_it_matches_all_that_does(wide, narrow):
    literals = [each for each in LITERALS if matches(narrow, each)]
    assert covers(wide, narrow) == all(matches(wide, each) for each in literals)


@pytest.mark.parametrize("settings", [{"subject": ">", "acks": "off"}, {"subject": "s.>", "group": "q"}])
async def test_neither_a_new_stream_nor_a_change_gets_there(tmp_path, settings):
    cluster = AdminCluster(tmp_path)
    cluster.create("s", ["n1"])
    with pytest.raises(ConfigError, match="allow_reserved_subjects"):
        await cluster["n2"].ask("STREAM.CREATE", name="t", **settings)
    with pytest.raises(ConfigError, match="allow_reserved_subjects"):
        await cluster["n2"].ask("STREAM.UPDATE", name="s", changes=settings)
    assert cluster.metadata.proposed == []
