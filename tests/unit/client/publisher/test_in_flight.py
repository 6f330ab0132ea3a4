"""When what has no ack is sent again: soon after somebody answers, in order, and without a flood."""

from __future__ import annotations

import pytest

from liftpy_client.publisher.in_flight import InFlightQueue, InFlightRequest

TICK_S = 0.05


class World:
    """A queue, its clock, and what was sent.

    Attributes:
        sent: (number of the item, time in s).
    """

    def __init__(self):
        self.now_s = 100.0
        self.queue = InFlightQueue()
        self.items = []
        self.sent = []

    def publish(self, *, may_repeat=True, retry_after_s=5.0):
        item = InFlightRequest(retry_after_s, may_repeat=may_repeat)
        self.items.append(item)
        if self.queue.add(item, self.now_s):
            self._send(item)
        return item

    def _send(self, item):
        self.queue.sent(item, self.now_s)
        self.sent.append((self.items.index(item), self.now_s))

    def send_due(self):
        for item in self.queue.due(self.now_s):
            self._send(item)

    def wait(self, seconds):
        until_s = self.now_s + seconds
        while self.now_s < until_s - 1e-9:
            self.now_s += TICK_S
            self.send_due()

    def ack(self, item, epoch=1):
        self.queue.acknowledged(item, epoch, self.now_s)
        self.send_due()

    def numbers(self):
        numbers, self.sent = [number for number, _ in self.sent], []
        return numbers


@pytest.fixture
def world():
    world = World()
    world.ack(world.publish())
    assert world.numbers() == [0]
    return world


def test_with_acks_nothing_is_sent_twice(world):
    for _ in range(100):
        item = world.publish()
        world.wait(0.1)
        world.ack(item)
    assert world.numbers() == list(range(1, 101))


def test_while_nobody_answers_only_the_oldest_is_sent_again_and_the_new_is_held_back(world):
    world.publish()
    world.publish()
    world.wait(0.5)
    world.publish()
    world.wait(1.0)
    numbers = world.numbers()
    assert numbers[:2] == [1, 2]
    assert set(numbers[2:]) == {1}
    assert 5 <= len(numbers[2:]) <= 9


@pytest.mark.parametrize("listens_after_s", [0.3, 0.9, 1.7, 2.5])
def test_a_new_leader_gets_something_soon_and_then_everything_in_order(world, listens_after_s):
    items = [world.publish() for _ in range(3)]
    world.wait(0.3)
    items += [world.publish() for _ in range(2)]
    world.wait(listens_after_s)
    world.numbers()
    began_s = world.now_s
    while not world.sent:
        world.wait(TICK_S)
    assert world.now_s - began_s <= 0.21
    assert world.numbers() == [1]
    world.ack(items[0], epoch=2)
    assert world.numbers() == [2, 3, 4, 5]


def test_a_leader_that_was_only_slow_does_not_get_everything_again(world):
    items = [world.publish() for _ in range(50)]
    world.wait(1.0)
    world.numbers()
    for item in items:
        world.ack(item)
    world.wait(0.2)
    assert world.numbers() == []


def test_what_was_overtaken_is_sent_again_but_not_for_ever(world):
    world.publish()
    for _ in range(40):
        item = world.publish()
        world.wait(0.1)
        world.ack(item)
    again = [number for number in world.numbers() if number == 1]
    assert len(again) == 3
    world.wait(5.0)
    assert world.numbers().count(1) >= 1


def test_one_that_is_never_answered_does_not_hold_up_the_others_for_long(world):
    world.publish()
    world.wait(0.5)
    other = world.publish()
    world.numbers()
    world.wait(3.5)
    assert 2 in world.numbers()
    world.ack(other)
    world.wait(0.3)
    third = world.publish()
    world.wait(0.3)
    assert third.sent_s is not None


@pytest.mark.parametrize("is_stored", [False, None])
def test_what_was_refused_is_tried_again_after_a_while(world, is_stored):
    items = [world.publish(), world.publish()]
    for item in items:
        world.queue.put_back(item, world.now_s, is_stored=is_stored)
    world.numbers()
    world.send_due()
    assert world.numbers() == []
    world.wait(0.2)
    assert world.numbers() == [1]
    assert items[0].copies == (1 if is_stored is False else 2)
    world.ack(items[0])
    assert world.numbers() == [2]


def test_without_ids_nothing_is_sent_twice_that_may_be_stored(world):
    item = world.publish(may_repeat=False)
    world.wait(20)
    assert world.numbers() == [1]
    world.queue.put_back(item, world.now_s, is_stored=False)
    world.wait(0.2)
    assert world.numbers() == [1]


def test_a_queue_forgets_its_stall_with_what_waited(world):
    item = world.publish()
    world.wait(0.5)
    assert world.queue.is_in_trouble(world.now_s)
    world.queue.remove(item)
    world.numbers()
    world.publish()
    assert world.numbers() == [2]
    assert not world.queue.is_idle(world.now_s, 1.0)
