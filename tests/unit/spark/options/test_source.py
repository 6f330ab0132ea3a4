"""Options: what they mean, and what a person is told who misspelled one."""

from __future__ import annotations

import pytest

from liftpy_spark.options.connection import ConnectionOptions
from liftpy_spark.options.offsets import EARLIEST
from liftpy_spark.options.source import Bound, SourceOptions
from liftpy_spark.options.values import OptionError, Options

LEAST = {"servers": "nats://127.0.0.1:4222", "subscribe": "orders"}


def read(streaming=False, **given):
    return SourceOptions.read({name.lower(): value for name, value in (LEAST | given).items()}, streaming=streaming)


def refusal(streaming=False, **given):
    with pytest.raises(OptionError) as caught:
        read(streaming, **given)
    return str(caught.value)


def without(name, **given):
    given = {key: value for key, value in LEAST.items() if key != name} | given
    with pytest.raises(OptionError) as caught:
        SourceOptions.read(given, streaming=False)
    return str(caught.value)


def test_what_is_not_given_has_its_default():
    assert read() == SourceOptions(
        connection=ConnectionOptions(servers="nats://127.0.0.1:4222"),
        subscribe=("orders",),
        starting=Bound(everywhere="earliest"),
        ending=Bound(everywhere="latest"),
    )
    streaming = read(streaming=True)
    assert (streaming.starting, streaming.ending) == (Bound(everywhere="latest"), None)


def test_everything_can_be_given():
    found = SourceOptions.read(
        {
            "NATS.Servers": " tls://a:1 ",
            "credentialsfile": "a.creds",
            "bucket": "s3://b/p",
            "s3.endpoint": "http://c:1",
            "s3.region": "d",
            "assign": '{"orders": [1, 0]}',
            "startingoffsets": '{"orders": {"0": 23, "1": -2}}',
            "endingtimestamp": "17",
            "subject": "orders.*, orders.eu.>",
            "keyequals": "42",
            "includeheaders": "TRUE",
            "failondataloss": "false",
            "minpartitions": "3",
            "maxtasks": "4",
            "maxoffsetspertrigger": "5",
            "maxpollms": "6",
            "cold": "false",
        },
        streaming=False,
    )
    assert found == SourceOptions(
        connection=ConnectionOptions(
            servers="tls://a:1", credentials_file="a.creds", bucket="s3://b/p", s3_endpoint="http://c:1", s3_region="d"
        ),
        assign={"orders": (0, 1)},
        starting=Bound(offsets={"orders": {0: 23, 1: EARLIEST}}),
        ending=Bound(everywhere=17),
        include_headers=True,
        subject=("orders.*", "orders.eu.>"),
        key_equals=b"42",
        min_partitions=3,
        max_tasks=4,
        fail_on_data_loss=False,
        max_offsets_per_trigger=5,
        max_poll_ms=6,
        cold=False,
    )


def test_an_unknown_option_is_told_with_the_one_that_is_like_it():
    assert refusal(startingOfset="earliest") == "unknown option 'startingofset'; did you mean 'startingOffsets'?"
    assert "the options are assign, bucket, cold" in refusal(x="y")
    assert "streams are named by options" in refusal(path="orders")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka.bootstrap.servers", "the option 'servers' says where it is"),
        ("kafka.security.protocol", "options of Kafka's clients mean nothing to NATS"),
        ("kafka.group.id", "a query is no consumer group"),
        ("minOffsetsPerTrigger", "trigger(processingTime='1 minute')"),
        ("topic", "what to write to is said by 'stream'"),
    ],
)
def test_who_comes_from_kafka_is_told_what_to_do(name, said):
    told = refusal(**{name: "1"})
    assert f"unknown option {name.lower()!r}; " in told
    assert said in told


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stream", "what to write to is said by 'stream', what to read by 'subscribe'"),
        ("streams", "what to read by 'subscribe'"),
        ("topics", "what to read by 'subscribe'"),
        ("txnAppId", "it is of writing: df.write and df.writeStream"),
        ("stagingBytes", "it is of writing"),
        ("maxRecordsPerTrigger", "'maxOffsetsPerTrigger'"),
        ("checkpointLocation", "a checkpoint is of a streaming query: give it to df.writeStream"),
        ("outputMode", "it is no option: df.writeStream.outputMode('append')"),
        ("mode", "it is no option: df.write.mode('append')"),
        ("provider", "CREATE TABLE keeps no options of a data source in Python; make a view: CREATE TEMPORARY VIEW"),
        ("owner", "make a view: CREATE TEMPORARY VIEW"),
        ("user", "credentials of NATS are in the file of 'credentialsFile', or in a 'context' of the nats CLI"),
        ("password", "credentials of NATS are in the file"),
        ("token", "credentials of NATS are in the file"),
    ],
)
def test_what_belongs_elsewhere_is_told_where(name, said):
    told = refusal(**{name: "hunter2"})
    assert told.startswith(f"unknown option {name.lower()!r}; ")
    assert said in told
    assert "did you mean" not in told
    assert "hunter2" not in told


