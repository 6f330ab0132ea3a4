"""No member of the ISR can prove its log: who leads, what is waited for, and what an operator has to decide."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.state import PartitionInfo
from support.metadata_commands import NODE, UUIDS, WHERE, Cluster, config


@pytest.fixture
def cluster():
    return Cluster("a", "b", "c")


def start(cluster, node, *, lost=False, cut=False, known_end=0, **args):
    mine = [[UUIDS[0], 0]]
    args |= {"lost": mine if lost else [], "cut": mine if cut else [], "known_ends": [[UUIDS[0], 0, known_end]]}
    cluster.do("register_node", node=NODE | {"node_id": node}, **args)


def logs_of(cluster, **logs):
    """Reports, as `recover` hands them in: by node (last epoch, end[, high watermark])."""
    return [
        [node, cluster.incarnation(node), epoch, end, *(rest or (0,))] for node, (epoch, end, *rest) in logs.items()
    ]


def recover(cluster, *given_up, leader=None, accept=False, **logs):
    args = {"version": cluster.partition.version, "logs": logs_of(cluster, **logs), "given_up": list(given_up)}
    return cluster.attempt("recover_partition", **WHERE, **args, leader=leader, accept_data_loss=accept)


def leave_a_behind(cluster):
    """`a` stops cleanly and leaves the ISR; `b` and `c` come back without their logs; then `a` is back, complete."""
    cluster.expire("a")
    assert cluster.partition.isr == ("b", "c")
    for node in "bc":
        cluster.expire(node)
    start(cluster, "b", lost=True)
    start(cluster, "c", lost=True)
    assert (cluster.partition.isr, cluster.partition.leader) == ((), None)


def test_empty_logs_do_not_lead_while_a_replica_outside_of_the_isr_has_records(cluster):
    leave_a_behind(cluster)
    cluster.report("b", -1, 0)
    cluster.report("c", -1, 0)
    start(cluster, "a")
    assert cluster.report("a", 1, 50).value == {"leader": None}  # it may lack what b and c committed without it
    assert cluster.partition.leader is None


def test_an_operator_lets_the_best_log_lead(cluster):
    leave_a_behind(cluster)
    start(cluster, "a")
    epoch = cluster.partition.leader_epoch
    recovered = recover(cluster, accept=True, a=(1, 50, 40), b=(-1, 0, 60), c=(-1, 0)).value
    assert recovered == {"leader": "a", "leader_epoch": epoch + 1, "log_end": 50, "known_end": 60}
    info = cluster.partition
    assert (info.leader, info.isr, info.unproven, info.lost, info.known_end) == ("a", ("a",), (), (), 0)
    assert (info.unclean_elections, info.unclean_epoch) == (1, epoch + 1)


def test_an_operator_must_name_the_replicas_that_are_given_up(cluster):
    leave_a_behind(cluster)
    refused = recover(cluster, b=(-1, 0), c=(-1, 0))
    assert refused.error is ErrorCode.CONFLICT
    assert "orders/0: a can not be left out" in refused.message
    assert recover(cluster, "a", b=(1, 40), c=(-1, 0)).value["leader"] == "b"


@pytest.mark.parametrize("told", [{"a": (1, 50)}, {}])
def test_a_replica_that_is_up_is_not_given_up(cluster, told):
    leave_a_behind(cluster)
    start(cluster, "a")
    refused = recover(cluster, "a", accept=True, **told, b=(-1, 0), c=(-1, 0))
    assert "a is up, and can not be given up" in refused.message


def test_an_empty_log_leads_only_where_the_operator_accepts_it_in_words(cluster):
    leave_a_behind(cluster)
    refused = recover(cluster, "a", b=(-1, 0), c=(-1, 0))
    assert refused.error is ErrorCode.CONFLICT
    assert "the log of b is empty, so every record is given up, also what a may have" in refused.message
    assert cluster.partition.leader is None
    assert recover(cluster, "a", accept=True, b=(-1, 0), c=(-1, 0)).value["leader"] == "b"


def test_a_log_known_to_lack_committed_records_leads_only_where_that_is_accepted(cluster):
    leave_a_behind(cluster)
    start(cluster, "a")
    refused = recover(cluster, a=(1, 50), b=(-1, 0, 60), c=(-1, 0))
    assert "committed records from offset 50 to 59 are lost, at least" in refused.message
    assert recover(cluster, accept=True, a=(1, 50), b=(-1, 0, 60), c=(-1, 0)).value["leader"] == "a"


def test_an_operator_who_knows_better_names_the_leader(cluster):
    leave_a_behind(cluster)
    start(cluster, "a")
    logs = {"a": (1, 50), "b": (1, 40), "c": (-1, 0)}
    refused = recover(cluster, leader="b", **logs)
    assert "the log of a reaches further, to offset 50 of leader epoch 1" in refused.message
    assert "the log of c is empty" in recover(cluster, leader="c", **logs).message
    assert "x can not lead" in recover(cluster, leader="x", accept=True, **logs).message
    assert recover(cluster, leader="b", accept=True, **logs).value["leader"] == "b"


def test_only_replicas_are_given_up(cluster):
    leave_a_behind(cluster)
    assert "x keeps no replica of it" in recover(cluster, "a", "x", accept=True, b=(-1, 0), c=(-1, 0)).message


def test_the_last_member_of_the_isr_may_be_given_up(cluster):
    """It has everything, and never returns: a copy that had left the ISR is what remains."""
    cluster.expire("a")
    for node in "cb":
        start(cluster, node, cut=node == "c")
        cluster.expire(node)
    start(cluster, "c")
    start(cluster, "a")
    assert (cluster.partition.isr, cluster.partition.leader) == (("b",), None)
    assert "b can not be left out" in recover(cluster, a=(1, 30), c=(1, 20)).message
    assert recover(cluster, "b", a=(1, 30), c=(1, 20)).value["leader"] == "a"
    assert cluster.partition.isr == ("a",)


def test_an_empty_log_does_not_lead_where_a_node_knows_what_its_lost_log_held(cluster):
    for node in "abc":
        start(cluster, node, lost=True, known_end=7 if node == "b" else 0)
    for node in "abc":
        assert cluster.report(node, -1, 0).value == {"leader": None}
    assert cluster.partition.known_end == 7
    refused = recover(cluster, a=(-1, 0), b=(-1, 0), c=(-1, 0))
    assert "committed records from offset 0 to 6 are lost" in refused.message


def test_what_a_lost_log_outside_of_the_isr_held_is_known_too(cluster):
    cluster.expire("a")
    for node in "bca":
        start(cluster, node, lost=True, known_end=7 if node == "a" else 6)
    assert cluster.partition.known_end == 7


def test_what_a_log_held_that_failed_while_the_node_runs_is_known(cluster):
    for node in "abc":
        cluster.do(
            "report_failure",
            **WHERE,
            node_id=node,
            incarnation=cluster.incarnation(node),
            high_watermark=9 if node == "b" else 0,
        )
    assert cluster.partition.known_end == 9


def test_what_an_election_gave_up_is_not_held_against_the_next(cluster):
    leave_a_behind(cluster)
    start(cluster, "a")
    recover(cluster, a=(1, 50), b=(-1, 0), c=(-1, 0))
    start(cluster, "c", lost=True, known_end=60)
    assert cluster.partition.known_end == 0
    assert "nothing to recover" in recover(cluster, a=(2, 50, 50), b=(-1, 0), c=(-1, 0)).message


def test_nothing_is_recovered_where_a_leader_has_everything(cluster):
    assert "nothing to recover" in recover(cluster, a=(1, 50, 50), b=(1, 50, 50), c=(1, 50, 50)).message
    assert cluster.partition.unclean_elections == 0


def test_an_operator_decides_where_a_leader_lacks_what_another_knows_to_be_committed(cluster):
    assert recover(cluster, a=(1, 49, 49), b=(1, 50, 50), c=(1, 50, 50)).value["leader"] == "b"


def test_a_failed_log_does_not_say_that_the_leader_lacks_anything(cluster):
    """It is about to be copied anew, maybe for an election that gave up what it knows of."""
    cluster.do("report_failure", **WHERE, node_id="c", incarnation=cluster.incarnation("c"))
    assert "nothing to recover" in recover(cluster, a=(2, 50, 50), b=(2, 50, 50), c=(-1, 0, 60)).message


def test_what_was_looked_at_before_something_changed_is_not_decided_by(cluster):
    leave_a_behind(cluster)
    logs, version = logs_of(cluster, b=(-1, 0), c=(-1, 0)), cluster.partition.version
    told = {"logs": logs, "given_up": ["a"]}
    assert cluster.attempt("recover_partition", **WHERE, version=version - 1, **told).error is ErrorCode.CONFLICT
    start(cluster, "c")  # in another incarnation
    assert cluster.attempt("recover_partition", **WHERE, version=version, **told).error is ErrorCode.CONFLICT


def test_a_failed_log_does_not_lead_even_if_an_operator_asks(cluster):
    leave_a_behind(cluster)
    for node in "bc":
        cluster.do("report_failure", **WHERE, node_id=node, incarnation=cluster.incarnation(node))
    assert "no replica has a log that can be read" in recover(cluster, "a", b=(-1, 0, 50), c=(-1, 0)).message


@pytest.mark.parametrize("logs", [5, [5], [["a"]], [["a", 1, 1, 1, True]], [["x", 1, 1, 1, 1]], [[None] * 5]])
def test_nonsense_is_no_decision(cluster, logs):
    leave_a_behind(cluster)
    before = cluster.state.streams
    args = {"version": cluster.partition.version, "logs": logs, "given_up": ["a", "b", "c"]}
    assert cluster.attempt("recover_partition", **WHERE, **args).error
    assert cluster.state.streams == before


def test_a_stream_that_allows_it_is_led_by_the_best_log_once_all_have_reported(cluster):
    cluster.do("update_stream", name="orders", changes={"unclean_leader_election": True})
    leave_a_behind(cluster)
    cluster.report("b", -1, 0)
    assert cluster.report("c", -1, 0).value == {"leader": None}  # a is waited for
    start(cluster, "a")
    assert cluster.report("a", 1, 50).value == {"leader": "a"}
    assert cluster.partition.unclean_elections == 1


def test_a_stream_that_comes_to_allow_it_is_led_at_once(cluster):
    leave_a_behind(cluster)
    start(cluster, "a")
    for node, log in {"a": (1, 50), "b": (-1, 0), "c": (-1, 0)}.items():
        cluster.report(node, *log)
    cluster.do("update_stream", name="orders", changes={"unclean_leader_election": True})
    assert (cluster.partition.leader, cluster.partition.unclean_elections) == ("a", 1)


def test_a_node_that_cut_its_tail_leaves_the_lead_to_those_that_did_not(cluster):
    start(cluster, "a", cut=True)
    assert (cluster.partition.leader, cluster.partition.isr, cluster.partition.unproven) == ("b", ("b", "c"), ("a",))


def test_of_logs_that_were_all_cut_the_longest_leads_without_an_operator(cluster):
    """All stopped uncleanly; what `a` lost may have been committed, and the others have it."""
    for node in "abc":
        start(cluster, node, cut=True)
    assert cluster.report("a", 1, 49).value == {"leader": None}
    assert cluster.report("b", 1, 50).value == {"leader": None}
    assert cluster.report("c", 1, 50).value == {"leader": "b"}
    assert cluster.partition.unclean_elections == 0


def test_a_log_that_was_cut_waits_for_members_of_the_isr_that_are_away(cluster):
    for node in "abc":
        cluster.expire(node)
    start(cluster, "c", cut=True)
    assert (cluster.partition.leader, cluster.partition.isr) == (None, ("b",))
    start(cluster, "b")
    assert cluster.partition.leader == "b"


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_one_lost_log_of_three_is_no_reason_to_wait(cluster, order):
    """`min_isr` is 2, so one replica may be lost for good; the others had all that was committed."""
    for node in order:
        start(cluster, node, lost=node == "b", cut=node != "b")
    cluster.report("c", 1, 50)
    assert cluster.report("a", 1, 49).value == {"leader": None}  # b may know of more
    if order == "abc":
        cluster.expire("b")
    else:
        cluster.report("b", -1, 0)
    assert cluster.partition.leader == "c"
    assert cluster.partition.unclean_elections == 0


def test_members_that_left_early_do_not_vouch_for_what_came_later(cluster):
    """`a` was out while `b` and `c` committed on; then both lose their logs."""
    start(cluster, "a", cut=True)
    start(cluster, "b", lost=True)
    start(cluster, "c", lost=True)
    cluster.report("b", -1, 0)
    cluster.report("c", -1, 0)
    assert cluster.report("a", 1, 50).value == {"leader": None}


def test_a_lost_log_that_was_being_copied_anew_vouches_for_nothing(cluster):
    start(cluster, "c", lost=True)
    start(cluster, "b", cut=True)
    start(cluster, "a", lost=True)
    cluster.report("a", -1, 0)
    cluster.report("c", 1, 10)
    cluster.report("b", 1, 90)
    assert cluster.partition.leader == "b"  # it was in the ISR to the last but one
    start(cluster, "b", lost=True)
    cluster.report("b", -1, 0)
    cluster.report("c", 1, 10)  # what it had copied by then
    assert cluster.partition.leader is None


def test_nobody_leads_without_what_another_knows_to_be_committed(cluster):
    for node in "abc":
        start(cluster, node, cut=True)
    cluster.report("a", 1, 49, high_watermark=49)
    cluster.report("b", 1, 49, high_watermark=49)
    cluster.do("report_failure", **WHERE, node_id="c", incarnation=cluster.incarnation("c"))
    assert cluster.report("c", -1, 0, high_watermark=50).value == {"leader": None}
    assert cluster.partition.known_end == 50


def test_a_report_that_comes_late_speaks_of_a_log_that_has_grown_since(cluster):
    for node in "abc":
        start(cluster, node, lost=True)
    late = {"incarnation": cluster.incarnation("b"), "leader_epoch": cluster.partition.leader_epoch}
    for node in "abc":
        cluster.report(node, -1, 0)
    cluster.change_isr("a", "b", "c")
    for node in "ac":
        start(cluster, node, lost=True)
    cluster.do("expire_node", node_id="b", incarnation=late["incarnation"])
    assert cluster.report("b", -1, 0, **late).error
    assert cluster.partition.reports == ()


def test_a_stream_that_was_never_written_to_needs_no_operator(cluster):
    """The files of an empty log are made durable with its first record; all nodes may have lost theirs."""
    for node in "abc":
        start(cluster, node, lost=True)
    cluster.report("a", -1, 0)
    cluster.report("b", -1, 0)
    assert cluster.report("c", -1, 0).value == {"leader": "a"}
    assert cluster.partition.unclean_elections == 0


@pytest.mark.parametrize("known_end", [0, 3])
def test_empty_logs_that_were_in_sync_last_leave_the_choice_to_an_operator(cluster, known_end):
    """`a` appended and left. Whether `b` and `c` never had a record, or began anew, the metadata can not tell."""
    cluster.expire("a")
    for node in "bc":
        start(cluster, node, cut=True, known_end=known_end)
        cluster.report(node, -1, 0)
    start(cluster, "a")
    assert cluster.report("a", 1, 20).value == {"leader": None}
    assert recover(cluster, a=(1, 20), b=(-1, 0), c=(-1, 0)).value["leader"] == "a", "no loss has to be accepted"


def test_logs_that_are_all_lost_need_an_operator_where_one_knows_that_there_was_something(cluster):
    for node in "abc":
        start(cluster, node, lost=True)
    cluster.report("a", -1, 0)
    cluster.report("b", -1, 0, high_watermark=7)
    start(cluster, "b")  # it has forgotten by now; the metadata has not
    cluster.report("b", -1, 0)
    assert cluster.report("c", -1, 0).value == {"leader": None}
    assert recover(cluster, accept=True, a=(-1, 0), b=(-1, 0), c=(-1, 0)).value["known_end"] == 7


def test_an_observer_with_the_best_log_becomes_a_replica(cluster):
    cluster.register("d")
    cluster.reassign("a", "b", "c", "d", observers=("d",))
    cluster.finish()
    leave_a_behind(cluster)
    start(cluster, "a")
    assert recover(cluster, a=(1, 50), b=(-1, 0), c=(-1, 0), d=(1, 60)).value["leader"] == "d"
    assert (cluster.partition.isr, cluster.partition.observers) == (("d",), ())


def test_a_copy_outside_of_the_isr_is_not_dropped_while_it_may_be_the_best(cluster):
    """A move to `d` is taken back, while `b` and `c` have lost their logs, and `d` has what is left."""
    cluster.register("d")
    cluster.reassign("b", "c", "d")
    leave_a_behind(cluster)
    assert cluster.cancel().error is ErrorCode.CONFLICT
    assert "d" in cluster.partition.replicas


def lose_all_then_elect(cluster, *winners, end=50):
    """All stop uncleanly; of the logs that reach the furthest, that of `winners[0]` leads, alone in its set."""
    nodes = cluster.partition.replicas
    for node in nodes:
        start(cluster, node, cut=True)
    for node in nodes:
        cluster.report(node, 1, end if node in winners else end - 1, high_watermark=end - 1)
    assert (cluster.partition.leader, cluster.partition.isr) == (winners[0], (winners[0],))


@pytest.mark.parametrize("winner", "abc")
def test_a_log_that_was_elected_and_is_lost_before_anybody_has_copied_it_is_led_by_the_others(cluster, winner):
    """They have all that was committed: the one that led could commit nothing alone."""
    lose_all_then_elect(cluster, winner)
    others = [node for node in "abc" if node != winner]
    start(cluster, winner, lost=True)
    cluster.report(winner, -1, 0)
    assert cluster.report(others[1], 1, 49).value == {"leader": None}
    assert cluster.report(others[0], 1, 49).value == {"leader": others[0]}
    assert cluster.partition.unclean_elections == 0


def test_a_replica_that_was_elected_and_is_gone_for_good_leaves_the_lead_to_one_that_reaches_as_far(cluster):
    lose_all_then_elect(cluster, "a", "c")
    cluster.expire("a")
    info = cluster.partition
    assert (info.leader, info.isr, info.unproven) == (None, (), ("b", "c", "a"))
    assert cluster.report("b", 1, 49).value == {"leader": None}
    assert cluster.report("c", 1, 50).value == {"leader": "c"}
    assert (cluster.partition.isr, cluster.partition.unclean_elections) == (("c",), 0)
    assert (cluster.partition.unproven, cluster.partition.lost) == (("b", "a"), ())


def test_what_only_the_replica_had_that_was_elected_and_is_gone_is_waited_for(cluster):
    """What the others lack may have been committed before: the ends of their logs may be damaged."""
    lose_all_then_elect(cluster, "a")
    cluster.expire("a")
    for node in "bc":
        assert cluster.report(node, 1, 49).value == {"leader": None}
    start(cluster, "a")
    assert cluster.partition.leader is None  # what it has is compared first
    assert cluster.report("a", 1, 50).value == {"leader": "a"}


def test_all_that_are_in_sync_again_and_gone_leave_the_lead_to_one_that_reaches_as_far_as_the_elected():
    cluster = Cluster(*"abcde", min_isr=3)
    lose_all_then_elect(cluster, "d")
    cluster.change_isr("d", "e")
    cluster.expire("d")
    assert (cluster.partition.leader, cluster.partition.isr) == ("e", ("d", "e"))  # one of them is up
    cluster.expire("e")
    assert cluster.partition.isr == ()
    for node, end in {"a": 49, "b": 49}.items():
        assert cluster.report(node, 1, end).value == {"leader": None}
    assert cluster.report("c", 2, 51).value == {"leader": "c"}  # a copy of all that was there at the election


def test_what_was_said_of_a_log_that_failed_since_does_not_count_for_its_new_copy(cluster):
    for node in "abc":
        start(cluster, node, cut=True)
    cluster.report("b", 1, 50)
    cluster.report_failure("b")
    cluster.report("b", 1, 50)  # on its way
    cluster.report_renewal("b")
    cluster.report("a", 1, 49)
    assert cluster.report("c", 1, 49).value == {"leader": "a"}
    assert cluster.partition.lost == ("b",)


@pytest.mark.parametrize("first", [1, 2])
def test_a_leader_that_could_commit_meanwhile_is_waited_for(cluster, first):
    """A smaller `min_isr` let it commit alone, for a time or from then on."""
    lose_all_then_elect(cluster, "a", "c")
    for min_isr in (1, 2)[:first]:
        cluster.do("update_stream", name="orders", changes={"min_isr": min_isr})
    cluster.expire("a")
    for node in "bc":
        cluster.report(node, 1, 50)
    assert cluster.partition.leader is None


def test_what_is_kept_of_an_election_is_kept_in_snapshots(cluster):
    lose_all_then_elect(cluster, "a")
    assert cluster.partition.elected_reach == (1, 50)
    assert PartitionInfo.from_plain(cluster.partition.to_plain()) == cluster.partition


def test_a_log_that_was_elected_and_then_cut_again_waits_for_those_that_were_in_sync_before(cluster):
    """What it lost now may have been committed before; the others have it."""
    lose_all_then_elect(cluster, "b")
    start(cluster, "b", cut=True)
    assert cluster.report("b", 1, 48).value == {"leader": None}
    cluster.report("a", 1, 49)
    assert cluster.report("c", 1, 49).value == {"leader": "a"}


def test_what_was_known_to_be_committed_is_known_after_a_clean_election(cluster):
    lose_all_then_elect(cluster, "b")
    start(cluster, "b", lost=True)
    start(cluster, "c", cut=True)
    cluster.report("b", -1, 0)
    cluster.report("a", 1, 40)
    assert cluster.report("c", 1, 45).value == {"leader": None}  # 49 were


def test_a_set_that_can_commit_again_is_all_that_counts(cluster):
    lose_all_then_elect(cluster, "b")
    cluster.change_isr("b", "c")
    assert (cluster.partition.unproven, cluster.partition.known_end) == ((), 0)
    for node in "bc":
        start(cluster, node, lost=True)
        cluster.report(node, -1, 0)
    assert cluster.report("a", 2, 50).value == {"leader": None}


def test_who_had_no_log_when_another_was_elected_vouches_for_nothing_once_it_copies(cluster):
    for node in "abc":
        start(cluster, node, lost=node == "a", cut=node != "a")
    for node, log in {"a": (-1, 0), "b": (1, 50), "c": (1, 48)}.items():
        cluster.report(node, *log)
    assert cluster.partition.leader == "b"
    for node in "bc":
        start(cluster, node, lost=True)
        cluster.report(node, -1, 0)
    assert cluster.report("a", 1, 30).value == {"leader": None}  # what it had copied by then


@pytest.mark.parametrize("how", ["lost", "failed", "failed and renewed", "short", "empty"])
def test_who_loses_its_log_after_another_was_elected_vouches_for_nothing(cluster, how):
    """`a` was away while `b` and `c` committed on."""
    cluster.expire("a")
    for node in "bc":
        start(cluster, node, cut=True)
    cluster.report("b", 1, 50, high_watermark=50)
    start(cluster, "a")
    cluster.report("a", 1, 20)
    is_short = {"short": (1, 40), "empty": (-1, 0)}.get(how)
    cluster.report("c", *(is_short or (1, 50)))
    assert cluster.partition.leader == "b"
    if how == "lost":
        start(cluster, "c", lost=True)
    elif how.startswith("failed"):
        cluster.report_failure("c")
    if how == "failed and renewed":
        cluster.report_renewal("c")
    start(cluster, "b", lost=True)
    cluster.report("b", -1, 0)
    cluster.report("a", 1, 40)
    assert cluster.report("c", 1, 49).value == {"leader": None}


def test_while_fewer_than_min_isr_are_in_sync_again_the_others_count_still():
    cluster = Cluster(*"abcde", min_isr=3)
    lose_all_then_elect(cluster, "d")
    cluster.change_isr("d", "e")
    assert cluster.partition.unproven == ("a", "b", "c")
    for node in "de":
        start(cluster, node, lost=True)
    for node in "abcde":
        cluster.report(node, *((1, 49) if node in "abc" else (-1, 0)))
    assert cluster.partition.leader == "a"


def test_a_leader_that_commits_alone_forgets_who_was_in_sync_before():
    cluster = Cluster("a", "b", "c", min_isr=1)
    lose_all_then_elect(cluster, "b")
    assert cluster.partition.unproven == ()


def test_an_unclean_election_forgets_who_was_in_sync_before(cluster):
    cluster.do("update_stream", name="orders", changes={"unclean_leader_election": True})
    leave_a_behind(cluster)
    start(cluster, "a")
    for node, log in {"a": (1, 50), "b": (-1, 0), "c": (-1, 0)}.items():
        cluster.report(node, *log)
    assert (cluster.partition.leader, cluster.partition.unproven) == ("a", ())


def left_alone(cluster):
    """`b` and `c` cut their ends; `a` is left, and commits alone where one in-sync replica is enough."""
    for node in "bc":
        start(cluster, node, cut=True)
    assert (cluster.partition.isr, cluster.partition.unproven) == (("a",), ("b", "c"))


def a_is_lost(cluster):
    start(cluster, "a", lost=True)
    for node, log in {"a": (-1, 0), "b": (1, 40), "c": (1, 40)}.items():
        cluster.report(node, *log)


def test_a_greater_min_isr_does_not_make_those_vouch_who_left_before_it():
    cluster = Cluster("a", "b", "c", min_isr=1)
    left_alone(cluster)
    cluster.do("update_stream", name="orders", changes={"min_isr": 2})
    a_is_lost(cluster)
    assert cluster.partition.leader is None  # `a` committed alone before


def test_a_smaller_min_isr_makes_fewer_vouch():
    cluster = Cluster("a", "b", "c", min_isr=2)
    left_alone(cluster)
    cluster.do("update_stream", name="orders", changes={"min_isr": 1})
    cluster.do("update_stream", name="orders", changes={"min_isr": 2})
    a_is_lost(cluster)
    assert cluster.partition.leader is None


def test_those_who_left_last_vouch_under_a_greater_min_isr_as_far_as_they_did_before():
    cluster = Cluster("a", "b", "c", min_isr=2)
    left_alone(cluster)
    cluster.do("update_stream", name="orders", changes={"min_isr": 3})
    assert cluster.partition.lost == ("b",)
    a_is_lost(cluster)
    assert cluster.partition.leader == "b"  # `c` vouches, `b` reaches as far


def test_more_replicas_mean_a_greater_min_isr_and_nobody_vouches_who_left_before_it():
    """The last of two partitions has its new replicas; the first one's leader committed alone until then."""
    cluster = Cluster("a", min_isr=1)
    for node in "bc":
        cluster.register(node)
    two = config("orders1") | {"partitions": 2}
    cluster.do("create_stream", uuid=UUIDS[0], config=two, assignment=[["a"], ["a"]])

    def term(number):
        info = cluster.state.streams["orders1"].partitions[number]
        where = {"name": "orders1", "uuid": UUIDS[0], "partition": number}
        return where | {"leader_epoch": info.leader_epoch, "version": info.version}

    moves = [[number, ["a", "b", "c"], []] for number in range(2)]
    cluster.do("reassign_partitions", name="orders1", uuid=UUIDS[0], moves=moves)
    known = {node: cluster.incarnation(node) for node in "bc"}
    for number in range(2):
        cluster.do("change_isr", **term(number), leader="a", isr=["a", "b", "c"], incarnations=known)
    cluster.do("finish_reassignment", **term(0))
    for node in "bc":
        cut = [[UUIDS[0], 0]]
        cluster.do("register_node", node=NODE | {"node_id": node}, cut=cut)
    cluster.do("finish_reassignment", **term(1))
    assert cluster.state.streams["orders1"].config.min_isr_effective == 2
    info = cluster.state.streams["orders1"].partitions[0]
    assert (info.isr, info.unproven, info.lost) == (("a",), ("b", "c"), ("b", "c"))


