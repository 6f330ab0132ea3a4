"""Which server is tried next."""

from __future__ import annotations

import random

import pytest

from liftpy_server.nats.server_pool import ServerAddress, ServerPool


def pool(*urls):
    return ServerPool(urls, random.Random(1))


@pytest.mark.parametrize(
    ("url", "place", "user", "password", "wants_tls"),
    [
        ("nats://a:1", "a:1", None, None, False),
        ("a:1", "a:1", None, None, False),
        ("a", "a:4222", None, None, False),
        ("tls://u:p@a", "a:4222", "u", "p", True),
        ("nats://t@[::1]:7", "[::1]:7", "t", None, False),
    ],
)
def test_addresses(url, place, user, password, wants_tls):
    address = ServerAddress.parse(url)
    assert (address.place, address.user, address.password, address.wants_tls) == (place, user, password, wants_tls)


def test_all_are_tried_in_turn():
    servers = pool("a", "b", "c")
    tried = []
    for now_s in range(3):
        address = servers.next()
        tried.append(address.host)
        servers.failed(address, float(now_s))
    assert sorted(tried) == ["a", "b", "c"]


def test_waits_grow_up_to_a_bound_and_differ():
    servers = pool("a")
    (address,) = servers.addresses
    waits = []
    for _ in range(50):
        servers.failed(address, 100.0)
        waits.append(address.not_before - 100.0)
    assert waits[0] < 0.5
    assert max(waits) <= 1.5
    assert min(waits[10:]) >= 0.5
    assert len(set(waits)) == len(waits)


def test_the_one_that_was_lost_is_tried_last_and_at_once_if_it_is_alone():
    servers = pool("a", "b")
    lost = servers.next()
    servers.left(lost, 5.0)
    other = servers.next()
    assert other is not lost
    servers.failed(other, 5.0)
    assert servers.next() is lost
    assert lost.not_before == 5.0


def test_servers_are_learned_and_forgotten():
    servers = pool("tls://u:p@a")
    (told_by,) = servers.addresses
    servers.learn({"connect_urls": ["10.0.0.2:4222", "a:4222", "[::1]:4222", "b:4222", "bad:port", 7]}, told_by)
    learned = {address.place: address for address in servers.addresses}
    assert set(learned) == {"a:4222", "10.0.0.2:4222", "[::1]:4222", "b:4222"}
    assert all((each.wants_tls, each.user, each.password) == (True, "u", "p") for each in learned.values())
    assert learned["10.0.0.2:4222"].tls_name == "a"
    assert learned["b:4222"].tls_name == "b"
    servers.failed(learned["b:4222"], 3.0)
    servers.learn({"connect_urls": ["b:4222"]}, told_by)
    assert [address.place for address in servers.addresses] == ["a:4222", "b:4222"]
    assert servers.addresses[1].failures == 1
    servers.learn({}, servers.addresses[1])
    assert [address.place for address in servers.addresses] == ["a:4222", "b:4222"], "whoever tells is there"
    servers.learn({}, told_by)
    assert [address.place for address in servers.addresses] == ["a:4222"]


def test_another_than_the_one_that_is_avoided():
    servers = pool("a")
    (only,) = servers.addresses
    assert servers.next(only) is None
    servers.learn({"connect_urls": ["b:1"]}, only)
    assert servers.next(only).place == "b:1"
