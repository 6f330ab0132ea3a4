"""Proves that a link's book keeps of every partition what was asked last, until it is answered."""

from __future__ import annotations

import pytest

from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion, FollowRefusal, FollowResult
from liftpy_server.replication.wire.book import FollowBook
from support.follow_kit import key_of

KEY = key_of()


def fetch(offset=0, number=0, **changed):
    fields = {"incarnation": 3, "leader_epoch": 7, "offset": offset, "last_epoch": -1}
    return FollowFetch(key_of(number), **fields | {"durable_end": 0, "high_watermark": 0} | changed)


def question(number=1):
    return FollowQuestion(KEY, incarnation=3, leader_epoch=7, question=number, last_epoch=6)


def result(offset=0):
    return FollowResult(KEY, FollowRefusal.NONE, 3, 7, offset, 0, 0, 0)


@pytest.fixture
def book():
    return FollowBook("follower", 1_000, 250)


def offsets(request):
    return [row.offset for row in request.fetches]


def test_a_later_request_takes_the_place_of_an_earlier_one(book):
    book.put(fetch(1))
    book.put(fetch(2))
    assert offsets(book.take()) == [2]
    book.put(fetch(3))
    book.put(question())
    request = book.take()
    assert (request.fetches, len(request.questions)) == ((), 1)
    assert not book.has_unsent


def test_only_a_fetch_that_was_sent_and_not_answered_is_parked(book):
    assert not book.is_parked(KEY)
    book.put(fetch(1))
    assert not book.is_parked(KEY)
    book.take()
    assert book.is_parked(KEY)
    book.answered(result(0))
    assert book.is_parked(KEY), "that was the answer to an earlier one"
    book.answered(result(1))
    assert not book.is_parked(KEY)
    book.put(question())
    book.take()
    assert not book.is_parked(KEY)


def test_another_connection_is_told_what_is_not_answered(book):
    for number in range(3):
        book.put(fetch(number, number))
    book.take()
    book.saw(9)
    book.answered(result(0))
    book.put(fetch(20, 2))
    book.begin()
    assert not book.is_parked(key_of(1))
    request = book.take()
    assert sorted(offsets(request)) == [1, 20]
    assert {row.seen for row in request.fetches} == {0}


def test_a_fetch_tells_what_its_maker_had_seen(book):
    book.put(fetch(0))
    book.saw(5)
    book.put(fetch(1, 1))
    assert [row.seen for row in book.take().fetches] == [0, 5]


def test_who_is_dropped_is_forgotten_by_the_leader_before_it_comes_back(book):
    book.put(fetch(number=9))
    book.drop(key_of(9))
    assert book.take().forget == (), "the leader never heard of it"
    book.put(fetch())
    book.take()
    book.drop(KEY)
    assert not book.answered(result())
    book.put(fetch(4))
    request = book.take()
    assert (request.forget, offsets(request)) == ((KEY,), [4])


def test_much_is_asked_in_several_requests_in_order(book):
    for number in range(5_000):
        book.put(fetch(number, number))
    sent = []
    while book.has_unsent:
        request = book.take()
        assert len(request.fetches) <= 2_000
        sent += offsets(request)
    assert sent == list(range(5_000))


def test_damage_is_checked_for_until_a_good_answer_comes(book):
    book.put(fetch())
    book.damaged(KEY)
    assert [row.verify for row in book.take().fetches] == [1]
    book.begin()
    assert [row.verify for row in book.take().fetches] == [1]
    book.answered(result())
    book.put(fetch())
    assert [row.verify for row in book.take().fetches] == [0]


def test_an_answer_to_another_question_is_no_answer(book):
    book.put(question(2))
    book.take()
    book.answered(FollowEnd(KEY, FollowRefusal.NONE, 3, 7, 1, 6, 9))
    book.begin()
    assert len(book.take().questions) == 1
    book.answered(FollowEnd(KEY, FollowRefusal.NONE, 3, 7, 2, 6, 9))
    book.begin()
    assert book.take().questions == ()


def test_a_report_tells_all_but_questions(book):
    book.put(fetch(number=9))
    book.take()
    book.drop(key_of(9))
    book.put(fetch(1))
    book.put(question()._replace(key=key_of(1)))
    assert book.has_reports
    assert book.has_questions
    report = book.take_report()
    assert (offsets(report), report.questions, report.forget) == ([1], (), (key_of(9),))
    assert book.is_parked(KEY)
    assert not book.has_reports
    assert [row.question for row in book.take().questions] == [1]
    assert not book.has_unsent


def test_much_is_reported_in_several_requests(book):
    for number in range(5_000):
        book.put(fetch(number, number))
    sent = []
    while book.has_reports:
        sent.append(len(book.take_report().fetches))
    assert sent == [2_000, 2_000, 1_000]