@pytest.mark.parametrize("name", ["s3.access.key", "s3.secretKey", "aws_session_token", "fs.s3a.access.key"])
def test_who_gives_credentials_is_told_where_they_belong(name):
    told = refusal(**{name: "AKIDEXAMPLE"})
    assert f"unknown option {name.lower()!r}; credentials of the bucket are no options" in told
    assert "AWS_ACCESS_KEY_ID" in told
    assert "did you mean" not in told
    assert "AKIDEXAMPLE" not in told


@pytest.mark.parametrize(
    ("starting", "ending", "said"),
    [
        (
            {"startingOffsets": '{"orders": {"1": 24}}'},
            {"endingOffsets": '{"orders": {"0": 3, "1": 23}}'},
            "'startingOffsets': 24 of stream orders partition 1 is after endingOffsets, which is 23 there",
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": 5}}'},
            {"endingOffsetsByTimestamp": '{"orders": {"0": 4}}'},
            "ByTimestamp': 5 of stream orders partition 0 is after endingOffsetsByTimestamp, which is 4 there",
        ),
        (
            {"startingTimestamp": "5"},
            {"endingTimestamp": "4"},
            "'startingTimestamp': 5 is after endingTimestamp, which is 4",
        ),
    ],
)
def test_what_begins_behind_its_end_is_told(starting, ending, said):
    assert said in refusal(**starting, **ending)


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"orders": {"0": 3}}', "endingOffsets": '{"orders": {"0": 3}}'},
        {"startingOffsets": '{"orders": {"0": 3}}', "endingOffsets": '{"orders": {"0": -1, "1": 2}}'},
        {"startingOffsets": '{"orders": {"0": -1}}', "endingOffsets": '{"orders": {"0": 2}}'},
        {"startingOffsets": '{"orders": {"0": 3}}', "endingTimestamp": "2"},
        {"startingTimestamp": "4", "endingTimestamp": "4"},
        {"startingTimestamp": "4", "endingOffsets": '{"orders": {"0": 2}}'},
    ],
)
def test_where_the_options_alone_do_not_say_so_a_batch_may_be_empty(given):
    SourceOptions.read({"servers": "h", "subscribe": "orders"} | given, streaming=False)


