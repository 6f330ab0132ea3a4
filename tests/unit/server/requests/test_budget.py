"""What people ask takes a bounded share of a node."""

from __future__ import annotations

import asyncio
import json

import pytest
from nats.aio.msg import Msg
from nats.micro.request import Request

from liftpy_envelope.errors import ErrorCode
from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.requests.budget import Budget, Pace, Shared
from liftpy_server.requests.errors import AdminError


class Inbox:
    """The NATS client of requests: keeps the answers."""

    def __init__(self):
        self.answers = []

    async def publish(self, _subject, data, headers=None):
        self.answers.append(json.loads(data))

    def request(self, reply="r"):
        return Request(Msg(self, subject="LIFT.API.X", reply=reply, data=b"{}"))


async def test_too_many_at_once_are_refused_as_busy_counted_and_few_of_them_answered():
    inbox, refusals, gate = Inbox(), ListenerRefusals(), asyncio.Event()
    tasks = set()

    async def answer(request):
        await gate.wait()
        await request.respond(b"[]")

    budget = Budget("admin", tasks, answer, refusals)
    for _ in range(5_000):
        await budget.accept(inbox.request())
    await budget.accept(inbox.request(reply=""))
    assert (len(tasks), refusals.busy["admin"]) == (256, 5_001 - 256)
    assert 1_000 <= len(inbox.answers) <= 3_000  # a thousand a second, and this may take a moment
    assert {answer["error"]["err_code"] for answer in inbox.answers} == {ErrorCode.TOO_MANY_REQUESTS}
    assert {answer["error"]["code"] for answer in inbox.answers} == {429}
    inbox.answers.clear()
    gate.set()
    await asyncio.gather(*tasks)
    assert inbox.answers == [[]] * 256
    await budget.accept(inbox.request())
    await asyncio.gather(*tasks)
    assert len(inbox.answers) == 257


async def test_a_flood_of_refusals_lets_others_in_between():
    """nats-py hands over all that it has without a pause."""
    never = asyncio.Event()

    async def answer(_):
        await never.wait()

    tasks = set()
    budget = Budget("admin", tasks, answer, ListenerRefusals())
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(5_000):
        await budget.accept(Inbox().request())
    assert turns > 200
    for each in (task, *tasks):
        each.cancel()
    await asyncio.gather(task, *tasks, return_exceptions=True)


class Gathering:
    """A handler that takes its time, and counts."""

    def __init__(self):
        self.began = 0
        self.running = 0
        self.most = 0
        self.value = 0
        self.error = None

    async def __call__(self, body):
        self.began += 1
        self.running += 1
        self.most = max(self.most, self.running)
        told = self.value
        await asyncio.sleep(0.01)
        self.running -= 1
        if self.error is not None:
            raise self.error
        return {"value": told, **body}


def encode(answer):
    return json.dumps(answer).encode()


async def test_one_gathering_answers_all_that_asked_before_it_began():
    gather = Gathering()
    shared = Shared(gather, encode, Pace(2, 0.05))
    answers = await asyncio.gather(*(shared.answer({}) for _ in range(500)))
    assert (set(answers), gather.began) == ({b'{"value": 0}'}, 1)


async def test_who_asks_is_told_what_is_so_after_the_question():
    gather = Gathering()
    shared = Shared(gather, encode, Pace(1, 0.0))
    first = asyncio.create_task(shared.answer({}))
    while not gather.running:
        await asyncio.sleep(0)
    gather.value = 1
    assert json.loads(await shared.answer({})) == {"value": 1}
    assert json.loads(await first) == {"value": 0}


async def test_many_different_questions_are_gathered_few_at_once_and_at_intervals():
    gather, loop = Gathering(), asyncio.get_running_loop()
    shared = Shared(gather, encode, Pace(3, 0.02))
    began_s = loop.time()
    answers = await asyncio.gather(*(shared.answer({"limit": number}) for number in range(20)))
    assert [json.loads(answer)["limit"] for answer in answers] == list(range(20))
    assert (gather.began, gather.most <= 3) == (20, True)
    assert loop.time() - began_s >= 19 * 0.02
    assert shared._waiting == {}


async def test_an_error_is_that_of_all_and_of_nobody_later():
    gather = Gathering()
    shared = Shared(gather, encode, Pace(2, 0.0))
    gather.error = AdminError(ErrorCode.NOT_AVAILABLE, "nobody leads")
    results = await asyncio.gather(*(shared.answer({}) for _ in range(5)), return_exceptions=True)
    assert (results, gather.began) == ([gather.error] * 5, 1)
    gather.error = None
    assert json.loads(await shared.answer({})) == {"value": 0}


async def test_who_goes_away_takes_nobody_with_it():
    gather = Gathering()
    shared = Shared(gather, encode, Pace(2, 0.0))
    first, second = (asyncio.create_task(shared.answer({})) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert json.loads(await second) == {"value": 0}
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_different_endpoints_share_a_pace():
    gather, pace = Gathering(), Pace(2, 0.0)
    shared = [Shared(gather, encode, pace) for _ in range(10)]
    await asyncio.gather(*(each.answer({}) for each in shared))
    assert (gather.began, gather.most) == (10, 2)