def tell_records(cluster, told_by, end):
    """The leader tells of the first records."""
    term = {"leader": told_by, "leader_epoch": cluster.partition.leader_epoch, "end": end}
    return cluster.attempt("report_records", **WHERE | term)


def lose_all(cluster):
    """All copies are lost, before any node kept in mind what was committed in them."""
    for node in "abc":
        start(cluster, node, lost=True)
    for node in "abc":
        cluster.report(node, -1, cluster.partition.empty_log_start)


def test_an_empty_log_does_not_lead_where_a_leader_told_of_the_first_records(cluster):
    before = cluster.partition
    assert not tell_records(cluster, "a", 3).error
    cluster.change_isr("a", "b")
    cluster.change_isr("a", "b", "c")  # which ends doubts, and forgets nothing of that
    assert (cluster.partition.first_end, cluster.partition.version) == (3, before.version + 2)
    lose_all(cluster)
    assert cluster.partition.leader is None
    assert "records from offset 0 to 2 are lost" in recover(cluster, a=(-1, 0), b=(-1, 0), c=(-1, 0)).message
    assert recover(cluster, accept=True, a=(-1, 0), b=(-1, 0), c=(-1, 0)).value["known_end"] == 3
    assert cluster.partition.first_end == 0
    lose_all(cluster)
    assert cluster.partition.leader is not None, "nothing has come since"