def test_patterns_are_divided_by_commas_or_spaces():
    given = {"servers": "h", "subscribe": "orders", "subject": " a.*,b.c  d.> ,e"}
    assert SourceOptions.read(given, streaming=False).subject == ("a.*", "b.c", "d.>", "e")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "{oops"}, "'{oops' is not JSON: Expecting property name"),
        ({"startingOffsets": "first"}, "'first' is neither earliest nor latest"),
        ({"startingOffsets": "latest"}, "has nothing to read"),
        ({"startingOffsets": '{"orders": 3}'}, '3 are not numbers by partition; it looks like {"orders"'),
        ({"startingOffsets": '{"orders": {"a": 3}}'}, "'a' is not a partition"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "-3 of partition 0 is not a number from -2 on"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "True of partition 0"),
        ({"startingOffsets": '{"orders": {"0": 1, "0": 2}}'}, "names '0' twice"),
        ({"startingOffsets": "{}"}, "names no stream"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "is not a number from 0 on"),
        ({"startingTimestamp": "now"}, "'now' is not a whole number; it is in milliseconds"),
        ({"startingTimestamp": "99999999999999999"}, "is after the year 2262"),
        ({"endingTimestamp": "9999999999999"}, "is after the year 2262"),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 9999999999999}}'}, "is after the year 2262"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "startingOffsets is given, too"),
        ({"startingOffsetsByTimestampStrategy": "newest"}, "neither error nor latest"),
        ({"endingOffsets": "earliest"}, "nothing to read"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "nothing to read"),
        ({"subject": "a..b"}, "subject 'a..b'"),
        ({"subscribe": "a b"}, "name 'a b' is not allowed"),
        ({"subscribe": "a,a"}, "names a stream twice"),
        ({"subscribe": " "}, "it is empty"),
        ({"assign": '{"orders": [0]}'}, "subscribe is given, too"),
        ({"minPartitions": "0"}, "'0' is not between 1 and 100000"),
        ({"startingOffsets": "5"}, 'nor offsets as JSON, such as {"orders": {"0": 23}}'),
        ({"startingTimestamp": "2026-11-22"}, "it is in milliseconds since 1970-01-01 in UTC"),
        ({"maxPollMs": "1s"}, "'1s' is not a whole number; it is in milliseconds"),
        ({"minPartitions": "65"}, "more than maxTasks, which is 64"),
        ({"maxTasks": "1000000"}, "'1000000' is not between 1 and 100000"),
        ({"maxTasks": "1.5"}, "is not a whole number"),
        ({"failOnDataLoss": "yes"}, "'yes' is neither true nor false"),
        ({"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "Spark takes one limit"),
        ({"nats.servers": "nats://b"}, "it is given twice"),
    ],
)
def test_what_means_nothing_is_told(given, said):
    text = refusal(**given)
    assert said in text
    assert next(iter(given)) in text or "servers" in text or "maxBytesPerTrigger" in text or "startingTimestamp" in text


def test_what_is_missing_is_told():
    assert "say where NATS is" in without("servers")
    assert "name the stream to read" in without("subscribe")
    assert "CREATE TABLE keeps no options" in without("subscribe")
    assert "is not a regular expression" in without("subscribe", subscribePattern="(")
    assert "names no stream" in without("subscribe", assign="[]")
    assert "are not partitions" in without("subscribe", assign='{"orders": [-1]}')
    assert "names a partition twice" in without("subscribe", assign='{"orders": [1, 1]}')
    assert "is not allowed" in without("subscribe", assign='{"a b": [1]}')


@pytest.mark.parametrize("key", [" 42", "42 ", " "])
def test_a_key_is_taken_as_it_is(key):
    given = {"servers": "h", "subscribe": "orders", "keyEquals": key}
    assert SourceOptions.read(given, streaming=False).key_equals == key.encode()


def test_a_key_that_is_no_text():
    given = {"servers": "nats://n", "subscribe": "s"}
    assert SourceOptions.read(given | {"keyequalshex": "00FF 3a"}, streaming=False).key_equals == b"\x00\xff\x3a"
    for options, words in (
        ({"keyequalshex": "0x12"}, "'0x12' is not a key in hexadecimal digits"),
        ({"keyequalshex": "12", "keyequals": "a"}, "keyEquals is given, too"),
    ):
        with pytest.raises(OptionError, match=words):
            SourceOptions.read(given | options, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_streaming_query_has_no_end(name):
    assert "a streaming query has no end" in refusal(streaming=True, **{name: "1"})


def test_names_are_found_in_any_spelling():
    options = Options({"ABC": "1"}, ["aBc"])
    assert "aBc" in options
    assert options.integer("aBc", 0) == 1
    assert options.text("other") is None
