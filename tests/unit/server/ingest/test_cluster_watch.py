"""What a server tells of the others: which have no route, and when they have one again."""

from __future__ import annotations

import pytest

from liftpy_server.ingest.cluster_watch import ClusterWatch
from liftpy_server.settings.limits import ROUTE_GRACE_S


def names(*places, **more):
    return {"connect_urls": list(places)} | more


@pytest.fixture
def watch():
    watch = ClusterWatch()
    assert not watch.told(names("a:1", "b:1", "c:1"), "a:1", 0.0, 0.0)
    assert watch.is_whole(0.0)
    return watch


def test_a_server_is_lost_until_it_has_been_back_for_a_while(watch):
    assert watch.told(names("a:1", "b:1"), "a:1", 9.0, 10.0)
    assert "c:1" in watch.cause
    (server,) = watch.away
    assert (server.places, server.whole_s) == ({"c:1"}, 9.0)
    assert not watch.is_whole(10_000.0)
    assert not watch.told(names("a:1", "b:1", "c:1"), "a:1", 19.0, 20.0)
    assert watch.away == []
    assert not watch.is_whole(20.0 + ROUTE_GRACE_S / 2)
    assert watch.cause is not None
    assert watch.is_whole(20.0 + ROUTE_GRACE_S)
    assert watch.cause is None


def test_every_address_comes_back(watch):
    watch.told(names("a:1"), "a:1", 9.0, 10.0)
    watch.told(names("a:1", "b:1"), "a:1", 9.0, 20.0)
    assert [server.places for server in watch.away] == [{"c:1"}]
    watch.told(names("a:1", "b:1", "c:1"), "a:1", 9.0, 30.0)
    assert watch.away == []


def test_a_server_that_ended_is_waited_for_no_longer(watch):
    watch.told(names("a:1", "b:1"), "a:1", 9.0, 10.0)
    watch.told(names("a:1"), "a:1", 10.0, 11.0)
    first, second = watch.away
    watch.is_gone(first)
    assert not watch.is_whole(12.0)
    watch.is_gone(second)
    assert watch.is_whole(12.0)


def test_another_in_its_place(watch):
    watch.told(names("a:1"), "a:1", 9.0, 10.0)
    watch.told(names("a:1", "b:1"), "a:1", 9.0, 11.0)
    watch.told(names("a:1", "b:1", "d:1"), "a:1", 9.0, 12.0)
    assert watch.is_whole(12.0 + ROUTE_GRACE_S)


def test_a_server_that_is_back_is_known_again_by_its_id():
    watch = ClusterWatch()
    both, alone = names("a:1", "b:1", server_id="A"), names("a:1", server_id="A")
    watch.told(both, "a:1", 0.0, 0.0)
    assert watch.unidentified == {"b:1"}, "ours has said who it is"
    watch.introduced({"b:1": {"server_id": "B"}, "c:1": {"server_id": "C"}}, watch.losses)
    assert watch.unidentified == set()
    watch.told(alone, "a:1", 9.0, 10.0)
    watch.told(both, "a:1", 9.0, 10.0)
    (server,) = watch.unclear
    assert (server.back_s, server.named) == (10.0, {"b:1"})
    assert server.is_same("b:1", "B")
    assert not server.is_same("b:1", "ANOTHER")
    assert server.is_same("d:1", "ANY"), "who was there is not known"
    server.fell_silent = False
    assert watch.unclear == []


def test_an_answer_to_a_question_from_before_a_loss_may_be_of_another():
    watch = ClusterWatch()
    both, alone = names("a:1", "b:1", server_id="A"), names("a:1", server_id="A")
    watch.told(both, "a:1", 0.0, 0.0)
    losses = watch.losses
    watch.told(alone, "a:1", 9.0, 10.0)
    watch.told(both, "a:1", 9.0, 11.0)
    watch.introduced({"b:1": {"server_id": "B"}}, losses)
    assert watch.unidentified == {"b:1"}


def test_one_new_server_takes_the_place_of_one(watch):
    watch.told(names("a:1", "b:1"), "a:1", 9.0, 10.0)
    watch.told(names("a:1"), "a:1", 9.0, 11.0)
    watch.told(names("a:1", "d:1"), "a:1", 9.0, 12.0)
    assert not watch.is_whole(12.0 + ROUTE_GRACE_S)


def test_a_server_that_is_going_to_shut_down_takes_itself_out(watch):
    assert not watch.told(names("b:1", "c:1", ldm=True), "a:1", 9.0, 10.0)
    assert not watch.told(names("b:1", "c:1"), "a:1", 9.0, 11.0)
    assert watch.is_whole(11.0)


def test_a_server_that_talks_is_there(watch):
    assert not watch.told(names("a:1", "c:1"), "b:1", 9.0, 10.0)
    assert watch.is_whole(10.0)


@pytest.mark.parametrize("info", [{}, {"connect_urls": None}, {"connect_urls": []}])
def test_what_is_not_told_is_not_known(info):
    watch = ClusterWatch()
    assert not watch.told(info, "a:1", 0.0, 0.0)
    assert not watch.told(info, "a:1", 0.0, 0.0)
    assert watch.is_whole(0.0)