def test_first_records_that_were_purged_are_none(cluster):
    tell_records(cluster, "a", 3)
    cluster.do("purge_partition", **WHERE, log_start=3)
    lose_all(cluster)
    assert cluster.partition.leader is not None
    assert not tell_records(cluster, cluster.partition.leader, 4).error
    lose_all(cluster)
    assert cluster.partition.leader is None


@pytest.mark.parametrize(
    "args", [{"leader": "b"}, {"leader_epoch": 0}, {"end": "7"}, {"end": None}, {"uuid": UUIDS[1]}]
)
def test_only_who_leads_tells_of_first_records(cluster, args):
    term = {"leader": "a", "leader_epoch": cluster.partition.leader_epoch, "end": 7}
    assert cluster.attempt("report_records", **WHERE | term | args).error
    assert cluster.partition.first_end == 0


def test_a_copy_that_was_in_sync_vouches_for_what_it_has_when_its_node_starts_again(cluster):
    """It was begun anew in the incarnation before, which is over."""
    cluster.report_failure("a")
    cluster.report_renewal("a")
    cluster.change_isr("a", "b", "c")
    start(cluster, "b", cut=True)
    start(cluster, "a", cut=True)
    assert (cluster.partition.unproven, cluster.partition.lost, cluster.partition.renewed) == (("b", "a"), (), ())


