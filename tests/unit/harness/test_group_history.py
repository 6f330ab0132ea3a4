"""The checker of groups finds every kind of violation, and nothing where there is none."""

from __future__ import annotations

import copy

import pytest

from support.group_history import check, figures, tell
from support.group_log import CommitRow, HoldersRow, Holding

OLD, NEW = "1-aa", "2-bb"


def read(at_s, offset, content=None):
    return ["read", at_s, 0, offset, content or f"m{offset}"]


def attempt(at_s, member_id, generation, sequence, offset):
    return ["try", at_s, member_id, generation, sequence, {"0": offset}]


def held(*holdings):
    return HoldersRow({0: frozenset(Holding(*each) for each in holdings)})


class Case:
    """One partition of six records: `a` handles four and commits three; `b` takes over and handles one again."""

    def __init__(self):
        self.acked = {(0, offset): f"m{offset}" for offset in range(6)}
        self.a = [
            ["begin", 1.0, OLD, 1, {"0": None}],
            ["assigned", 1.0, OLD, [0]],
            *(read(1.1 + offset / 10, offset) for offset in range(3)),
            attempt(2.0, OLD, 1, 1, 3),
            ["commit", 2.1, OLD, 1, 1, [], "NONE"],
            read(2.2, 3),
        ]
        self.b = [
            ["begin", 5.0, NEW, 2, {"0": 3}],
            *(read(5.1 + offset / 10, offset) for offset in range(3, 6)),
            attempt(6.0, NEW, 2, 1, 6),
            ["commit", 6.1, NEW, 2, 1, [], "NONE"],
        ]
        self.log = [
            held((OLD, 1)),
            CommitRow(2.05, 0, 3, 1, 1),
            held((NEW, 2)),
            CommitRow(6.05, 0, 6, 2, 1),
        ]

    @property
    def stories(self):
        return {"a": self.a, "b": self.b}

    def rules(self):
        return [violation.rule for violation in check(self.acked, tell(copy.deepcopy(self.stories)), self.log)]


@pytest.fixture
def case():
    return Case()


def test_nothing_is_found_where_all_is_well(case):
    assert case.rules() == []
    found = figures(tell(case.stories), case.log)
    assert found == (6, 1, [1], 0, 2)


def test_what_a_process_had_in_hand_may_be_finished_late_but_nothing_more(case):
    case.a += [["lost", 7.0, OLD, [0]], read(7.1, 4)]
    assert case.rules() == []
    assert figures(tell(case.stories), case.log).late == 1
    case.a.append(read(7.2, 5))
    assert case.rules() == ["read late"]


def test_a_refused_commit_need_not_be_in_the_log(case):
    case.a += [attempt(7.0, OLD, 1, 2, 4), ["commit", 7.1, OLD, 1, 2, [0], "NONE"]]
    case.a += [attempt(7.2, OLD, 1, 3, 4), ["commit", 7.3, OLD, 1, 3, [], "UNKNOWN_MEMBER"]]
    assert case.rules() == []


def test_a_commit_whose_answer_was_lost_may_be_there(case):
    del case.a[6]
    assert case.rules() == []


def test_a_record_that_nobody_handled(case):
    case.acked[0, 6] = "m6"
    assert case.rules() == ["never processed"]


def test_an_offset_with_two_contents(case):
    case.a[-1] = read(2.2, 3, "other")
    assert case.rules() == ["two contents"]


def test_a_commit_that_steps_back(case):
    case.log.insert(2, CommitRow(2.06, 0, 2, 1, 2))
    case.a += [attempt(2.3, OLD, 1, 2, 2)]
    case.b[0] = ["begin", 5.0, NEW, 2, {"0": 2}]
    assert "commit steps back" in case.rules()


def test_commits_in_the_wrong_order(case):
    case.log[3] = CommitRow(6.05, 0, 6, 1, 1)
    case.b[4:] = [attempt(6.0, NEW, 1, 1, 6), ["commit", 6.1, NEW, 1, 1, [], "NONE"]]
    assert case.rules() == ["commit out of order"]


def test_a_commit_by_a_member_that_has_lost_the_partition(case):
    case.a.append(attempt(5.5, OLD, 1, 2, 4))
    case.log.insert(3, CommitRow(5.6, 0, 4, 1, 2))
    assert "not the owner's commit" in case.rules()


def test_a_commit_that_nobody_asked_for(case):
    del case.a[5:7]
    assert "not the owner's commit" in case.rules()


def test_a_commit_of_what_was_not_handled(case):
    del case.a[2]
    case.a[0] = ["begin", 1.0, OLD, 1, {"0": None}]
    assert "committed unprocessed" in case.rules()
    case = Case()
    case.a[2][1] = 2.04  # handled, but after the commit was asked for
    assert "committed unprocessed" in case.rules()


def test_a_commit_that_was_confirmed_and_is_gone(case):
    del case.log[3]
    assert case.rules() == ["commit lost"]


def test_a_partition_with_two_owners(case):
    case.log[2] = held((OLD, 1), (NEW, 2))
    assert case.rules() == ["two owners"]


def test_an_owner_that_begins_elsewhere(case):
    case.b[0] = ["begin", 5.0, NEW, 2, {"0": 4}]
    del case.b[1]
    assert case.rules() == ["begun elsewhere"]


def test_a_gap_and_a_step_back_of_one_owner(case):
    del case.b[2]
    assert "gap" in case.rules()
    case = Case()
    case.b.insert(3, read(5.45, 3))
    assert "step back" in case.rules()


def test_a_process_that_reads_what_it_never_got(case):
    case.b[0] = ["begin", 5.0, NEW, 2, {"1": 3}]
    rules = case.rules()
    assert rules.count("not assigned") == 4  # three records, and the beginning that the log does not know of


def test_a_member_that_failed(case):
    case.a.append(["failed", 3.0, "OffsetLostError", "it is gone"])
    assert case.rules() == ["member failed"]
