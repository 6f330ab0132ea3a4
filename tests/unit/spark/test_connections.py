"""Connections of a process: kept, bounded, not taken along by a fork; and what is told where there can be none."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from liftpy_client.errors import DisconnectedError, NodeUnavailableError, UnreachableError
from liftpy_envelope.errors import LiftError
from liftpy_spark import connections
from liftpy_spark.connections import bucket, bucket_address, lift, nats_failure, open_bucket
from liftpy_spark.errors import BucketError, NatsError, plain_errors
from liftpy_spark.options.connection import ConnectionOptions
from liftpy_spark.options.values import OptionError
from support.ports import free_port
from support.s3_servers import aws_environment


def test_connections_are_kept_and_the_oldest_goes():
    gone = []
    kept = connections._Kept(gone.append, lambda _: False)
    made = [ConnectionOptions(servers=f"nats://{number}") for number in range(9)]
    for number, each in enumerate(made[:8]):
        assert kept.get(each, lambda number=number: number) == number
    assert kept.get(made[0], lambda: "another") == 0
    assert kept.get(made[8], lambda: 8) == 8
    assert gone == [1]
    kept.forget()
    assert kept.get(made[0], lambda: "of the child") == "of the child"
    assert gone == [1], "what the parent has is not closed"


def test_what_can_not_be_made_is_not_kept():
    kept = connections._Kept(lambda _: None, lambda _: False)
    connection = ConnectionOptions(servers="nats://a")

    def fail():
        raise NatsError("no answer")

    with pytest.raises(NatsError):
        kept.get(connection, fail)
    assert kept.get(connection, lambda: 1) == 1


def test_what_is_over_is_made_anew():
    gone, over = [], set()
    kept = connections._Kept(gone.append, over.__contains__)
    connection = ConnectionOptions(servers="nats://a")
    assert kept.get(connection, lambda: 1) == 1
    over.add(1)

    def fail():
        raise NatsError("no answer")

    with pytest.raises(NatsError):
        kept.get(connection, fail)
    assert gone == [1]
    assert kept.get(connection, lambda: 2) == 2
    assert kept.get(connection, lambda: 3) == 2
    assert gone == [1]


@pytest.mark.parametrize("error", [NodeUnavailableError("nobody answers"), DisconnectedError("it is closed")])
def test_who_answered_before_may_answer_again(error):
    assert nats_failure(error).retriable
    assert not nats_failure(UnreachableError("no answer")).retriable


def test_a_server_that_is_not_there():
    with pytest.raises(NatsError, match=r"cannot be reached.*tried from the driver"):
        lift(ConnectionOptions(servers=f"nats://127.0.0.1:{free_port()}"))
    with pytest.raises(OptionError, match="'servers': http://a is neither"):
        lift(ConnectionOptions(servers="http://a"))
    with pytest.raises(OptionError, match=r"'credentialsFile': there is no file no.creds .on the driver"):
        lift(ConnectionOptions(servers="nats://a", credentials_file="no.creds"))


def test_a_bucket_that_is_none():
    with pytest.raises(OptionError, match=r"'bucket'.*not of the form s3://bucket/prefix"):
        open_bucket(ConnectionOptions(servers="nats://a", bucket="my-bucket"))
    with pytest.raises(OptionError, match=r"'s3.endpoint'"):
        open_bucket(ConnectionOptions(servers="nats://a", bucket="s3://my-bucket", s3_endpoint="nowhere"))
    with aws_environment(), pytest.raises(BucketError, match=r"can not be read from the driver.*'cold' set to false"):
        open_bucket(ConnectionOptions(servers="nats://a", bucket="s3://my-bucket", s3_endpoint="http://127.0.0.1:1"))


def test_a_sink_is_not_told_of_options_that_it_has_not():
    nowhere = ConnectionOptions(servers="nats://a", bucket="s3://my-bucket", s3_endpoint="http://127.0.0.1:1")
    with aws_environment(), pytest.raises(BucketError, match=r"'delivery' set to at-least-once") as caught:
        bucket(nowhere)
    assert "'cold'" not in str(caught.value)


def told_by_nodes(monkeypatch, **said):
    """Connections whose nodes say this of their bucket."""
    told = SimpleNamespace(**{"url": "s3://of-nodes/p", "endpoint": None, "region": None} | said)
    monkeypatch.setattr(connections, "lift", lambda _: SimpleNamespace(tier_status=lambda limit: told))


def test_the_nodes_say_where_their_bucket_is(monkeypatch):
    told_by_nodes(monkeypatch, endpoint="http://store:9000", region="eu-west-1")
    nats = {"servers": "nats://a"}
    assert bucket_address(ConnectionOptions(**nats)) == ("s3://of-nodes/p", "http://store:9000", "eu-west-1")
    outside = ConnectionOptions(**nats, s3_endpoint="https://outside", s3_region="us-west-2")
    assert bucket_address(outside) == ("s3://of-nodes/p", "https://outside", "us-west-2")
    another = ConnectionOptions(**nats, bucket="s3://another")
    assert bucket_address(another) == ("s3://another", None, None), "whose store is not that of the nodes' bucket"
    told_by_nodes(monkeypatch, url=None)
    assert bucket_address(ConnectionOptions(**nats)) is None


def test_whoever_is_told_where_the_bucket_is_asks_nobody(monkeypatch):
    monkeypatch.setattr(connections, "lift", lambda _: pytest.fail("the nodes are asked"))
    told = connections.BucketAddress("s3://my-bucket", "http://127.0.0.1:1", None)
    with (
        aws_environment(),
        pytest.raises(BucketError, match="that the nodes use can not be read from the driver"),
    ):
        open_bucket(ConnectionOptions(servers="nats://told"), told)


def test_tracebacks_are_hidden_only_in_workers_that_end(monkeypatch):
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that it is put back
    monkeypatch.delenv("SPARK_BUFFER_SIZE", raising=False)

    def hides(error):
        with pytest.raises(type(error)), plain_errors():
            raise error
        return os.environ.get("SPARK_HIDE_TRACEBACK")

    assert not hides(LiftError("a"))
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "65536")
    assert not hides(ValueError("b"))
    assert hides(LiftError("c")) == "1"