def test_the_only_replica_without_its_log_waits_for_an_operator_or_for_the_log():
    cluster = Cluster("a", min_isr=1)
    start(cluster, "a", lost=True, known_end=20)
    assert (cluster.partition.isr, cluster.partition.leader) == ((), None)
    assert cluster.report("a", -1, 0, high_watermark=0).value == {"leader": None}
    refused = recover(cluster, a=(-1, 0))
    assert "committed records from offset 0 to 19 are lost, at least" in refused.message
    start(cluster, "a")  # its volume is mounted again
    assert cluster.report("a", 1, 19).value == {"leader": None}
    assert cluster.report("a", 1, 20).value == {"leader": "a"}
    assert (cluster.partition.unclean_elections, cluster.partition.lost) == (0, ())
    start(cluster, "a", lost=True, known_end=20)
    assert recover(cluster, accept=True, a=(-1, 0)).value["leader"] == "a"
    assert (cluster.partition.isr, cluster.partition.unproven, cluster.partition.first_end) == (("a",), (), 0)


@pytest.mark.parametrize(
    ("b_has", "a_has", "leader"),
    [((0, 52), (1, 71), "b"), ((0, 52), (2, 71), "a"), ((1, 52), (1, 71), "a"), ((-1, 0), (1, 71), None)],
    ids=["of an epoch between", "of the last leader", "of the same epoch", "the last leader has lost its log"],
)
def test_what_a_leader_committed_of_its_log_before_it_had_a_record_is_not_lost(b_has, a_has, leader):
    """`b` led alone in epoch 2 and committed what it had; `a` may have something else there, of an epoch before."""
    cluster = Cluster("a", "b", min_isr=1)
    for node in "ab":
        start(cluster, node, cut=True)
    assert (cluster.partition.isr, cluster.partition.unproven) == ((), ("a", "b"))
    assert (cluster.partition.leader_epoch, cluster.partition.committing_epoch) == (2, 2)
    cluster.report("a", *a_has)
    cluster.report("b", *b_has)
    assert cluster.partition.leader == leader


def test_a_leader_with_too_few_in_sync_commits_nothing_and_its_epoch_does_not_count():
    cluster = Cluster("a", "b", "c")
    assert cluster.partition.committing_epoch == 1
    for node, isr, epoch in (("a", ("b", "c"), 2), ("b", ("c",), 2)):
        start(cluster, node, cut=True)
        assert (cluster.partition.isr, cluster.partition.committing_epoch) == (isr, epoch)
    assert cluster.partition.leader_epoch == 3
