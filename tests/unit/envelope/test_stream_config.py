"""Proves that a stream's configuration is complete, within its bounds, and the same after every crossing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.errors import ConfigError
from liftpy_envelope.stream_config import AckMode, Compression, Spread, StreamConfig, SyncMode
from support.damage import attempt
from support.examples import examples

MINIMAL = {"name": "orders", "subject": "orders.>"}
DEFAULTS = {
    "name": "orders",
    "subject": "orders.>",
    "partitions": 1,
    "spread": "hash",
    "partition_prefix": "lift",
    "group": None,
    "replicas": 1,
    "observers": 0,
    "min_isr": None,
    "unclean_leader_election": False,
    "acks": "reply",
    "ack_policy": "all",
    "sync": "always",
    "retention_age_s": 0.0,
    "retention_bytes": 0,
    "retention_messages": 0,
    "segment_bytes": 268_435_456,
    "segment_age_s": 86_400.0,
    "dedupe_window_s": 120.0,
    "dedupe_ids_max": 6_000_000,
    "message_bytes_max": 67_108_864,
    "compression": "none",
    "keep_replies": False,
    "compact": False,
    "min_compaction_lag_s": 0.0,
    "delete_retention_s": 86_400.0,
    "min_dirty_ratio": 0.5,
    "tier": True,
    "local_retention_age_s": 0.0,
    "local_retention_bytes": 0,
}
BOUNDS = {
    "partitions": (1, 1_024),
    "replicas": (1, 7),
    "observers": (0, 16),
    "retention_age_s": (0, 1e10),
    "retention_bytes": (0, 2**63),
    "retention_messages": (0, 2**63),
    "segment_bytes": (65_536, 2**31),
    "segment_age_s": (1, 1e10),
    "dedupe_window_s": (0, 86_400),
    "dedupe_ids_max": (0, 100_000_000),
    "message_bytes_max": (1, 67_108_864),
    "min_compaction_lag_s": (0, 1e10),
    "delete_retention_s": (0, 1e10),
    "min_dirty_ratio": (0, 1),
    "local_retention_age_s": (0, 1e10),
    "local_retention_bytes": (0, 2**63),
}
FLOATS = (
    "retention_age_s",
    "segment_age_s",
    "dedupe_window_s",
    "min_compaction_lag_s",
    "delete_retention_s",
    "min_dirty_ratio",
    "local_retention_age_s",
)
NAMES = st.text("abcXYZ019_-", min_size=1, max_size=20).filter(lambda name: not name.startswith("__"))
SUBJECTS = st.lists(st.text("abcxyz*", min_size=1, max_size=5), min_size=1, max_size=4).map(
    lambda tokens: ".".join(["a", *tokens])
)


@st.composite
def configs(draw):
    numbers = {}
    for name, (low, high) in BOUNDS.items():
        numbers[name] = draw(st.floats(low, high) if name in FLOATS else st.integers(low, high))
    for name in ("retention_age_s", "retention_bytes"):
        if 0 < numbers[name] < numbers[f"local_{name}"]:
            numbers[f"local_{name}"] = 0
    spread = draw(st.sampled_from(Spread))
    may_join = numbers["replicas"] == 1 and (numbers["partitions"] == 1 or spread is Spread.MAPPING)
    return StreamConfig(
        name=draw(NAMES),
        subject=draw(SUBJECTS),
        spread=spread,
        partition_prefix=draw(NAMES),
        group=draw(st.none() | NAMES) if may_join else None,
        min_isr=draw(st.none() | st.integers(1, numbers["replicas"])),
        acks=draw(st.sampled_from(AckMode)),
        ack_policy=draw(st.sampled_from(AckPolicy)),
        sync=draw(st.sampled_from(SyncMode)),
        compression=draw(st.sampled_from(Compression)),
        unclean_leader_election=draw(st.booleans()),
        keep_replies=draw(st.booleans()),
        compact=draw(st.booleans()),
        tier=draw(st.booleans()),
        **numbers,
    )


def config(**changes):
    return StreamConfig.from_plain(MINIMAL | changes)


def refused_field(**changes):
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert str(caught.value).startswith(caught.value.field)
    return caught.value.field


def test_defaults_are_the_documented_ones():
    assert config().to_plain() == DEFAULTS
    assert StreamConfig(name="orders", subject="orders.>") == config()


def test_choices_are_spelled_as_documented():
    assert [mode.value for mode in AckMode] == ["reply", "envelope", "off"]
    assert [spread.value for spread in Spread] == ["hash", "mapping"]
    assert [mode.value for mode in SyncMode] == ["always", "interval", "never"]
    assert [compression.value for compression in Compression] == ["none", "lz4", "zstd"]


@examples(150)
@given(configs())
def test_round_trip(stream):
    plain = stream.to_plain()
    assert stream == StreamConfig.from_plain(plain)
    assert stream == StreamConfig.from_plain(json.loads(json.dumps(plain)))
    assert set(DEFAULTS) == set(plain)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_inclusive(name):
    for value in BOUNDS[name]:
        assert value == getattr(config(**{name: value}), name)


@pytest.mark.parametrize("name", BOUNDS)
def test_beyond_its_bounds_a_field_is_refused_by_name(name):
    low, high = BOUNDS[name]
    outside = (low - 0.5, high + 1e6, float("-inf"), float("inf"), float("nan")) if name in FLOATS else ()
    for value in (low - 1, int(high) + 1, -(2**63), 2**64, *outside):
        assert name == refused_field(**{name: value})


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("number", [10**309, -(10**309)], ids=["large", "small"])
def test_enormous_numbers_are_refused_by_name(name, number):
    assert name == refused_field(**{name: number})


@pytest.mark.parametrize("name", ["partitions", "retention_bytes", "retention_age_s"])
def test_numbers_too_large_to_print_are_refused_by_name(name):
    assert name == refused_field(**{name: 1 << 20_000})


@pytest.mark.parametrize("name", sorted(set(BOUNDS) - set(FLOATS)))
@pytest.mark.parametrize("value", [1.0, 1.5, float("nan"), float("inf"), True, "1", None])
def test_whole_numbers_are_not_guessed(name, value):
    assert name == refused_field(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("name", value) for value in ("", "a b", "a.b", "x" * 129, "\xe9", None, 7)],
        *[
            ("subject", value)
            for value in ("", "a b", "a..b", ".a", "a.", ">.a", "a.>.b", "a\r\nb", "a" * 4_097, None, 7)
        ],
        *[("subject", value) for value in ("a." * 10_000 + "a", "\ud800", "a.\udc80")],
        *[("group", value) for value in ("", "a b", "*", ">", "a..b", 7, "\ud800", "a\r\nb")],
        *[("partition_prefix", value) for value in ("", "a.b", "*", ">", "a b", "\xe9", None)],
        *[("spread", value) for value in ("", "random", "Hash", None, 7)],
        *[("acks", value) for value in ("yes", True, False, None, "none")],
        *[("ack_policy", value) for value in ("quorum", None, 1)],
        *[("sync", value) for value in ("often", True, None)],
        *[("compression", value) for value in ("gzip", None, 0)],
        *[("keep_replies", value) for value in ("yes", 0, 1, None)],
        *[("compact", value) for value in ("yes", 0, 1, None)],
        *[("min_isr", value) for value in (0, -1, 2, 1.0, True, "1")],
        ("unknown", 1),
    ],
    ids=ascii,
)
def test_a_wrong_field_is_refused_by_name(name, value):
    assert name == refused_field(**{name: value})


@pytest.mark.parametrize("name", ["name", "subject"])
def test_name_and_subject_are_required(name):
    with pytest.raises(ConfigError) as caught:
        StreamConfig.from_plain({key: value for key, value in MINIMAL.items() if key != name})
    assert name == caught.value.field


@pytest.mark.parametrize("given_config", [None, 7, "orders", [], b"{}"])
def test_what_is_no_table_is_refused(given_config):
    with pytest.raises(ConfigError):
        StreamConfig.from_plain(given_config)


def test_a_misspelled_field_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean retention_bytes"):
        config(retention_byte=7)


RESERVED = [
    ">",
    "*",
    "*.>",
    "*.*",
    "_INBOX.>",
    "_INBOX.*",
    "_INBOX.a.b",
    "LIFT.x",
    "LIFT.>",
    "*.x",
    "$JS.>",
    "$JS.API.INFO",
    "$x",
]


@pytest.mark.parametrize("subject", RESERVED)
def test_a_subject_whose_replies_belong_to_others_must_not_ack_them(subject):
    assert refused_field(subject=subject) == "acks"
    assert refused_field(subject=subject, acks="reply") == "acks"
    for acks in ("envelope", "off"):
        assert (subject, acks) == (config(subject=subject, acks=acks).subject, acks)


@pytest.mark.parametrize(
    "subject", ["orders.>", "orders.*", "a.>", "_INBOX", "LIFT", "LIFTS.>", "a.$JS", "a.*.>", "inbox.>"]
)
def test_other_subjects_ack_replies(subject):
    assert AckMode.REPLY is config(subject=subject).acks


@pytest.mark.parametrize("prefix", ["LIFT", "_INBOX"])
def test_a_prefix_does_not_bring_a_stream_under_a_reserved_subject(prefix):
    assert refused_field(partitions=2, spread="mapping", partition_prefix=prefix) == "partition_prefix"


@pytest.mark.parametrize(("replicas", "expected"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_by_default_a_majority_must_be_in_sync(replicas, expected):
    stream = config(replicas=replicas)
    assert (None, expected) == (stream.min_isr, stream.min_isr_effective)
    assert stream.differences(config(replicas=replicas, min_isr=expected)) == ["min_isr"]


def test_a_queue_group_is_for_whoever_stores_what_it_gets():
    for alone in ({}, {"partitions": 3, "spread": "mapping"}, {"observers": 2}):
        assert config(group="workers", **alone).group == "workers"
    for shared in ({"partitions": 2}, {"replicas": 2}, {"replicas": 3, "partitions": 3, "spread": "mapping"}):
        assert refused_field(group="workers", **shared) == "group"
        with pytest.raises(ConfigError, match="can join no queue group"):
            config(**shared).updated({"group": "workers"})


def test_min_isr_is_at_most_the_replicas():
    for min_isr in (1, 2, 3):
        assert min_isr == config(replicas=3, min_isr=min_isr).min_isr_effective
    for min_isr in (4, 1 << 20_000):
        assert refused_field(replicas=3, min_isr=min_isr) == "min_isr"


FIXED = {"name": "other", "partitions": 2, "spread": "mapping", "partition_prefix": "other"}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_fields_stay_as_they_are(name):
    stream = config()
    with pytest.raises(ConfigError) as caught:
        stream.updated({name: FIXED[name]})
    assert name == caught.value.field
    assert stream == stream.updated({name: stream.to_plain()[name]})


@examples(100)
@given(configs(), configs())
def test_any_other_field_can_be_updated(old, new):
    changes = {name: value for name, value in new.to_plain().items() if name not in FIXED}
    updated = old.updated(changes)
    assert new.to_plain() | {name: old.to_plain()[name] for name in FIXED} == updated.to_plain()
    assert set(old.differences(updated)) <= set(changes)
    assert updated.differences(updated) == []


@pytest.mark.parametrize(
    ("name", "value"), [("replicas", 8), ("unknown", 1), ("acks", "yes"), ("subject", ">"), ("partitions", True)]
)
def test_an_update_is_checked_like_a_new_stream(name, value):
    with pytest.raises(ConfigError):
        config().updated({name: value})


def test_an_update_may_not_leave_fewer_replicas_than_must_be_in_sync():
    with pytest.raises(ConfigError) as caught:
        config(replicas=3, min_isr=3).updated({"replicas": 2})
    assert caught.value.field == "min_isr"


def test_the_systems_own_streams_have_no_subject_and_all_others_have_one():
    stream = config(name="__offsets", subject="", partitions=3)
    assert (stream.is_internal, stream.subject) == (True, "")
    assert stream == StreamConfig.from_plain(stream.to_plain())
    assert not config(name="_offsets").is_internal
    assert refused_field(name="__offsets", subject="orders.>") == "subject"
    assert refused_field(name="_offsets", subject="") == "subject"
    with pytest.raises(ConfigError, match="the system's own"):
        stream.updated({"subject": "orders.>"})


def test_subjects_of_partitions():
    hashed = config(partitions=3)
    mapped = config(partitions=3, spread="mapping", partition_prefix="part")
    single = config(spread="mapping")
    assert [hashed.partition_subject(partition) for partition in range(3)] == ["orders.>"] * 3
    expected = ["part.0.orders.>", "part.1.orders.>", "part.2.orders.>"]
    assert expected == [mapped.partition_subject(partition) for partition in range(3)]
    assert single.partition_subject(0) == "orders.>"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(("hash", "off")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@examples(300)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*DEFAULTS, "unknown"), VALUES)))
def test_any_table_is_refused_or_a_configuration(changes):
    found = attempt(lambda given_changes: config(**given_changes), changes, ConfigError)
    if found is not None:
        assert found == StreamConfig.from_plain(found.to_plain())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("retention_age_s", "11.0 s are more than retention_age_s keeps at all"),
        ("retention_bytes", "11 bytes are more than retention_bytes keeps at all"),
    ],
)
def test_no_more_stays_on_disk_than_is_kept_at_all(name, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        config(**{name: 10, f"local_{name}": 11})
    assert caught.value.field == f"local_{name}"
    assert config(**{name: 10, f"local_{name}": 10}).to_plain()[f"local_{name}"] == 10
    whole = config(**{f"local_{name}": 11})
    with pytest.raises(ConfigError, match=sentence):
        whole.updated({name: 10})
