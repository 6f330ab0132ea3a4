"""A create whose answer is lost, late, doubled or wrong is settled by looking who is there."""

from __future__ import annotations

import random

import pytest

from liftpy_bucket.errors import OutcomeUnknownError, PreconditionFailedError, StoreUnavailableError, TakenError
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import Fault, FaultStore, plan_at

SETTLED = [Fault.LOST, Fault.TWICE, Fault.REFUSED_AFTER, Fault.NOT_DONE, Fault.LATE, Fault.UNAVAILABLE]


@pytest.mark.parametrize("fault", SETTLED)
def test_one_fault_is_settled(fault):
    memory = MemoryStore()
    store = FaultStore(memory, plan_at({1: fault}))
    create_once(store, "k", b"ours", "n1")
    store.deliver_late()
    assert memory.get("k").body == b"ours"
    assert store.faults[0][1] is fault


@pytest.mark.parametrize("fault", SETTLED)
def test_one_fault_does_not_hide_that_another_was_first(fault):
    memory = MemoryStore()
    memory.create("k", b"another's", "n0")
    store = FaultStore(memory, plan_at({1: fault}))
    with pytest.raises(TakenError, match="n0") as caught:
        create_once(store, "k", b"ours", "n1")
    assert isinstance(caught.value, PreconditionFailedError)
    assert (caught.value.key, caught.value.nonce) == ("k", "n0")
    assert memory.get("k").body == b"another's"


def test_another_comes_between_two_attempts():
    memory = MemoryStore()

    def come_between(request):
        if request.number == 3:  # 1: our create, not done; 2: we look; 3: our create again
            memory.create("k", b"another's", "n0")

    store = FaultStore(memory, plan_at({1: Fault.NOT_DONE}), before=come_between)
    with pytest.raises(TakenError):
        create_once(store, "k", b"ours", "n1")


def test_looking_fails_as_well():
    memory = MemoryStore()
    store = FaultStore(memory, plan_at({1: Fault.LOST, 2: Fault.UNAVAILABLE}))
    create_once(store, "k", b"ours", "n1")
    assert [request.kind for request in store.requests] == ["create", "head", "create", "head"]


def test_nothing_but_lost_answers():
    memory = MemoryStore()
    store = FaultStore(memory, lambda _request: Fault.LOST)
    with pytest.raises(OutcomeUnknownError, match="after 4 attempts"):
        create_once(store, "k", b"ours", "n1")
    assert memory.get("k").body == b"ours"
    create_once(memory, "k", b"ours", "n1")


def test_a_store_that_is_away_has_surely_written_nothing():
    store = FaultStore(MemoryStore(), lambda _request: Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        create_once(store, "k", b"ours", "n1")
    store.plan = lambda request: Fault.NOT_DONE if request.number == 5 else Fault.UNAVAILABLE
    with pytest.raises(OutcomeUnknownError):
        create_once(store, "k", b"ours", "n1")


@pytest.mark.parametrize("seed", range(50))
def test_of_two_writers_one_has_it_and_knows(seed):
    rng = random.Random(seed)
    memory = MemoryStore()
    store = FaultStore(memory, lambda _request: rng.choice(SETTLED) if rng.random() < 0.5 else None)
    outcome = {}
    for nonce in rng.sample(["one", "two"], 2):
        try:
            create_once(store, "k", nonce.encode(), nonce)
        except (TakenError, OutcomeUnknownError, StoreUnavailableError) as error:
            outcome[nonce] = type(error)
        else:
            outcome[nonce] = None
    store.deliver_late()
    there = memory.get("k").body.decode()
    assert [nonce for nonce, error in outcome.items() if error is None] in ([there], [])
    assert outcome[there] not in (TakenError, StoreUnavailableError)
